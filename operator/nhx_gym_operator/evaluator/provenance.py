"""What produced a result, in one file beside the SDK's: `provenance.json`. Its shape is in docs/results.md."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from nhx_gym_operator.api.wire import EvaluatorPlan, ModelUsage

from .dataset import Dataset
from .plan import Paths
from .rollouts import well_formed

PROVENANCE = "provenance.json"
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "seed",
    "n",
    "stop",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "reasoning_effort",
    "reasoning",
)
"""Fields of a model call that decide how an answer is drawn: those of the OpenAI API, and vLLM's `top_k`, `min_p` and
`repetition_penalty`."""
OTHER = "(other)"
_MAX_VALUES = 32
"""Distinct values of one field that are told apart. A seed may differ from call to call."""
_MAX_TEXT = 256
_MAX_EARLIER_BYTES = 1 << 20

log = logging.getLogger(__name__)


@dataclass
class CallFacts:
    """What one model was asked with, and who says that it answered. Counts are calls."""

    sampling: dict[str, Counter[str]] = field(default_factory=dict)
    """Field to its values as JSON text. A call without the field is not counted: the server's default held."""
    answered: Counter[str] = field(default_factory=Counter)
    """The `model` that answers name."""
    fingerprints: Counter[str] = field(default_factory=Counter)
    """The `system_fingerprint` of answers that have one."""

    def asked(self, body: bytes) -> None:
        """Note one call. Its body is JSON, or the call would not have been passed on."""
        call = json.loads(body)
        for name in SAMPLING:
            if call.get(name) is not None:
                _count(self.sampling.setdefault(name, Counter()), json.dumps(call[name]))

    def answer(self, answer: object) -> None:
        """Note one answer, or an event of a stream that speaks of it."""
        if not isinstance(answer, Mapping):
            return
        for name, seen in (("model", self.answered), ("system_fingerprint", self.fingerprints)):
            if isinstance(answer.get(name), str) and answer[name]:
                _count(seen, answer[name])

    def shown(self) -> dict[str, Any]:
        return {
            "answeredAs": dict(self.answered),
            "systemFingerprints": dict(self.fingerprints),
            "sampling": {name: dict(values) for name, values in self.sampling.items()},
        }


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
    ) -> dict[str, Any]:
        """The file's content. `versions` and `kernel` are what the gym host says of itself."""
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
            "packages": {"evaluator": _installed(tuple(sys.path)), "gym": _installed(_gym_path()) or dict(versions)},
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


def _count(seen: Counter[str], value: str) -> None:
    text = well_formed(value[:_MAX_TEXT])
    seen[text if text in seen or len(seen) < _MAX_VALUES else OTHER] += 1


@cache
def _installed(path: tuple[str, ...]) -> dict[str, str]:
    """Every package below these directories with its version; the first one found is the one that is imported."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions(path=list(path)):
        found.setdefault(distribution.name.lower(), distribution.version)
    return dict(sorted(found.items()))


def _gym_path() -> tuple[str, ...]:
    """Where the packages of the `gym` on PATH are. Only a colocated evaluator has one."""
    gym = shutil.which("gym")
    found = Path(gym).resolve().parents[1].glob("lib/python3*/site-packages") if gym else ()
    return tuple(str(path) for path in found)
