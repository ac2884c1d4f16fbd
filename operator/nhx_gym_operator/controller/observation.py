"""The values between the three steps: what was observed, what was decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..api.conditions import AcceptedReason, PodReason
from ..api.job import AgentEvalJob
from ..api.wire.endpoints import Progress
from .inputs import Inputs, Missing
from .measuring.findings import Standing
from .settings import Installation
from .staging_reports import StagingReport

Manifest = dict[str, Any]


@dataclass(frozen=True)
class PodsRefused:
    """The API server would not make a job's pods. Held in memory: a restarted operator asks again."""

    reason: PodReason
    message: str
    retry_at: datetime


@dataclass(frozen=True)
class PodEvent:
    """A warning about one pod, by the kubelet or the scheduler."""

    pod_uid: str
    reason: str
    message: str


@dataclass(frozen=True)
class Observation:
    """All that is known about one job at one moment. Nothing in it is ever changed."""

    job: AgentEvalJob
    installation: Installation
    runtime_class: bool | Missing | None = None
    """Whether the configured RuntimeClass exists. None: not looked up, since nothing depends on it."""
    standing: Standing | None = None
    """Whether a sandbox of this cluster holds, as far as it was measured. None: nothing is measured here."""
    inputs: Inputs | None = None
    """What the job names. None: not looked up, since no pods are about to be made."""
    service: Manifest | None = None
    policies: tuple[Manifest, ...] = ()
    claim: Manifest | None = None
    pods: tuple[Manifest, ...] = ()
    ghosts: tuple[Manifest, ...] = ()
    """Pods that are gone, as they were last seen by this process."""
    pod_events: tuple[PodEvent, ...] = ()
    progress: Progress | None = None
    """The evaluator's last answer to this process, of whatever attempt."""
    progress_life: str = ""
    """Which process of the evaluator's answered (`podview.life`). Empty: not known."""
    is_silent: bool = False
    """The evaluator runs, and has not answered this process for some time (`progress_poller.SILENT_SECONDS`)."""
    refusal: PodsRefused | None = None
    namespace_ends: bool = False
    """The namespace is being deleted: its pods go first, the job only when they are gone. Asked once pods end."""
    invalid: str = ""
    """Why the stored spec cannot be read, which only a changed CRD can cause."""

    def progress_of(self, attempt: int) -> Progress | None:
        return self.progress if self.progress and self.progress.attempt == attempt else None


@dataclass(frozen=True)
class Apply:
    """Make the object be as the manifest says, if its name is free or it is ours."""

    manifest: Manifest


@dataclass(frozen=True)
class Create:
    """Make the object; one of that name that is ours already is as good."""

    manifest: Manifest


@dataclass(frozen=True)
class CreateTogether:
    """Make all of these pods or none."""

    manifests: tuple[Manifest, ...]


@dataclass(frozen=True)
class DeletePod:
    """Delete that very pod, gracefully."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class DeleteJob:
    """Delete the job itself, as it was when this was decided."""

    namespace: str
    name: str
    uid: str
    resource_version: str


Action = Apply | Create | CreateTogether | DeletePod | DeleteJob


@dataclass(frozen=True)
class ProgressSource:
    """Where to read the job's progress, and with which token."""

    url: str
    token: str = field(repr=False)
    images: Mapping[str, str] = field(default_factory=dict)
    """Image digest by role, for the evaluator to write down: it cannot know them."""
    life: str = ""
    """Which process of the evaluator's is asked."""


@dataclass(frozen=True)
class Decision:
    """What should be: the whole status, actions in their order, and when to look again."""

    status: dict[str, Any]
    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None
    poll: ProgressSource | None = None
    staged: tuple[StagingReport, ...] = ()
    """What the job's pods found at the sources of FileSets."""


@dataclass(frozen=True)
class JobRefused:
    """A job that cannot run here, for good."""

    reason: AcceptedReason
    message: str
