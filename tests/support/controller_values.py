"""Values that the controller's tests are made of: a job, its pods as the kubelet reports them, settings."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from nhx_gym_operator.api.conditions import RunReason
from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.api.job import AgentEvalJob
from nhx_gym_operator.api.outcome import encode_outcome
from nhx_gym_operator.api.wire.endpoints import Progress, Stage
from nhx_gym_operator.api.wire.reports import Outcome
from nhx_gym_operator.controller.inputs import Inputs
from nhx_gym_operator.controller.observation import Decision, Observation
from nhx_gym_operator.controller.settings import Installation, Settings
from nhx_gym_operator.workloads import network, pods, storage
from nhx_gym_operator.workloads.workload import ApiAddresses, Workload

Manifest = dict[str, Any]

KEY = b"k" * 32
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
CREATED = "2026-11-29T11:59:00Z"
API = ApiAddresses(service=("10.96.0.1", 443), server=("192.0.2.1", 6443))
SERVICE_IP = "10.96.7.7"


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def settings(**changes: Any) -> Settings:
    images = {"tasks": "reg/nhx-tasks:1", "gymHost": "reg/nhx-gym-host:1", "gymTasks": "reg/nhx-gym-tasks:1"}
    return Settings.model_validate({"images": {**images, **changes.pop("images", {})}, **changes})


def installation(**changes: Any) -> Installation:
    return Installation(settings=settings(**changes), key=KEY, api=API)


def spec(**changes: Any) -> Manifest:
    return {
        "tasks": {"dataset": {"bundled": "resources_servers/mcqa/data/example.jsonl"}},
        "target": {
            "gym": {
                "agent": "simple_agent",
                "agentConfig": "responses_api_agents/simple_agent/configs/simple_agent.yaml",
                "agentRefName": "mcqa_simple_agent",
                "resourcesServer": "mcqa",
                "numRepeats": 2,
                **changes.pop("gym", {}),
            }
        },
        "models": [
            {
                "name": "policy",
                "baseUrl": "http://model:8000/v1",
                "model": "org/Name-3.2",
                "apiKey": {"secretKeyRef": {"name": "model", "key": "k"}},
            }
        ],
        "results": {"persistentVolumeClaim": {"size": "1Gi"}},
        **changes,
    }


def job(
    name: str = "mcqa", status: Manifest | None = None, metadata: Manifest | None = None, **changes: Any
) -> AgentEvalJob:
    return AgentEvalJob.model_validate(
        {
            "metadata": {"name": name, "namespace": "team", "uid": UID, "generation": 1, **(metadata or {})},
            "spec": spec(**changes),
            "status": status or {},
        }
    )


def workload(owner: AgentEvalJob | None = None, **changes: Any) -> Workload:
    owner = owner or job()
    values: dict[str, Any] = {
        "name": owner.metadata.name,
        "namespace": owner.metadata.namespace,
        "uid": owner.metadata.uid,
        "spec": owner.spec,
        "options": settings(),
        "key": KEY,
        "placement": Placement.SANDBOXED,
        "runtime_class_name": "gvisor",
        "cluster_ip": SERVICE_IP,
        "api": API,
    }
    return Workload(**(values | changes))


def accepted_status(**changes: Any) -> Manifest:
    """The status of a sandboxed job whose first attempt has pods."""
    return {
        "placement": "Sandboxed",
        "isolation": "Kernel",
        "runtimeClassName": "gvisor",
        "startTime": CREATED,
        "attempt": 1,
        "conditions": [
            condition("Accepted", True, "Accepted"),
            condition("SandboxReady", False, "GateChecking"),
            condition("Running", False, "PodsCreated"),
        ],
        **changes,
    }


def condition(kind: str, holds: bool, reason: str, since: str = CREATED, message: str = "") -> Manifest:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
        "observedGeneration": 1,
    }


def live(manifest: Manifest, **metadata: Any) -> Manifest:
    """A manifest as the API server returns it."""
    name = manifest["metadata"]["name"]
    extra = {"uid": f"uid-of-{name}", "resourceVersion": "1", "creationTimestamp": CREATED, **metadata}
    return {**manifest, "metadata": {**manifest["metadata"], **extra}}


def live_service(of: Workload) -> Manifest:
    service = live(network.evaluator_service(of))
    service["spec"] = {**service["spec"], "clusterIP": SERVICE_IP, "sessionAffinity": "None"}
    return service


def evaluator(of: Workload, **changes: Any) -> Manifest:
    build = pods.evaluator_pod if of.placement is Placement.SANDBOXED else pods.colocated_pod
    return with_status(live(build(of)), **changes)


def host(of: Workload, ordinal: int = 0, **changes: Any) -> Manifest:
    return with_status(live(pods.host_pod(of, ordinal)), **changes)


def with_status(
    pod: Manifest,
    *,
    states: dict[str, Manifest] | None = None,
    phase: str = "Pending",
    ip: str | None = None,
    deleted: bool = False,
    **status: Any,
) -> Manifest:
    """`states` maps container names to their state."""
    init = {container["name"] for container in pod["spec"].get("initContainers", ())}
    reported: dict[str, list[Manifest]] = {"initContainerStatuses": [], "containerStatuses": []}
    for name, state in (states or {}).items():
        kind = "initContainerStatuses" if name in init else "containerStatuses"
        reported[kind].append({"name": name, "state": state, "imageID": f"reg/{name}@sha256:{'0' * 8}"})
    pod["status"] = {"phase": phase, **{k: v for k, v in reported.items() if v}, **status}
    if ip:
        pod["status"]["podIP"] = ip
    if deleted:
        pod["metadata"]["deletionTimestamp"] = CREATED
    return pod


def running() -> Manifest:
    return {"running": {"startedAt": CREATED}}


def ended(code: int = 0, message: str = "", at: str = CREATED, reason: str = "Completed") -> Manifest:
    return {"terminated": {"exitCode": code, "message": message, "finishedAt": at, "reason": reason}}


def waiting(reason: str, message: str = "") -> Manifest:
    return {"waiting": {"reason": reason, "message": message}}


def progress(stage: Stage = Stage.COLLECTING, **changes: Any) -> Progress:
    return Progress(**{"stage": stage, "attempt": 1, "total": 10, "hosts": 1, "hosts_ready": 1} | changes)


def outcome(state: str = "Complete", **changes: Any) -> Outcome:
    done = changes.pop("done", 10)
    values: dict[str, Any] = {
        "state": state,
        "progress": progress(Stage.DONE, done=done, failed=10 - done),
        "coverage": done / 10,
        "results_path": "attempt-1",
    }
    return Outcome(**(values | changes))


def finished_evaluator(of: Workload, result: Outcome, at: str = CREATED, code: int = 0) -> Manifest:
    state = ended(code, encode_outcome(result).decode(), at)
    return evaluator(of, states={"agent-evaluate": state}, phase="Succeeded" if code == 0 else "Failed")


def observe(owner: AgentEvalJob | None = None, of: Workload | None = None, **changes: Any) -> Observation:
    """An observation in which everything of a running sandboxed job is there, apart from `changes`."""
    owner = owner or job(status=accepted_status())
    of = of or workload(owner)
    claim = storage.own_claim(of)
    sandboxed = of.placement is Placement.SANDBOXED
    values: dict[str, Any] = {
        "job": owner,
        "installation": installation(),
        "service": live_service(of) if sandboxed else None,
        "policies": tuple(live(policy) for policy in network.network_policies(of)),
        "claim": live(claim) if claim else None,
        "pods": (evaluator(of), host(of)) if sandboxed else (evaluator(of),),
    }
    return Observation(**(values | changes))


def new(owner: AgentEvalJob | None = None, **changes: Any) -> Observation:
    """The observation of a job that was just applied, with the RuntimeClass there."""
    values: dict[str, Any] = {
        "job": owner or job(),
        "installation": installation(),
        "runtime_class": True,
        "inputs": Inputs(),
    }
    return Observation(**(values | changes))


def condition_of(decision: Decision, kind: str) -> Manifest | None:
    return next((entry for entry in decision.status.get("conditions", ()) if entry["type"] == kind), None)


def holds(decision: Decision, kind: str) -> bool:
    entry = condition_of(decision, kind)
    return entry is not None and entry["status"] == "True"


def kinds(decision: Decision) -> list[str]:
    """What a decision does, in short: `Apply Service`, `CreateTogether mcqa-evaluator-1 …`."""
    shown = []
    for action in decision.actions:
        name = type(action).__name__
        if hasattr(action, "manifests"):
            shown.append(" ".join([name, *(entry["metadata"]["name"] for entry in action.manifests)]))
        elif hasattr(action, "manifest"):
            shown.append(f"{name} {action.manifest['kind']} {action.manifest['metadata']['name']}")
        else:
            shown.append(f"{name} {action.name}")
    return shown


def plan_of(pod: Manifest, container: str, variable: str) -> Manifest:
    for entry in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
        if entry["name"] == container:
            pair = next(pair for pair in entry["env"] if pair["name"] == variable)
            return json.loads(pair["value"].replace("$$", "$"))
    raise KeyError(container)


STARTED_PODS = (
    evaluator(workload(), states={"agent-evaluate": running()}, phase="Running"),
    host(workload(), states={"gym-host": running()}, phase="Running"),
)
TOLD_TO_END = outcome("Failed", done=4, reason=RunReason.EVALUATOR_LOST, message="told to end")
"""The last word of an evaluator that is taken down in the middle of its run."""


def started_again(of: Workload, state: Manifest, restarts: int, *, phase: str = "Running") -> Manifest:
    """An evaluator's pod whose container the kubelet has started again so often, or is about to."""
    pod = evaluator(of, states={"agent-evaluate": state}, phase=phase, ip="192.0.2.7")
    last = ended(137, reason="OOMKilled") if restarts or "waiting" in state else {}
    pod["status"]["containerStatuses"][0] |= {"restartCount": restarts, "lastState": last}
    return pod
