"""The plans that pods are started with: what `api.wire.plans` says an evaluator and a host are told."""

from __future__ import annotations

from ..api import failure_policy, metadata_servers
from ..api.constants import Placement
from ..api.limits import operators_setting, users_field
from ..api.models import ModelSpec
from ..api.results import ObjectStoreResults
from ..api.tasks import Dataset
from ..api.wire.endpoints import CANARY_PORT, KUBELET_PORT
from ..api.wire.mounts import BUNDLED_DATASETS_DIR, DATASET_DIR, DATASET_FILE
from ..api.wire.plans import (
    NODE_HOST,
    Bound,
    EgressPlan,
    EvaluatorPlan,
    GateTarget,
    GymTarget,
    HostPlan,
    ModelRoute,
    RolloutRule,
    UploadPlan,
)
from . import storage
from .workload import ApiAddresses, Workload


def evaluator_plan(workload: Workload) -> EvaluatorPlan:
    spec = workload.spec
    return EvaluatorPlan(
        namespace=workload.namespace,
        job=workload.name,
        uid=workload.uid,
        attempt=workload.attempt,
        placement=workload.placement,
        dataset_file=dataset_file(workload),
        dataset_label=dataset_label(workload),
        taskset=spec.tasks.taskset is not None,
        limit=spec.tasks.limit,
        task_ids=list(spec.tasks.task_ids),
        max_rollouts=_bound("rollouts", workload),
        max_tokens=_bound("tokens", workload),
        max_calls=_bound("calls", workload),
        max_model_seconds=_bound("model_seconds", workload),
        max_concurrent_calls=_bound("concurrent_calls", workload),
        egress=_egress(workload),
        idle_s=spec.idle_timeout_seconds,
        target=gym_target(workload),
        models=[_route(model, workload) for model in spec.models],
        hosts=workload.hosts,
        environment=workload.spec.target.gym.environment is not None,
        min_coverage=spec.min_coverage,
        retry_failed=spec.retry_failed,
        rollout_rules=_rollout_rules(workload),
        parallelism=spec.parallelism,
        fail_fast=spec.fail_fast,
        labels=dict(spec.labels),
        results_location=storage.results_location(workload),
        images=workload.images,
        upload=upload(workload),
    )


def _rollout_rules(workload: Workload) -> list[RolloutRule]:
    policy = workload.spec.failure_policy
    return [
        RolloutRule(place=failure_policy.place(number), action=rule.action, classes=rule.on_rollout.classes)
        for number, rule in enumerate(policy.rules if policy else ())
        if rule.on_rollout
    ]


def host_plan(workload: Workload, ordinal: int) -> HostPlan:
    return HostPlan(
        job=workload.name,
        uid=workload.uid,
        attempt=workload.attempt,
        ordinal=ordinal,
        evaluator_url=workload.evaluator_url,
        target=gym_target(workload),
        models={model.name: model.model for model in workload.spec.models},
        environment=workload.spec.target.gym.environment is not None,
        egress=_egress(workload) is not None,
        gate_refused=_gate_targets(workload),
    )


def _gate_targets(workload: Workload) -> list[GateTarget]:
    return gate_targets(workload.cluster_ip or "", "the evaluator", workload.api)


def _egress(workload: Workload) -> EgressPlan | None:
    """What the job asks for, which was within the administrator's list when it was accepted. None where it asks for
    nothing; and colocated, where Gym has the evaluator's own network."""
    allow = workload.spec.egress.allow
    if not allow or workload.placement is Placement.COLOCATED:
        return None
    shut = {target.host for target in _gate_targets(workload)} - {"", NODE_HOST}
    return EgressPlan(allow=list(allow), shut=sorted(shut))


def gate_targets(listener: str, whose: str, api: ApiAddresses) -> list[GateTarget]:
    """Addresses that a sandbox must not reach. `listener` is the address of whoever serves the canary port, the first
    target, beside the one that must answer."""
    targets = [
        GateTarget(
            name="evaluator-canary",
            host=listener,
            port=CANARY_PORT,
            known_by=f"{whose} listens there before it answers the gate",
        )
    ]
    if api.service:
        host, port = api.service
        targets.append(GateTarget(name="kubernetes-api", host=host, port=port, known_by="the operator is served by it"))
    if api.server and api.server != api.service:
        host, port = api.server
        known_by = "the API server itself says that it is reached there"
        targets.append(GateTarget(name="kubernetes-api-node", host=host, port=port, known_by=known_by))
    known_by = "the kubelet that started this pod listens there, unless its port was changed"
    targets.append(GateTarget(name="kubelet", host=NODE_HOST, port=KUBELET_PORT, known_by=known_by))
    for host in (metadata_servers.LINK_LOCAL, *metadata_servers.OUTSIDE_LINK_LOCAL):
        targets.append(GateTarget(name="metadata", host=host, port=80, known_by=""))
    return targets


def gym_target(workload: Workload) -> GymTarget:
    gym = workload.spec.target.gym
    return GymTarget(
        agent=gym.agent,
        agent_config=gym.agent_config,
        agent_ref_name=gym.agent_ref_name,
        resources_server=gym.resources_server,
        model_type=gym.model_type,
        bind_resources_server=gym.bind_resources_server,
        hydra_params=dict(gym.hydra_params),
        env_vars=dict(gym.env_vars),
        env_secret_names=sorted(gym.env_secrets),
        num_repeats=gym.num_repeats,
        concurrency=gym.concurrency,
        startup_timeout_s=gym.startup_timeout_seconds,
        collection_timeout_s=gym.collection_timeout_seconds,
        shutdown_grace_s=gym.shutdown_grace_seconds,
        reward_key=gym.reward_key,
    )


def dataset_file(workload: Workload) -> str:
    source = workload.spec.tasks.source
    if isinstance(source, Dataset) and source.bundled:
        return f"{BUNDLED_DATASETS_DIR}/{source.bundled}"
    claim = source.persistent_volume_claim
    return f"{DATASET_DIR}/{claim.path}" if claim else DATASET_FILE


def dataset_label(workload: Workload) -> str:
    """The dataset in a user's words, for messages about its rows."""
    source = workload.spec.tasks.source
    if isinstance(source, Dataset) and source.bundled:
        return f"bundled {source.bundled}"
    if source.config_map:
        return f"ConfigMap {source.config_map.name} key {source.config_map.key}"
    if source.persistent_volume_claim:
        claim = source.persistent_volume_claim
        return f"persistentVolumeClaim {claim.claim_name} file {claim.path}"
    if source.file_set is None:
        raise ValueError("a dataset or taskset has one source")
    return f"FileSet {source.file_set.name} file {source.file_set.path}"


def _bound(what: str, workload: Workload) -> Bound | None:
    """The job's own bound, which is never above the operator's, or else that one."""
    own = getattr(workload.spec.limits, what)
    if own is not None:
        return Bound(value=own, setting=users_field(what))
    most = getattr(workload.options.limits, f"max_{what}")
    return Bound(value=most, setting=f"the operator's setting {operators_setting(what)}") if most else None


def object_store(workload: Workload) -> ObjectStoreResults | None:
    """The job's bucket, with the authorities that it is reached with."""
    store = workload.spec.results.object_store
    if store is None:
        return None
    return store.model_copy(update={"certificates": workload.options.authorities(store.certificates)})


def upload(workload: Workload) -> UploadPlan | None:
    """Where the bundle is brought to; None for a job without an object store."""
    store = object_store(workload)
    if store is None:
        return None
    folder = f"{workload.namespace}/{workload.name}-{workload.uid[:8]}"
    return UploadPlan(address=store.address(store.prefix), folder=folder, timeout_s=store.timeout_seconds)


def _route(model: ModelSpec, workload: Workload) -> ModelRoute:
    return ModelRoute(
        name=model.name,
        base_url=model.base_url,
        model=model.model,
        has_api_key=model.api_key is not None,
        has_certificates=workload.options.authorities(model.certificates) is not None,
        timeout_seconds=model.timeout_seconds,
        max_retries=model.max_retries,
        max_concurrent_calls=model.max_concurrent_calls,
    )
