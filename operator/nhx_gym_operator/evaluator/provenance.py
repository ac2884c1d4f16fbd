"""What produced a result, in one file beside the SDK's: `provenance.json`. Its shape is in docs/results.md."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..api.wire.endpoints import ModelUsage
from ..api.wire.plans import EvaluatorPlan
from .call_facts import CallFacts
from .dataset import Dataset
from .plan import Paths
from .versions import gym_packages, own_packages

PROVENANCE = "provenance.json"
_MAX_EARLIER_BYTES = 1 << 20

log = logging.getLogger(__name__)


@dataclass
class Provenance:
    """Collects while the job runs; `write` may be called at any time, the last call counts."""

    plan: EvaluatorPlan
    paths: Paths
    digests: Mapping[str, str]
    """Image digest by role, as far as the operator has said."""
    dataset: Dataset | None = None

    def document(
        self,
        *,
        versions: Mapping[str, str],
        kernel: str,
        environment_digest: str | None,
        facts: Mapping[str, CallFacts],
        usage: Mapping[str, ModelUsage],
        egress: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The file's content. `versions` and `kernel` are what the gym host says of itself; `egress` is what the
        sandbox reached besides its models, None if nothing was open to it."""
        plan = self.plan
        return {
            "version": 1,
            "job": {
                "namespace": plan.namespace,
                "name": plan.job,
                "uid": plan.uid,
                "attempt": plan.attempt,
                "labels": plan.labels,
                "placement": plan.placement.value,
            },
            "images": {
                role: {"reference": reference, "digest": self.digests.get(role)}
                for role, reference in plan.images.items()
            },
            "packages": {"evaluator": own_packages(), "gym": gym_packages() or dict(versions)},
            "hostKernel": kernel or None,
            "dataset": {
                "source": plan.dataset_label,
                "digest": self.dataset.digest if self.dataset else None,
                "tasks": len(self.dataset.tasks) if self.dataset else None,
                "limit": plan.limit,
                "numRepeats": plan.target.num_repeats,
            },
            "environment": {"resourcesServer": plan.target.resources_server, "digest": environment_digest},
            "models": {
                route.name: {
                    "requested": route.model,
                    "endpoint": route.base_url,
                    **facts.get(route.name, CallFacts()).shown(),
                    "usage": usage.get(route.name, ModelUsage()).model_dump(),
                }
                for route in plan.models
            },
            "egress": egress,
            "earlierAttempts": self._earlier(),
        }

    def write(self, document: Mapping[str, Any]) -> None:
        """Beside the SDK's files."""
        file = self.paths.attempt(self.plan.attempt) / PROVENANCE
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(document))

    def _earlier(self) -> list[dict[str, Any]]:
        """What the job's earlier attempts wrote: rollouts that they recorded are in the result too."""
        found = []
        for number in range(1, self.plan.attempt):
            file = self.paths.attempt(number) / PROVENANCE
            try:
                if file.stat().st_size > _MAX_EARLIER_BYTES:
                    continue
                document = json.loads(file.read_bytes())
            except (OSError, ValueError):
                continue
            job = document.get("job") if isinstance(document, dict) else None
            if isinstance(job, dict) and job.get("uid") == self.plan.uid:
                found.append({name: document[name] for name in ("job", "images", "models") if name in document})
        return found


def encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
