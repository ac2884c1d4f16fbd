"""What an administrator sets for every pod of every job: the part of the operator's settings that
the builders need. Field names are those of the chart's values."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ..api.object_store import CertificateSource
from ..api.resource import KeyRef


class Options(BaseModel):
    """Base of the operator's settings: camelCase in the file, an unknown field is an error."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Images(Options):
    """Image references per pod."""

    tasks: str
    gym_host: str
    gym_tasks: str
    check_bundled: bool = True
    """Refuse a bundled resources server that the project's own images cannot run. Turn it off with an
    image of your own that holds the missing packages."""


class PodOptions(Options):
    """Fields that go into the spec or metadata of every pod, in Kubernetes' own form."""

    image_pull_secrets: list[dict[str, str]] = Field(default_factory=list)
    tolerations: list[dict[str, Any]] = Field(default_factory=list)
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: dict[str, Any] = Field(default_factory=dict)
    priority_class_name: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


def _resources(
    cpu: str,
    memory: str,
    memory_limit: str,
    disk: str | None = None,
    disk_limit: str | None = None,
    cpu_limit: int | None = None,
) -> dict[str, Any]:
    resources: dict[str, Any] = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory_limit}}
    if cpu_limit:
        resources["limits"]["cpu"] = cpu_limit
    if disk and disk_limit:
        resources["requests"][EPHEMERAL_STORAGE] = disk
        resources["limits"][EPHEMERAL_STORAGE] = disk_limit
    return resources


EPHEMERAL_STORAGE = "ephemeral-storage"
"""What a container writes on its node: its layer, its log and its emptyDirs."""


class RoleResources(Options):
    """`resources` of the container of each role. A host's default limits are what NeMo Gym needs under
    gVisor (1.9 GiB of memory at ready) with room for the environment: on disk its archive, its tree and its
    wheels, of up to 2 GiB each, and what it writes. An evaluator's disk holds a staged environment and dataset, of up
    to 2 GiB each, its hosts' logs, and the results where they have no claim: a host decides how much it answers, so
    that this has a bound too. Init containers have none of their own: the pod's is that of its main container."""

    evaluator: dict[str, Any] = Field(default_factory=lambda: _resources("100m", "256Mi", "2Gi", "256Mi", "10Gi"))
    gym_host: dict[str, Any] = Field(default_factory=lambda: _resources("500m", "1Gi", "3Gi", "512Mi", "10Gi", 4))
    gym_tasks: dict[str, Any] = Field(default_factory=lambda: _resources("500m", "1Gi", "4Gi", "512Mi", "10Gi"))
    stage: dict[str, Any] = Field(default_factory=lambda: _resources("50m", "64Mi", "512Mi"))
    gate: dict[str, Any] = Field(default_factory=lambda: _resources("10m", "32Mi", "256Mi"))


class PodSelector(Options):
    """The operator's own pods, as a NetworkPolicy peer."""

    namespace: str
    labels: dict[str, str]


class Limits(Options):
    """The most that any one job may use. A job's `spec.limits` may be lower. None: no bound."""

    max_rollouts: int | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    max_calls: int | None = Field(default=None, gt=0)
    max_model_seconds: int | None = Field(default=None, gt=0)
    max_concurrent_calls: int | None = Field(default=None, gt=0)


class Certificates(Options):
    """Authorities that every job trusts besides the images' own, where it names none itself: a key of a ConfigMap that
    each namespace with jobs has. Empty: none."""

    config_map: str = ""
    key: str = "ca.crt"


class WorkloadOptions(Options):
    """Everything the builders take from the operator's settings."""

    images: Images
    image_pull_policy: str = "IfNotPresent"
    pods: PodOptions = Field(default_factory=PodOptions)
    resources: RoleResources = Field(default_factory=RoleResources)
    limits: Limits = Field(default_factory=Limits)
    certificates: Certificates = Field(default_factory=Certificates)
    evaluator_egress: list[dict[str, Any]] = Field(default_factory=list)
    """NetworkPolicyEgressRules of the evaluator, which must reach the job's models. Empty: all."""
    operator_pod_selector: PodSelector | None = None
    """Who may read `/progress`. None: nobody but the node itself."""

    def authorities(self, own: CertificateSource | None) -> CertificateSource | None:
        """The certificates that a server's are verified with: what its own field names, or else the operator's."""
        if own is not None or not self.certificates.config_map:
            return own
        return CertificateSource(
            config_map_key_ref=KeyRef(name=self.certificates.config_map, key=self.certificates.key)
        )
