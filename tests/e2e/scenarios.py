"""The stories that are played on the cluster. The slowest come first, since they decide when all is done."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chaos import node
from devcluster.images.building import reference
from devcluster.settings import NODE_IP
from e2e import bundled, manifests, runs, sdk_alone
from e2e.inspection import Inside, look_into
from e2e.installations import COLOCATED, GVISOR, OPEN_NETWORK, RUNC
from e2e.manifests import FLAKY_PORT, JUDGE_PORT, REFUSING_PORT, REPEATS, SLOW_PORT, SLOW_SECONDS, WATCHED_PORT
from e2e.runs import Run, tree_of
from e2e.sdk_alone import SdkRun
from e2e.stage import idle_scenario, nightly, scenario
from e2e.world import World
from nhx_gym_operator.api.constants import CONTAINER_EVALUATE
from support import cluster
from support.cluster import ROOT, CommandError, Object
from support.job_watch import condition, is_true, phase
from support.report import pods_of
from support.s3_server import s3_server

STATUS_SECONDS = 60
"""How soon a status must say what is the matter."""
TWO_HOSTS_REPEATS = 8
LIMIT = 5
"""Tasks of a job that wants no more of them."""
START_SECONDS = 600
"""Until the first rollouts: the sandbox is measured before, and two other Gyms start on the same two cores."""
_ROWS_OF_MCQA = ["cat", f"/opt/nhx/datasets/{manifests.MCQA_ROWS}"]
PIECES = "pods,services,endpointslices,secrets,configmaps,persistentvolumeclaims,networkpolicies,serviceaccounts,roles"


@scenario
def mcqa_gvisor(world: World) -> Run:
    """Slow answers leave time for a look into the running sandbox."""
    job = manifests.mcqa_job(GVISOR.jobs, "mcqa", port=SLOW_PORT, concurrency=1)
    cluster.apply(job)
    running = _until_running(world, job)
    uid = running["metadata"]["uid"]
    pods = {pod["metadata"]["labels"]["evals.nhx.io/role"]: pod for pod in pods_of(GVISOR.jobs, uid)}
    facts = look_into(pods["gym-host"], pods["evaluator"], world.model_key)
    facts["service"] = cluster.get("service", "mcqa", GVISOR.jobs)
    return runs.succeeded(world, job, **facts)


@scenario
def replaced_children(world: World) -> Run:
    """Every child is deleted by hand in the middle of a run, one after the other: the pods last."""
    job = manifests.mcqa_job(RUNC.jobs, "replaced", port=WATCHED_PORT, concurrency=1)
    cluster.apply(job)
    running = _until_running(world, job)
    uid = running["metadata"]["uid"]
    listening = Inside(_pod(uid, "gym-host"), "gym-host", RUNC.jobs).listening()
    came_back = {kind: _replace(kind, uid) for kind in ("networkpolicies", "services")}
    secrets = _delete_all("secrets", uid)
    _until(world, job, lambda state: _recorded(state) >= 2, "two recorded rollouts")
    evaluator = _pod(uid, "evaluator")
    cluster.delete("pod", evaluator, RUNC.jobs, wait=False)
    again = _until(world, job, lambda state: _attempt(state) == 2 and _running(state), "a running second attempt")
    host = _pod(uid, "gym-host")
    cluster.delete("pod", host, RUNC.jobs, wait=False)
    run = runs.succeeded(world, job, came_back=came_back, **{"rollouts before": _recorded(again)})
    came_back["secrets"] = [name for name in secrets if cluster.find("secret", name, RUNC.jobs)]
    facts = run.facts | {
        "secrets": secrets,
        "listening": listening,
        "journal": _read_claim(RUNC.jobs, "replaced-results", "cat journal.jsonl"),
        "calls": json.loads(_from_model_server(WATCHED_PORT, "stats"))["by_row"],
    }
    cluster.delete("aej", "replaced", RUNC.jobs)
    return Run(run.job, run.states, run.pods, run.logs, run.bundle, facts | {"left": _left(RUNC.jobs, uid)})


@scenario
def evaluator_killed(world: World) -> Run:
    """In the middle of its run, with its host beside it."""
    return _evaluator_killed(world, manifests.mcqa_job(RUNC.jobs, "killed", port=SLOW_PORT, concurrency=1), "evaluator")


@nightly
@scenario
def evaluator_killed_colocated(world: World) -> Run:
    """With Gym in it, and what it recorded on an emptyDir."""
    job = manifests.mcqa_job(COLOCATED.jobs, "killed", port=SLOW_PORT, concurrency=1)
    job["spec"]["results"] = {"emptyDir": {}}
    return _evaluator_killed(world, job, "colocated")


def _evaluator_killed(world: World, job: Object, role: str) -> Run:
    """Its container's first process, and with it all others of the container."""
    cluster.apply(job)
    midway = _until(world, job, lambda state: _recorded(state) >= 2, "two recorded rollouts")
    namespace, _ = runs.key_of(job)
    pods = {
        pod["metadata"]["labels"]["evals.nhx.io/role"]: pod for pod in pods_of(namespace, midway["metadata"]["uid"])
    }
    node.kill(node.process_of(pods[role], CONTAINER_EVALUATE))
    since = time.monotonic()
    named = _until(world, job, _is_restarting, "the reason EvaluatorRestarting", STATUS_SECONDS)
    seconds = time.monotonic() - since
    facts = {"before": [pod["metadata"]["uid"] for pod in pods.values()], "named": condition(named, "Running")}
    run = runs.succeeded(world, job, **facts, seconds=seconds, **{"rollouts before": _recorded(midway)})
    journal = _read_claim(namespace, "killed-results", "cat journal.jsonl") if run.bundle else ""
    return replace(run, facts=run.facts | {"journal": journal})


def _is_restarting(state: Object) -> bool:
    return condition(state, "Running").get("reason") == "EvaluatorRestarting"


@scenario
def two_hosts(world: World) -> Run:
    """One of two hosts is deleted by hand in the middle of a run. Alone, the first to be ready would take minutes."""
    job = manifests.mcqa_job(RUNC.jobs, "two-hosts", port=SLOW_PORT, concurrency=2, numRepeats=TWO_HOSTS_REPEATS)
    job["spec"]["hosts"] = 2
    cluster.apply(job)
    both = _until(world, job, lambda state: _hosts(state) == "2/2" and _recorded(state) >= 2, "two hosts at work")
    name, uid = "two-hosts-host-1-1", both["metadata"]["uid"]
    before = _uids("pods", uid)
    cluster.delete("pod", name, RUNC.jobs, wait=False)
    run = runs.succeeded(world, job, before=before, deleted=name, **{"rollouts before": _recorded(both)})
    journal = _read_claim(RUNC.jobs, "two-hosts-results", "cat journal.jsonl")
    facts = run.facts | {"after": _uids("pods", uid), "journal": journal}
    return Run(run.job, run.states, run.pods, run.logs, run.bundle, facts)


@nightly
@scenario
def object_store(world: World) -> Run:
    """The bundle goes to a bucket of a real server, the journal to a claim that is to stay when the job is deleted: it
    is read by the deleted job's name. Another job then asks for that claim."""
    namespace, name = COLOCATED.jobs, "uploaded"
    with s3_server(world.directory / "s3", host=NODE_IP) as server:
        bucket = server.bucket("results")
        job = manifests.mcqa_job(namespace, name)
        claim = {"size": "64Mi", "retention": "Retain"}
        store = manifests.bucket(server, "results", "evals")
        job["spec"]["results"] = {"persistentVolumeClaim": claim, "objectStore": store}
        cluster.apply(manifests.bucket_secret(namespace, server), job)
        run = runs.succeeded(world, job)
        uid = run.job["metadata"]["uid"]
        found = tree_of(bucket / "evals" / run.status["results"]["path"])
        cluster.delete("aej", name, namespace)
        stays = f"PersistentVolumeClaim/{name}-results-{uid[:8]}"
        left = _left(namespace, uid, {stays})
    deleted = [name, f"--namespace={namespace}"]
    remains = {"logs": runs.nhx(world, "logs", *deleted), "host's": runs.nhx(world, "logs", *deleted, "--role=host")}
    runs.nhx(world, "download", *deleted, str(world.directory / "remains"))
    another = manifests.mcqa_job(namespace, "uploaded-again")
    another["spec"]["results"] = {"persistentVolumeClaim": {"claimName": stays.partition("/")[2]}}
    cluster.apply(another)
    facts = {"bucket": found, "left": left, "stays": stays, "secret": server.secret_access_key}
    facts |= {"remains": remains, "kept": tree_of(world.directory / "remains")}
    facts["another"] = runs.failed(world, another).job
    return Run(run.job, run.states, run.pods, run.logs, run.bundle, facts)


@scenario
def mcqa_runc(world: World) -> Run:
    """Submitted by the plugin, from a manifest."""
    job = manifests.mcqa_job(RUNC.jobs, "mcqa")
    file = world.directory / "mcqa.json"
    file.write_text(json.dumps(job))
    runs.nhx(world, "submit", str(file))
    return runs.succeeded(world, job)


@scenario
def real_model(world: World) -> Run:
    """The custom environment of `examples/`, with the small real model, in a sandbox with a kernel of its own."""
    example = manifests.wordcheck(GVISOR.jobs)
    cluster.apply(*example.inputs())
    job = example.job("wordcheck", manifests.demo_model(), repeats=1)
    cluster.apply(job)
    return runs.succeeded(world, job)


@scenario
def mcqa_colocated(world: World) -> Run:
    """Submitted by the plugin, from flags and a row file of this machine, and watched by it to the end."""
    job = manifests.mcqa_job(COLOCATED.jobs, "mcqa")
    rows = world.directory / "rows.jsonl"
    rows.write_text(_file_of_the_image(f"/opt/nhx/datasets/{manifests.MCQA_ROWS}"))
    runs.nhx(world, "submit", *manifests.as_flags(job, rows))
    watched = runs.nhx(world, "watch", "mcqa", f"--namespace={COLOCATED.jobs}", "--output=json")
    return runs.succeeded(world, job, watched=[json.loads(line) for line in watched.splitlines()])


@scenario
def sdk_run(world: World) -> SdkRun:
    """The same rows by the SDK's own runner."""
    return sdk_alone.run("sdk-reference", REPEATS, seconds=runs.RUN_SECONDS)


@dataclass(frozen=True)
class Answer:
    """Of a model server, or of the gateway before it."""

    status: int
    type: str
    body: bytes


@idle_scenario
def golden_answers(world: World) -> dict[str, tuple[Answer, Answer]]:
    """What a real model server answers directly and through the gateway, by the request's name. It is one of its own,
    beside the asker: another's requests at the same time would change the last digits of what it computes."""
    name, namespace, script = "gateway-reference", COLOCATED.jobs, ROOT / "tests/e2e/gateway_reference.py"
    arguments = [f"/script/{script.name}", "http://127.0.0.1:8000/v1", manifests.demo_model()["model"]]
    asker = manifests.container("asker", reference("nhx-tasks"), args=["python", *arguments])
    asker["volumeMounts"].append({"name": "script", "mountPath": "/script", "readOnly": True})
    server = manifests.container("demo-model", reference("demo-model"), memory="1Gi") | {"restartPolicy": "Always"}
    environment = {"THREADS": "1", "SLOTS": "1", "CHAT_TEMPLATE": manifests.THINKING_TEMPLATE}
    server["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    pod = manifests.restricted_pod(namespace, name, [asker], [{"name": "script", "configMap": {"name": name}}])
    pod["spec"]["initContainers"] = [server]
    cluster.apply(manifests.config_map(namespace, name, {script.name: script.read_text()}), pod)
    log = cluster.log_when_done(name, namespace, seconds=runs.RUN_SECONDS)
    found = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return {each["name"]: (_answer(each["direct"]), _answer(each["through"])) for each in found}


def _answer(said: dict[str, Any]) -> Answer:
    return Answer(said["status"], said["type"], base64.b64decode(said["body"]))


IMPORTED = {
    "nhx-tasks": "nhx_gym_operator.evaluator.__main__",
    "nhx-gym-host": "nhx_gym_operator.gym_host.__main__",
    "nhx-gym-tasks": "nhx_gym_operator.evaluator.__main__",
    "nhx-gym-operator": "nhx_gym_operator.controller.__main__",
    "demo-model": "xllamacpp",
}
"""What the program of each image begins with."""


@nightly
@idle_scenario
def inside_images(world: World) -> dict[str, Object]:
    """What is in each image, as it says itself to a user that it does not know."""
    namespace, script = COLOCATED.jobs, ROOT / "tests/e2e/image_facts.py"
    cluster.apply(manifests.config_map(namespace, "image-facts", {script.name: script.read_text()}))
    for name, module in IMPORTED.items():
        args = ["python", f"/script/{script.name}", module]
        asked = manifests.container("facts", reference(name), args=args, memory="1Gi")
        asked["volumeMounts"].append({"name": "script", "mountPath": "/script", "readOnly": True})
        volume = {"name": "script", "configMap": {"name": "image-facts"}}
        pod = manifests.restricted_pod(namespace, f"in-{name}", [asked], [volume])
        pod["spec"]["securityContext"] |= {"runAsUser": sdk_alone.ANY_USER, "runAsGroup": 0}
        cluster.apply(pod)
    logs = {name: cluster.log_when_done(f"in-{name}", namespace, seconds=runs.RUN_SECONDS) for name in IMPORTED}
    return {name: json.loads(log.splitlines()[-1]) for name, log in logs.items()}


@nightly
@scenario
def run_locally(world: World) -> dict[str, float]:
    """`examples/submit` on one machine: what it prints."""
    return _printed_scores(sdk_alone.run_example("run-locally", seconds=runs.RUN_SECONDS))


@nightly
@scenario
def submitted_runner(world: World) -> dict[str, float]:
    """The same runner, submitted to the cluster by the example's other script."""
    rows = world.directory / "mcqa-rows.jsonl"
    rows.write_text(cluster.execute("scripted", "instant", manifests.MODELS_NAMESPACE, _ROWS_OF_MCQA).stdout)
    model = manifests.scripted_model()
    printed = cluster.run(
        [
            sys.executable, "examples/submit/submit.py", str(rows), f"--namespace={RUNC.jobs}",
            f"--base-url={model['baseUrl']}", f"--model={model['model']}",
        ],
        timeout=runs.RUN_SECONDS,
        extra={"PYTHONPATH": str(ROOT / "operator")},
    )  # fmt: skip
    return _printed_scores(printed)


def _printed_scores(text: str) -> dict[str, float]:
    found = re.findall(r"^((?:gym_reward|runner\.gym)\.\S+): (\S+)$", text, re.MULTILINE)
    if not found:
        raise AssertionError(f"no scores were printed:\n{text[-6000:]}")
    return {name: float(value) for name, value in found}


@scenario
def missing_inputs(world: World) -> Run:
    """A job comes before everything that it names; each thing is made when the status has asked for it by name. It
    wants the first rows of those that there are."""
    example = manifests.wordcheck(RUNC.jobs)
    job = example.job("waiting", manifests.scripted_model(), repeats=1)
    job["spec"]["tasks"]["limit"] = LIMIT
    secret = manifests.key_secret(RUNC.jobs, world.model_key, "late-key")
    job["spec"]["models"][0]["apiKey"]["secretKeyRef"]["name"] = "late-key"
    cluster.apply(job)
    asked, explained = {}, {}
    for late in (*example.inputs(), secret):
        kind, name = late["kind"], late["metadata"]["name"]
        state = _until(world, job, partial(_complaint, kind, name), f"ask for {kind} {name}", STATUS_SECONDS)
        asked[f"{kind} {name}"] = _complaint(kind, name, state)
        explained[f"{kind} {name}"] = runs.nhx_json(world, "explain", job)
        cluster.apply(late)
    return runs.succeeded(world, job, asked=asked, explained=explained)


@nightly
@scenario
def rows_on_claim(world: World) -> Run:
    """mcqa's rows as an office program saves them, the first of them twice, on a claim. Gym's default model type."""
    saved = r"(printf '\357\273\277'; cat {rows}; echo; head -n 1 {rows}) | sed 's/$/\r/' > sets/rows.jsonl"
    _fill_claim(RUNC.jobs, "rows", "mkdir sets && " + saved.format(rows=f"/opt/nhx/datasets/{manifests.MCQA_ROWS}"))
    job = manifests.mcqa_job(RUNC.jobs, "rows-on-claim")
    del job["spec"]["target"]["gym"]["modelType"]
    job["spec"]["tasks"] = {"dataset": {"persistentVolumeClaim": {"claimName": "rows", "path": "sets/rows.jsonl"}}}
    cluster.apply(job)
    run = runs.succeeded(world, job)
    events = _events(RUNC.jobs, "rows-on-claim")
    return Run(run.job, run.states, run.pods, run.logs, run.bundle, {"events": events})


MANY_ROWS = 500
_MAKE_ROWS = f"""
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
for number in range({MANY_ROWS}):
    print(json.dumps(rows[number % len(rows)] | {{"uuid": str(number)}}))
"""


@nightly
@scenario
def many_rows(world: World) -> Run:
    """mcqa's five questions a hundred times, each time another row."""
    make = f"python -c '{_MAKE_ROWS}' /opt/nhx/datasets/{manifests.MCQA_ROWS} > rows.jsonl"
    _fill_claim(RUNC.jobs, "many-rows", make)
    job = manifests.mcqa_job(RUNC.jobs, "many-rows", numRepeats=1)
    job["spec"]["tasks"] = {"dataset": {"persistentVolumeClaim": {"claimName": "many-rows", "path": "rows.jsonl"}}}
    cluster.apply(job)
    return runs.succeeded(world, job)


STORED_TASKS = """
import sys
from nhx_evals_sdk.agent_eval.runtimes.gym import discover_gym_tasks
for task in discover_gym_tasks(sys.argv[1]):
    print(task.model_dump_json())
"""


@nightly
@scenario
def out_of_tokens(world: World) -> Run:
    """Four stored tasks out of five, and tokens for the first call."""
    store = f"python -c '{STORED_TASKS}' /opt/nhx/datasets/{manifests.MCQA_ROWS}"
    printed = _fill_claim(RUNC.jobs, "tasks", f"{store} | tee tasks.jsonl").splitlines()
    ids = [json.loads(line)["id"] for line in printed if line.startswith("{")]
    job = manifests.mcqa_job(RUNC.jobs, "out-of-tokens", concurrency=1)
    job["spec"]["tasks"] = {
        "taskset": {"persistentVolumeClaim": {"claimName": "tasks", "path": "tasks.jsonl"}},
        "taskIds": ids[:4],
    }
    job["spec"]["limits"] = {"tokens": 1}
    cluster.apply(job)
    return runs.failed(world, job)


@scenario
def inference_provider(world: World) -> Run:
    """Submitted by the plugin, from a spec file. Gym's default model type: the field is left out. The results lie in an
    emptyDir, from where they are saved while the evaluator is there; slow answers leave the time. The agent is bound by
    hand."""
    by_hand = manifests.BOUND_BY_HAND
    job = manifests.mcqa_job(RUNC.jobs, "inference-provider", port=SLOW_PORT, concurrency=2, **by_hand)
    for left_out in ("modelType", "agentRefName"):
        del job["spec"]["target"]["gym"][left_out]
    job["spec"]["results"] = {"emptyDir": {}}
    file = world.directory / "gym_agent_eval.json"
    file.write_text(json.dumps(manifests.as_spec_file(job)))
    rows, key = f"bundled:{manifests.MCQA_ROWS}", f"{manifests.KEY_SECRET}={manifests.KEY_SECRET}/api-key"
    beside = [f"--dataset={rows}", f"--secret={key}", "--results=none"]
    runs.nhx(world, "submit", str(file), *beside, f"--namespace={RUNC.jobs}", f"--name={job['metadata']['name']}")
    _until(world, job, lambda state: _recorded(state) >= 2, "two recorded rollouts")
    run = runs.succeeded(world, job, saved=runs.download(world, job), manifest=job)
    return Run(run.job, run.states, run.pods, run.logs, facts=run.facts | {"too late": _refused_download(world, job)})


@nightly
@scenario
def openai_model(world: World) -> Run:
    job = manifests.mcqa_job(COLOCATED.jobs, "openai-model", modelType="openai_model", **manifests.BOUND_BY_HAND)
    cluster.apply(job)
    return runs.succeeded(world, job)


@scenario
def cancelled(world: World) -> Run:
    """In the middle of its run."""
    job = manifests.mcqa_job(COLOCATED.jobs, "cancelled", port=SLOW_PORT, concurrency=1)
    cluster.apply(job)
    _until(world, job, lambda state: _recorded(state) >= 2, "two recorded rollouts")
    told = runs.nhx_json(world, "cancel", job, "--wait", "--timeout=120s")
    run = runs.cancelled(world, job, told=told)
    running = [pod for pod in run.pods if pod["status"]["phase"] == "Running"]
    return Run(run.job, run.states, run.pods, run.logs, run.bundle, run.facts | {"still running": running})


@nightly
@scenario
def suspended(world: World) -> Run:
    """In the middle of its run, and resumed."""
    job = manifests.mcqa_job(COLOCATED.jobs, "suspended", port=SLOW_PORT, concurrency=1)
    cluster.apply(job)
    _until(world, job, lambda state: _recorded(state) >= 2, "two recorded rollouts")
    _change(job, suspend=True)
    held = _until(world, job, lambda state: phase(state) == "Suspended", "the phase Suspended")
    pods = pods_of(COLOCATED.jobs, held["metadata"]["uid"])
    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    _change(job, suspend=False)
    run = runs.succeeded(world, job, **{"rollouts before": _recorded(held), "still running": running})
    return replace(
        run, facts=run.facts | {"journal": _read_claim(COLOCATED.jobs, "suspended-results", "cat journal.jsonl")}
    )


@nightly
@scenario
def retried(world: World) -> Run:
    """The model fails one call, which the gateway is not to repeat. A job that runs failed rollouts once more."""
    job = manifests.mcqa_job(RUNC.jobs, "retried", port=FLAKY_PORT)
    job["spec"]["models"][0]["maxRetries"] = 0
    job["spec"]["retryFailed"] = 1
    cluster.apply(job)
    run = runs.succeeded(world, job)
    journal = _read_claim(RUNC.jobs, "retried-results", "cat journal.jsonl")
    calls = json.loads(_from_model_server(FLAKY_PORT, "stats"))["by_row"]
    return replace(run, facts=run.facts | {"journal": journal, "calls": calls})


@nightly
@scenario
def refused_calls(world: World) -> Run:
    """One row, all of whose calls the model server refuses."""
    job = manifests.mcqa_job(COLOCATED.jobs, "refused-calls", port=REFUSING_PORT)
    job["spec"]["tasks"]["limit"] = 1
    cluster.apply(job)
    run = runs.failed(world, job)
    return replace(run, bundle=runs.download(world, job))


@nightly
@scenario
def refused_rows(world: World) -> Run:
    """Of five rows the model server does not understand one, and finds the prompt of another too long."""
    job = manifests.mcqa_job(COLOCATED.jobs, "refused-rows", port=REFUSING_PORT)
    job["spec"]["minCoverage"] = 0.5
    cluster.apply(job)
    return runs.succeeded(world, job)


@scenario
def judged_runc(world: World) -> Run:
    return _judged(world, RUNC.jobs)


@nightly
@scenario
def judged_colocated(world: World) -> Run:
    return _judged(world, COLOCATED.jobs)


def _judged(world: World, namespace: str) -> Run:
    """A job with a judge beside its policy, and what of its settings came to the judge's server."""
    job = manifests.judged_job(namespace, "judged")
    cluster.create(job)
    run = runs.succeeded(world, job)
    extras = json.loads(_from_model_server(JUDGE_PORT, "stats"))["extras"]
    return replace(run, facts=run.facts | {"marks": extras.get(manifests.marks_of(namespace))})


@nightly
@scenario
def tool_call(world: World) -> Run:
    job = bundled.BY_NAME["example_single_tool_call"].job(COLOCATED.jobs)
    cluster.apply(job)
    return runs.succeeded(world, job)


@scenario
def blackjack(world: World) -> Run:
    """Five identical rows."""
    job = bundled.BY_NAME["blackjack"].job(RUNC.jobs, numRepeats=REPEATS)
    cluster.apply(job)
    return runs.succeeded(world, job)


@nightly
@scenario
def failed_start(world: World) -> Run:
    """The resources server refuses its configuration: it ends while Gym starts."""
    return _failed_start(world, RUNC.jobs)


@nightly
@scenario
def failed_start_colocated(world: World) -> Run:
    return _failed_start(world, COLOCATED.jobs)


def _failed_start(world: World, namespace: str) -> Run:
    wrong = {"mcqa.resources_servers.mcqa.grading_mode": ["no mode"]}
    job = manifests.mcqa_job(namespace, "no-start", hydraParams=wrong)
    cluster.apply(job)
    run = runs.failed(world, job)
    return replace(run, facts={"log": _read_claim(namespace, "no-start-results", "cat attempt-1/gym_run/gym_env.log")})


@nightly
@scenario
def stubborn_child(world: World) -> Run:
    """A server of Gym leaves a process that ignores every signal but one."""
    example = manifests.stubborn(RUNC.jobs)
    cluster.apply(*example.inputs())
    job = example.job("stubborn", manifests.scripted_model(), repeats=1)
    job["spec"]["target"]["gym"] |= {"shutdownGraceSeconds": 12}
    cluster.apply(job)
    return runs.succeeded(world, job)


@nightly
@scenario
def another_reward(world: World) -> Run:
    job = bundled.MULTI_REWARD.job(RUNC.jobs, "another-reward", rewardKey="schema_valid")
    cluster.apply(job)
    return runs.succeeded(world, job)


@nightly
@scenario
def slow_start_colocated(world: World) -> Run:
    job = manifests.mcqa_job(COLOCATED.jobs, "impatient", startupTimeoutSeconds=3)
    cluster.apply(job)
    return runs.failed(world, job)


@nightly
@scenario
def slow_collection(world: World) -> Run:
    return _slow_collection(world, RUNC.jobs)


@nightly
@scenario
def slow_collection_colocated(world: World) -> Run:
    return _slow_collection(world, COLOCATED.jobs)


def _slow_collection(world: World, namespace: str) -> Run:
    """Ended at half of what twenty rollouts take, one after the other. Colocated, Gym's second process starts first."""
    limit = {"numRepeats": 4, "collectionTimeoutSeconds": SLOW_SECONDS * 10}
    job = manifests.mcqa_job(namespace, "slow", port=SLOW_PORT, concurrency=1, **limit)
    cluster.apply(job)
    return runs.failed(world, job)


@scenario
def startup_timeout(world: World) -> Run:
    """Gym takes half a minute to start under gVisor. Its logs are followed from before there are pods. The model's path
    is wrong, which is to be said before Gym is up."""
    job = manifests.mcqa_job(GVISOR.jobs, "impatient", startupTimeoutSeconds=5)
    (model,) = job["spec"]["models"]
    model["baseUrl"] = model["baseUrl"].replace("/v1", "/v2")
    cluster.apply(job)
    with ThreadPoolExecutor(1) as pool:
        followed = pool.submit(runs.nhx, world, "logs", "impatient", f"--namespace={GVISOR.jobs}", "--follow")
        run = runs.failed(world, job)
    facts = {"followed": followed.result()}
    facts |= {"nhx logs": _nhx_logs(world, job), "explained": runs.nhx_json(world, "explain", job)}
    return Run(run.job, run.states, run.pods, run.logs, facts=facts)


@idle_scenario
def open_network(world: World) -> Run:
    """The job's policies are there and a foreign one lets hosts out all the same."""
    job = manifests.mcqa_job(OPEN_NETWORK, "open")
    cluster.apply(job)
    run = runs.failed(world, job)
    return Run(run.job, run.states, run.pods, run.logs, facts={"nhx logs": _nhx_logs(world, job)})


@idle_scenario
def deleted_job(world: World) -> Object:
    """Deleted while its pods start. Returns what was there before and after."""
    job = manifests.mcqa_job(COLOCATED.jobs, "deleted")
    cluster.apply(job)
    starting = _until(world, job, lambda state: phase(state) == "Starting", "phase Starting", STATUS_SECONDS)
    uid = starting["metadata"]["uid"]
    before = _left(COLOCATED.jobs, uid)
    cluster.delete("aej", "deleted", COLOCATED.jobs)
    return {"before": before, "after": _left(COLOCATED.jobs, uid)}


@idle_scenario
def refused_environment(world: World) -> Run:
    example = manifests.wordcheck(COLOCATED.jobs)
    cluster.apply(*example.inputs())
    job = example.job("refused", manifests.scripted_model())
    cluster.apply(job)
    return _refused(world, job)


@idle_scenario
def refused_server(world: World) -> Run:
    """A resources server of NeMo Gym whose own dependencies the image does not hold."""
    job = manifests.mcqa_job(COLOCATED.jobs, "lacking", resourcesServer="instruction_following")
    cluster.apply(job)
    return _refused(world, job)


@idle_scenario
def deep_nesting(world: World) -> Run:
    """As text: Python's own writer stops long before the API server does."""
    job = manifests.mcqa_job(OPEN_NETWORK, "deep", hydraParams={"a": "in its place"})
    text = json.dumps(job).replace('"in its place"', '{"a":' * 4000 + "1" + "}" * 4000)
    cluster.kubectl("create", "--filename=-", stdin=text)
    run = _refused(world, job)
    cluster.delete("aej", "deep", OPEN_NETWORK)
    operators = cluster.listed("pods", GVISOR.namespace, {"app.kubernetes.io/name": "nhx-gym-operator"})
    restarts = [status["restartCount"] for pod in operators for status in pod["status"].get("containerStatuses", [])]
    return replace(run, facts=run.facts | {"operator restarts": restarts})


def _refused(world: World, job: Object) -> Run:
    """A refusal is a condition at once; whether it is final is its reason's affair."""
    state = _until(
        world, job, lambda state: condition(state, "Accepted").get("status") == "False", "a refusal", STATUS_SECONDS
    )
    namespace, name = runs.key_of(job)
    uid = state["metadata"]["uid"]
    facts = {"events": _events(namespace, name), "left": _left(namespace, uid)}
    return Run(state, world.watch.history(namespace, name), pods_of(namespace, uid), {}, facts=facts)


def _until(
    world: World, job: Object, holds: Callable[[Object], Any], what: str, seconds: float = START_SECONDS
) -> Object:
    namespace, name = runs.key_of(job)
    return world.watch.until(namespace, name, holds, what=what, timeout=seconds)


def _change(job: Object, **fields: Any) -> None:
    namespace, name = runs.key_of(job)
    patch = json.dumps({"spec": fields})
    cluster.kubectl("patch", "aej", name, f"--namespace={namespace}", "--type=merge", f"--patch={patch}")


def _until_running(world: World, job: Object) -> Object:
    return _until(world, job, _running, "condition Running")


def _running(state: Object) -> bool:
    return is_true(state, "Running")


def _attempt(state: Object) -> int:
    return state.get("status", {}).get("attempt", 0)


def _recorded(state: Object) -> int:
    progress = state.get("status", {}).get("progress") or {}
    return progress.get("done", 0) + progress.get("failed", 0)


def _hosts(state: Object) -> str:
    """Ready of all, as the table shows it."""
    return (state.get("status", {}).get("hosts") or {}).get("summary", "")


def _complaint(kind: str, name: str, state: Object) -> Object:
    """The condition that says something is missing and names it; an empty one if there is none."""
    for entry in state.get("status", {}).get("conditions") or []:
        if entry["status"] != "True" and kind in entry["message"] and name in entry["message"]:
            return entry
    return {}


def _replace(kind: str, uid: str) -> list[str]:
    """Deletes the job's objects of one kind and waits for them to be there again, under other UIDs."""
    before = _delete_all(kind, uid)
    deadline = time.monotonic() + STATUS_SECONDS
    while time.monotonic() < deadline:
        now = _uids(kind, uid)
        if now.keys() >= before.keys() and not set(now.values()) & set(before.values()):
            return sorted(before)
        time.sleep(1)
    raise AssertionError(f"{kind} {sorted(before)} were deleted by hand and {sorted(now)} is what came back")


def _delete_all(kind: str, uid: str) -> dict[str, str]:
    before = _uids(kind, uid)
    if not before:
        raise AssertionError(f"the job has no {kind} that could be deleted")
    cluster.kubectl("delete", kind, *before, f"--namespace={RUNC.jobs}")
    return before


def _uids(kind: str, uid: str) -> dict[str, str]:
    found = cluster.listed(kind, RUNC.jobs, {"evals.nhx.io/job-uid": uid})
    return {entry["metadata"]["name"]: entry["metadata"]["uid"] for entry in found}


def _pod(uid: str, role: str) -> str:
    pods = cluster.listed("pods", RUNC.jobs, {"evals.nhx.io/job-uid": uid, "evals.nhx.io/role": role})
    alive = [pod for pod in pods if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]
    return max(alive, key=lambda pod: int(pod["metadata"]["labels"]["evals.nhx.io/attempt"]))["metadata"]["name"]


def _left(namespace: str, uid: str, stays: Collection[str] = ()) -> list[str]:
    """What bears the job's label, once nothing else than `stays` does. A deleted pod may take its grace period;
    everything else goes at once."""
    deadline = time.monotonic() + 2 * STATUS_SECONDS
    while True:
        left = cluster.listed(PIECES, namespace, {"evals.nhx.io/job-uid": uid})
        names = sorted(f"{entry['kind']}/{entry['metadata']['name']}" for entry in left)
        exists = any(job["metadata"]["uid"] == uid for job in cluster.listed("aej", namespace))
        if exists or set(names) <= set(stays) or time.monotonic() > deadline:
            return names
        time.sleep(1)


def _fill_claim(namespace: str, claim: str, command: str) -> str:
    """Makes a claim and runs a shell command in its root."""
    cluster.apply(manifests.claim(namespace, claim))
    return _read_claim(namespace, claim, command, read_only=False)


def _read_claim(namespace: str, claim: str, command: str, *, read_only: bool = True) -> str:
    """Output of a shell command in a claim's root, by a pod of our own."""
    name = f"read-{claim}"
    reader = manifests.container("reader", reference("nhx-tasks"), args=["sh", "-c", f"cd /claim && {command}"])
    reader["volumeMounts"].append({"name": "claim", "mountPath": "/claim", "readOnly": read_only})
    volume = {"name": "claim", "persistentVolumeClaim": {"claimName": claim}}
    cluster.apply(manifests.restricted_pod(namespace, name, [reader], [volume]))
    try:
        return cluster.log_when_done(name, namespace, seconds=STATUS_SECONDS)
    finally:
        cluster.delete("pod", name, namespace)


def _from_model_server(port: int, path: str) -> str:
    service = f"/api/v1/namespaces/{manifests.MODELS_NAMESPACE}/services/scripted:{port}/proxy/{path}"
    return cluster.kubectl("get", "--raw", service)


def _file_of_the_image(path: str) -> str:
    """A file of nhx-tasks, which the model server runs in too."""
    read = cluster.execute("scripted", "instant", manifests.MODELS_NAMESPACE, ["cat", path])
    if read.code:
        raise AssertionError(f"{path}: {read.stderr}")
    return read.stdout


def _events(namespace: str, name: str) -> list[Object]:
    """The job's events. They are sent after the status, so they may take a moment."""
    deadline = time.monotonic() + STATUS_SECONDS
    while True:
        field = f"--field-selector=involvedObject.kind=AgentEvalJob,involvedObject.name={name}"
        found = cluster.kubectl("get", "events", f"--namespace={namespace}", field, "--output=json")
        events = json.loads(found)["items"]
        if events or time.monotonic() > deadline:
            return events
        time.sleep(1)


def _refused_download(world: World, job: Object) -> str:
    """What the command says where nothing is left to download."""
    namespace, name = runs.key_of(job)
    try:
        runs.nhx(world, "download", name, str(world.directory / "too-late"), f"--namespace={namespace}")
    except CommandError as error:
        return error.stderr
    raise AssertionError("there should be nothing to download any more")


def _nhx_logs(world: World, job: Object) -> str:
    namespace, name = runs.key_of(job)
    return runs.nhx(world, "logs", name, f"--namespace={namespace}")
