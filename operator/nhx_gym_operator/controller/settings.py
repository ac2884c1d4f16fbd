"""The operator's settings: one YAML file, which the chart renders, and one key file.

Field names are the chart's values in camelCase. What concerns a job's pods is described in
`workloads.options`; here is what the control loop itself needs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

import yaml
from pydantic import Field, ValidationError, model_validator

from ..api.constants import Isolation
from ..api.egress import HostEntry
from ..api.resource import first_problem
from ..workloads.options import Options, WorkloadOptions
from ..workloads.workload import ApiAddresses

SETTINGS_ENV = "NHX_SETTINGS"
DEFAULT_SETTINGS_FILE = "/etc/nhx-gym-operator/settings.yaml"
KEY_FILE_ENV = "NHX_OPERATOR_KEY_FILE"
DEFAULT_KEY_FILE = "/var/run/secrets/nhx-gym-operator/key"
MIN_KEY_BYTES = 32

_API_HOST_ENV = "KUBERNETES_SERVICE_HOST"
_API_PORT_ENV = "KUBERNETES_SERVICE_PORT"


class SettingsError(ValueError):
    """Settings or key that the operator cannot start with; names the file and the field."""


class SandboxMode(StrEnum):
    AUTO = "Auto"
    """Sandboxed where the isolation is there, else colocated for what is built into the images."""
    REQUIRED = "Required"
    DISABLED = "Disabled"


class EgressCeiling(Options):
    """The most that sandboxed jobs may reach besides their evaluators. A job gets what it asks for of it, and nothing
    unasked."""

    allow: tuple[HostEntry, ...] = ()


class Sandbox(Options):
    """Where jobs run. Never a field of a job."""

    mode: SandboxMode = SandboxMode.AUTO
    runtime_class_name: str = "gvisor"
    isolation: Isolation = Isolation.KERNEL
    """`Kernel` needs the RuntimeClass. `ContainerOnly` runs hosts under the cluster's default runtime,
    with the same policies and the same gate."""
    egress: EgressCeiling = Field(default_factory=EgressCeiling)


class CanarySettings(Options):
    """Where and how often it is measured whether a sandbox holds."""

    name: str
    """The ConfigMap that takes the outcome, and the stem of the canaries' names."""
    namespace: str
    """The operator's own."""
    interval_seconds: float = Field(default=3600, ge=10)
    """What it finds changes with a node's or network plugin's upgrade, not by the minute, and the gate of each host
    proves its own network anyway. Two small pods for some ten seconds an hour cost next to nothing."""


class LeaseSettings(Options):
    """The Lease that says which of several operators acts."""

    name: str
    namespace: str
    """The operator's own."""
    duration_seconds: int = Field(default=12, ge=1)
    """Ours, with the two below: another operator takes over at most this and twice `retry_seconds` after the last
    renewal. Kubernetes' own components use 15, 10 and 2, which is 19 s at worst, and a fail-over is to take less than
    20 s with all that comes after it."""
    renew_deadline_seconds: float = Field(default=8, gt=0)
    """So old may the last renewal be for the holder to act. Shorter than the Lease, by the time that a request which
    was sent at the last moment may take to arrive."""
    retry_seconds: float = Field(default=2, gt=0)
    """Between renewals, and between looks at another's Lease."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.retry_seconds < self.renew_deadline_seconds < self.duration_seconds:
            raise ValueError("retrySeconds must be less than renewDeadlineSeconds, and that less than durationSeconds")
        return self


class Timeouts(Options):
    """Bounds of every wait, in seconds."""

    pod_start_seconds: float = Field(default=900, gt=0)
    """From a pod's creation until its containers run. As long as the platform waits for a host to be
    ready (evals/agent-eval/gym-sandbox-configuration.mdx, "Host ready wait")."""
    wait_for_inputs_seconds: float = Field(default=300, gt=0)
    """How long something that a job names may be missing."""
    pod_admission_seconds: float = Field(default=3600, gt=0)
    """How long a quota or an admission policy may refuse a job's pods."""


class Settings(WorkloadOptions):
    """Everything an administrator sets."""

    sandbox: Sandbox = Field(default_factory=Sandbox)
    canary: CanarySettings | None = None
    """None: nothing is measured, and a RuntimeClass that exists is taken to isolate."""
    lease: LeaseSettings | None = None
    """None: this operator is the only one."""
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Where Prometheus may scrape the operator. None: nowhere."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces to serve. Empty: all."""
    timeouts: Timeouts = Field(default_factory=Timeouts)


@dataclass(frozen=True)
class Installation:
    """What one running operator knows from its start: settings, key, where the API is and what it can do."""

    settings: Settings
    key: bytes = field(repr=False)
    api: ApiAddresses = field(default_factory=ApiAddresses)
    restarts: bool = False
    """Whether the API server takes pods that ask for one container to be started again. Whether it is, the pod says."""


def load_installation(environ: Mapping[str, str] = os.environ) -> Installation:
    """Reads settings and key. Raises `SettingsError`."""
    settings = load_settings(Path(environ.get(SETTINGS_ENV, DEFAULT_SETTINGS_FILE)))
    key = load_key(Path(environ.get(KEY_FILE_ENV, DEFAULT_KEY_FILE)))
    host = environ.get(_API_HOST_ENV)
    service = (host, int(environ.get(_API_PORT_ENV, "443"))) if host else None
    return Installation(settings=settings, key=key, api=ApiAddresses(service))


def load_settings(path: Path) -> Settings:
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; set {SETTINGS_ENV} to the settings file") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} is not YAML: {error}") from error
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        raise SettingsError(f"{path}: {first_problem(error)}") from error


def load_key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; set {KEY_FILE_ENV} to the operator's key") from error
    if len(key) < MIN_KEY_BYTES:
        raise SettingsError(f"{path} holds {len(key)} bytes; a key of at least {MIN_KEY_BYTES} is needed")
    return key
