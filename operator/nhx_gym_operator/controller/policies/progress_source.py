"""Where a running evaluator tells how far it is."""

from __future__ import annotations

from typing import Any

from ...api.constants import CONTAINER_EVALUATE
from ...api.wire.endpoints import EVALUATOR_PORT, PROGRESS_PATH, http_url
from ...workloads import tokens
from .. import podview
from ..observation import Observation, ProgressSource

Manifest = dict[str, Any]


def find(observation: Observation, evaluator: Manifest | None, images: dict[str, str]) -> ProgressSource | None:
    """None while no evaluator runs. `images` are the digests that it is told."""
    address = podview.ip(evaluator) if evaluator else None
    if not evaluator or not address or not podview.is_running(evaluator, CONTAINER_EVALUATE):
        return None
    token = tokens.progress_token(observation.installation.key, observation.job.metadata.uid)
    url, life = http_url(address, EVALUATOR_PORT) + PROGRESS_PATH, podview.life(evaluator, CONTAINER_EVALUATE)
    return ProgressSource(url, token, images, life)
