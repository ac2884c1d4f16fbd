"""The pods of a job: evaluator and gym host, or both in one; and one that reads what a lost evaluator left."""

from __future__ import annotations

from typing import Any

from ..api import pod_rules
from ..api.constants import (
    CONTAINER_EVALUATE,
    CONTAINER_GATE,
    CONTAINER_HOST,
    CONTAINER_OUTCOME,
    ORDINAL_LABEL,
    Placement,
    Role,
)
from ..api.object_store import key_volumes
from ..api.wire.endpoints import EVALUATOR_PORT, HOST_PORT
from ..api.wire.mounts import (
    DATASET_DIR,
    ENVIRONMENT_DIR,
    MODEL_CERTIFICATES_DIR,
    MODEL_KEY_FILE,
    MODEL_KEYS_DIR,
    OBJECT_STORE_DIR,
    RESULTS_DIR,
    TOKENS_DIR,
    WORK_DIR,
)
from ..api.wire.plans import EVALUATOR_PLAN_ENV, HOST_PLAN_ENV, OUTCOME_PLAN_ENV, OutcomePlan
from . import names, plans, podspec, secrets, staging, storage
from .options import EPHEMERAL_STORAGE
from .podspec import mount, scratch, secret_volume
from .workload import ConfigMapFiles, StagedFiles, Workload

Manifest = dict[str, Any]

HOST_MODULE = "nhx_gym_operator.gym_host"
TOKENS_VOLUME = "tokens"
"""The one volume of a host pod that is not scratch space."""

_READERS_DISK = {"requests": "64Mi", "limits": "1Gi"}
"""For its log: it writes nothing else."""

# A sandbox is given addresses. A resolver that refuses at once is better than one that the policy
# makes every lookup wait for.
NO_DNS = {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}


def job_pods(workload: Workload) -> list[Manifest]:
    """All pods of one attempt, the evaluator's first."""
    if workload.placement is Placement.COLOCATED:
        return [colocated_pod(workload)]
    return [evaluator_pod(workload)] + [host_pod(workload, n) for n in range(workload.hosts)]


def evaluator_pod(workload: Workload) -> Manifest:
    images, resources = workload.options.images, workload.options.resources
    return _evaluating_pod(workload, image=images.tasks, resources=resources.evaluator, user_env=[])


def colocated_pod(workload: Workload) -> Manifest:
    """Evaluator and Gym in one container: what the user lists in `envSecrets` is in it too."""
    images, resources = workload.options.images, workload.options.resources
    return _evaluating_pod(
        workload,
        image=images.gym_tasks,
        resources=resources.gym_tasks,
        user_env=_user_env(workload),
    )


def host_pod(workload: Workload, ordinal: int) -> Manifest:
    """The sandbox: the gate proves its network before any code of an environment runs."""
    plan = pod_rules.variable(HOST_PLAN_ENV, plans.host_plan(workload, ordinal).model_dump_json())
    resources = workload.options.resources.gym_host
    tokens = mount(TOKENS_VOLUME, TOKENS_DIR, read_only=True)
    gate = podspec.container(
        workload.options,
        CONTAINER_GATE,
        image=workload.options.images.gym_host,
        module=HOST_MODULE,
        command="gate",
        resources=workload.options.resources.gate,
        env=[plan, podspec.node_addresses()],
        mounts=[mount("tmp", "/tmp"), tokens],
        log_speaks=True,
    )
    host = podspec.container(
        workload.options,
        CONTAINER_HOST,
        image=workload.options.images.gym_host,
        module=HOST_MODULE,
        command="serve",
        resources=resources,
        env=[*_user_env(workload), plan],
        mounts=[mount("tmp", "/tmp"), mount("work", WORK_DIR), mount("environment", ENVIRONMENT_DIR), tokens],
        ports=[HOST_PORT],
    )
    pod = podspec.pod(
        workload,
        names.host_pod_name(workload.name, ordinal, workload.attempt),
        Role.GYM_HOST,
        init_containers=[gate],
        containers=[host],
        volumes=[
            scratch("tmp", resources),
            scratch("work", resources),
            scratch("environment", resources),
            secret_volume(TOKENS_VOLUME, secrets.host_secret_name(workload, ordinal)),
        ],
        runtimeClassName=workload.runtime_class_name,
        **NO_DNS,
        **_apart(workload),
    )
    pod["metadata"]["labels"][ORDINAL_LABEL] = str(ordinal)
    return pod


def _apart(workload: Workload) -> Manifest:
    """Hosts of one job stand on different nodes where that is possible, so that a lost node costs few of them."""
    if workload.hosts == 1:
        return {}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(workload.uid, Role.GYM_HOST)},
    }
    return {"topologySpreadConstraints": [constraint]}


def outcome_pod(workload: Workload) -> Manifest:
    """Reads from the claim how the attempt's evaluator ended, for an operator that did not see it. It asks nobody
    anything, holds no key and changes nothing."""
    plan = OutcomePlan(uid=workload.uid, attempt=workload.attempt)
    stage = workload.options.resources.stage
    resources = {kind: {EPHEMERAL_STORAGE: size} | stage.get(kind, {}) for kind, size in _READERS_DISK.items()}
    read = podspec.container(
        workload.options,
        CONTAINER_OUTCOME,
        image=workload.options.images.tasks,
        module=podspec.EVALUATOR_MODULE,
        command="outcome",
        resources=resources,
        env=[pod_rules.variable(OUTCOME_PLAN_ENV, plan.model_dump_json())],
        mounts=[mount("tmp", "/tmp"), mount("results", RESULTS_DIR, read_only=True)],
        log_speaks=True,
    )
    return podspec.pod(
        workload,
        names.outcome_pod_name(workload.name, workload.attempt),
        Role.OUTCOME_READER,
        containers=[read],
        volumes=[scratch("tmp", resources), _results_volume(workload, resources)],
        **NO_DNS,
    )


def _evaluating_pod(workload: Workload, *, image: str, resources: Manifest, user_env: list[Manifest]) -> Manifest:
    plan = pod_rules.variable(EVALUATOR_PLAN_ENV, plans.evaluator_plan(workload).model_dump_json())
    volumes = [
        scratch("tmp", resources),
        scratch("work", resources),
        _results_volume(workload, resources),
        secret_volume(TOKENS_VOLUME, secrets.evaluator_secret_name(workload)),
    ]
    mounts = [
        mount("tmp", "/tmp"),
        mount("work", WORK_DIR),
        mount("results", RESULTS_DIR),
        mount(TOKENS_VOLUME, TOKENS_DIR, read_only=True),
    ]
    store = plans.object_store(workload)
    for volume, key_mount in [*_model_files(workload), *(store.volumes(OBJECT_STORE_DIR) if store else ())]:
        volumes.append(volume)
        mounts.append(key_mount)
    dataset = _dataset_volume(workload, resources)
    if dataset:
        volumes += [dataset] if dataset not in volumes else []
        mounts.append(mount(dataset["name"], DATASET_DIR, read_only=True))
    stages = []
    if workload.environment:
        stages.append(staging.environment(workload, workload.environment))
    if isinstance(workload.dataset, StagedFiles):
        stages.append(staging.dataset(workload, workload.dataset))
    for stage in stages:
        volumes += stage.volumes
        mounts.append(stage.result)
    evaluate = podspec.container(
        workload.options,
        CONTAINER_EVALUATE,
        image=image,
        module=podspec.EVALUATOR_MODULE,
        command="run",
        resources=resources,
        env=[*user_env, plan],
        mounts=mounts,
        ports=[EVALUATOR_PORT],
        again=workload.restarts,
    )
    return podspec.pod(
        workload,
        names.evaluator_pod_name(workload.name, workload.attempt, workload.placement),
        names.evaluator_role(workload.placement),
        init_containers=[stage.container for stage in stages],
        containers=[evaluate],
        volumes=volumes,
    )


def _user_env(workload: Workload) -> list[Manifest]:
    """What the user put into `envSecrets`. It stands before our own variables: the last one wins."""
    secrets_of_user = workload.spec.target.gym.env_secrets
    return [
        podspec.secret(name, source.secret_key_ref.name, source.secret_key_ref.key)
        for name, source in sorted(secrets_of_user.items())
    ]


def _results_volume(workload: Workload, resources: Manifest) -> Manifest:
    claim = storage.results_claim_name(workload)
    if claim is None:
        return scratch("results", resources)
    return {"name": "results", "persistentVolumeClaim": {"claimName": claim}}


def _dataset_volume(workload: Workload, resources: Manifest) -> Manifest | None:
    """What holds the dataset; None for one that is in the image, or staged. A claim that takes the results too is one
    volume: a driver need not mount it twice, once for reading and once for writing."""
    if isinstance(workload.dataset, ConfigMapFiles):
        return {"name": "dataset", "configMap": workload.dataset.volume()}
    claim = workload.spec.tasks.source.persistent_volume_claim
    if claim is None:
        return None
    if claim.claim_name == storage.results_claim_name(workload):
        return _results_volume(workload, resources)
    return {"name": "dataset", "persistentVolumeClaim": {"claimName": claim.claim_name, "readOnly": True}}


def _model_files(workload: Workload) -> list[tuple[Manifest, Manifest]]:
    """Volume and mount per model's key and certificates. A volume each: two models may share a Secret, and a model's
    name need not be a volume's."""
    pairs = []
    for index, model in enumerate(workload.spec.models):
        if model.api_key is not None:
            source = model.api_key.secret_key_ref
            volume = secret_volume(f"model-key-{index}", source.name)
            volume["secret"]["items"] = [{"key": source.key, "path": MODEL_KEY_FILE}]
            pairs.append((volume, mount(volume["name"], f"{MODEL_KEYS_DIR}/{model.name}", read_only=True)))
        for name, body in key_volumes({}, workload.options.authorities(model.certificates)):
            volume = {"name": f"model-{name}-{index}", **body}
            pairs.append((volume, mount(volume["name"], f"{MODEL_CERTIFICATES_DIR}/{model.name}", read_only=True)))
    return pairs
