"""A live runner becomes a job, and the job a handle: what is sent, what is refused, and what comes back."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from nemo_helix_plugin.jobs.schemas import HelixJobStatus
from nhx_evals_sdk.agent_eval.evaluator import AgentEvaluator
from nhx_evals_sdk.agent_eval.runtimes.callable_runtime import CallableAgentTaskRunner
from nhx_evals_sdk.agent_eval.runtimes.gym import (
    GymAgentTaskRunner,
    GymRewardMetric,
    GymRuntimeConfig,
    discover_gym_tasks,
)
from nhx_evals_sdk.agent_eval.runtimes.gym.dataset import materialize_dataset
from nhx_evals_sdk.agent_eval.tasks import AgentEvalRunConfig, AgentEvalTask
from nhx_evals_sdk.agent_eval.trials import AgentEvalTrial
from nhx_evals_sdk.metrics.exact_match import ExactMatchMetric
from nhx_evals_sdk.values.common import SecretRef

from nhx_gym_operator import submission
from nhx_gym_operator.api.models import ModelSpec
from nhx_gym_operator.api.tasks import Dataset, Tasks
from nhx_gym_operator.client.creation import CONFIG_MAP_BYTES
from nhx_gym_operator.client.errors import UserError
from nhx_gym_operator.evaluator.dataset import Subset, load_taskset
from nhx_gym_operator.submission import (
    AgentEvaluatorJobResource,
    AsyncAgentEvaluatorJobResource,
    FilesetRef,
    GymPlacement,
    JobNotCompletedError,
    SubmissionError,
    TasksetRef,
    UnsubmittableRunnerError,
    get_job_resource,
    submit,
    submit_async,
    write_taskset,
)
from nhx_gym_operator.submission.gym_version import GYM_VERSION, version_warning
from support.cluster import ROOT
from support.fake_kubectl import FakeKubectl

SECRET_VALUE = "sk-this-must-never-leave-0123456789"
ROUTE = {
    "policy_base_url": "http://models.example.org/v1",
    "policy_api_key": "${oc.env:POLICY_API_KEY}",
    "policy_model_name": "org/name",
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    fake = FakeKubectl(tmp_path / "cluster")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return fake


def runner(**config: Any) -> GymAgentTaskRunner:
    fields = {
        "agent": "simple_agent",
        "agent_config": "responses_api_agents/simple_agent/configs/simple_agent.yaml",
        "resources_server": "mcqa",
        "hydra_params": ROUTE,
        "env_secrets": {"POLICY_API_KEY": SecretRef("policy-key")},
    }
    return GymAgentTaskRunner(config=GymRuntimeConfig(**fields | config))


def tasks(tmp_path: Path, rows: int = 2, text: str = "q") -> list[AgentEvalTask]:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(_row(number, text) + "\n" for number in range(rows)))
    return discover_gym_tasks(file)


def _row(number: int, text: str) -> str:
    return json.dumps({"responses_create_params": {"input": f"{number}: {text}"}, "expected_answer": "A"})


def sent(cluster: FakeKubectl, kind: str) -> dict[str, Any]:
    (found,) = [entry for entry in cluster.read("sent") if entry["kind"] == kind]
    return found


# ---- what is sent


def test_a_submitted_runner_is_a_job_of_its_configuration_and_tasks(cluster: FakeKubectl, tmp_path: Path):
    given = tasks(tmp_path)
    live = runner(num_repeats=2, concurrency=8, hydra_params={**ROUTE, "deep": {"list": [1, None, "x"]}})

    job = submit(
        tasks=given,
        target=live,
        placement=GymPlacement(environment=FilesetRef("my-environment"), agent_ref_name="mcqa_simple_agent"),
        config=AgentEvalRunConfig(parallelism=2, labels={"benchmark": "mcqa"}, fail_fast=True),
        name="mcqa",
    )

    assert isinstance(job, AgentEvaluatorJobResource) and job.name == "mcqa"
    spec = sent(cluster, "AgentEvalJob")["spec"]
    gym = spec["target"]["gym"]
    assert (gym["agent"], gym["agentRefName"]) == ("simple_agent", "mcqa_simple_agent")
    assert (gym["numRepeats"], gym["concurrency"]) == (2, 8)
    assert gym["environment"] == {"fileSet": {"name": "my-environment"}}
    assert gym["hydraParams"] == {"deep": {"list": [1, None, "x"]}}
    assert (spec["parallelism"], spec["labels"], spec["failFast"]) == (2, {"benchmark": "mcqa"}, True)
    (policy,) = spec["models"]
    assert (policy["baseUrl"], policy["model"]) == ("http://models.example.org/v1", "org/name")
    assert policy["apiKey"] == {"secretKeyRef": {"name": "policy-key", "key": "value"}}

    stored = sent(cluster, "ConfigMap")
    assert spec["tasks"] == {"taskset": {"configMap": {"name": stored["metadata"]["name"], "key": "taskset.jsonl"}}}
    (owner,) = stored["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("AgentEvalJob", "mcqa", job.job["metadata"]["uid"])
    rows = [json.loads(line) for line in stored["data"]["taskset.jsonl"].splitlines()]
    assert [row["id"] for row in rows] == [task.id for task in given]
    assert rows[0]["inputs"]["gym_row"] == {"input": "0: q"}
    assert rows[0]["metadata"]["gym_row_extras"] == {"expected_answer": "A"}


def test_a_local_secrets_value_is_never_sent(cluster: FakeKubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for variable in ("POLICY_KEY", "POLICY_API_KEY", "TOOL", "TOOL_KEY"):
        monkeypatch.setenv(variable, SECRET_VALUE)
    secrets = {"POLICY_API_KEY": SecretRef("policy-key"), "TOOL_KEY": SecretRef("tool")}
    submit(tasks=tasks(tmp_path), target=runner(env_secrets=secrets), name="mcqa")
    everything = "".join(file.read_text() for file in cluster.folder.iterdir() if file.suffix in (".json", ".jsonl"))
    assert "policy-key" in everything and SECRET_VALUE not in everything


def test_a_placement_may_be_left_out_and_a_stored_taskset_named(cluster: FakeKubectl):
    submit(tasks=TasksetRef("my-suite"), target=runner(), name="mcqa")
    spec = sent(cluster, "AgentEvalJob")["spec"]
    assert spec["tasks"] == {"taskset": {"configMap": {"name": "my-suite", "key": "taskset.jsonl"}}}
    assert "environment" not in spec["target"]["gym"] and "agentRefName" not in spec["target"]["gym"]
    assert [entry["kind"] for entry in cluster.read("sent")] == ["AgentEvalJob"]


def test_the_model_may_be_stated_beside_a_runner_whose_gym_reads_it_from_env_yaml(cluster: FakeKubectl):
    bundled = Tasks(dataset=Dataset(bundled="resources_servers/mcqa/data/example.jsonl"))
    model = ModelSpec(name="policy", base_url="http://here/v1", model="m")
    job = submit(tasks=bundled, target=runner(hydra_params={}, env_secrets={}), models=[model])
    spec = sent(cluster, "AgentEvalJob")["spec"]
    assert spec["models"] == [{"name": "policy", "baseUrl": "http://here/v1", "model": "m"}]
    assert spec["tasks"] == {"dataset": {"bundled": "resources_servers/mcqa/data/example.jsonl"}}
    assert job.name.startswith("mcqa-")


def test_the_namespace_is_that_of_the_references_or_the_one_asked_for(cluster: FakeKubectl):
    submit(tasks=TasksetRef("team/suite"), target=runner(), name="a")
    assert sent(cluster, "AgentEvalJob")["metadata"]["namespace"] == "team"
    with pytest.raises(SubmissionError, match="tasks is in `team` and the job in `other`"):
        submit(tasks=TasksetRef("team/suite"), target=runner(), name="b", namespace="other")


def test_kubeconfig_and_context_are_kubectls(cluster: FakeKubectl):
    submit(tasks=TasksetRef("suite"), target=runner(), name="a", namespace="n", context="c", kubeconfig="/k")
    (call,) = cluster.calls("create")
    assert {"--kubeconfig=/k", "--context=c", "--namespace=n"} <= set(call)


async def test_the_asynchronous_call_is_the_same(cluster: FakeKubectl, tmp_path: Path):
    job = await submit_async(tasks=tasks(tmp_path), target=runner(), name="mcqa")
    assert isinstance(job, AsyncAgentEvaluatorJobResource)
    cluster.write("script", {"story": [{"phase": "Running"}, {"phase": "Succeeded"}]})
    seen: list[str] = []
    await job.wait_until_done(on_progress=lambda progress: seen.append(progress.phase), poll_interval=0.01)
    assert seen == ["Running", "Succeeded"]
    assert await job.get_job_status() is HelixJobStatus.COMPLETED
    assert await job.check_if_complete()


def test_tasks_that_cannot_be_stored_leave_no_job_behind(cluster: FakeKubectl, tmp_path: Path):
    cluster.write("script", {"fail_create": {"ConfigMap": ["Error from server (Forbidden): no ConfigMaps for you"]}})
    with pytest.raises(UserError, match=r"(?s)no ConfigMaps.*removed again"):
        submit(tasks=tasks(tmp_path), target=runner(), name="mcqa")
    assert cluster.read("jobs") == []


def test_a_name_that_is_taken_is_said_to_be_so(cluster: FakeKubectl, tmp_path: Path):
    cluster.write("jobs", [{"metadata": {"name": "mcqa"}}])
    with pytest.raises(UserError, match="there is a job `mcqa` already"):
        submit(tasks=tasks(tmp_path), target=runner(), name="mcqa")
    assert cluster.read("jobs") == [{"metadata": {"name": "mcqa"}}]


# ---- what is refused


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"hydra_params": {**ROUTE, "a": {"b": [print]}}}, ["hydra_params.a.b[0]", "builtin_function_or_method"]),
        ({"hydra_params": {**ROUTE, "path": Path("/x")}}, ["hydra_params.path", "PosixPath"]),
        ({"hydra_params": {**ROUTE, "x": float("nan")}}, ["hydra_params.x", "nan"]),
        ({"hydra_params": {**ROUTE, "x": {1: 2}}}, ["hydra_params.x", "key 1"]),
        ({"hydra_params": {**ROUTE, "x": {1, 2}}}, ["hydra_params.x", "set"]),
        ({"hydra_params": {**ROUTE, "policy_api_key": SECRET_VALUE}}, ["hydra_params.policy_api_key", "env_secrets"]),
        ({"env_vars": {"WANDB_API_KEY": "abc"}}, ["env_vars.WANDB_API_KEY", "env_secrets"]),
        ({"resources_server": "a b"}, ["resources_server"]),
    ],
)
def test_a_runner_that_no_manifest_can_describe_is_refused_by_runner_and_field(cluster, config, named):
    with pytest.raises(UnsubmittableRunnerError) as error:
        submit(tasks=TasksetRef("suite"), target=runner(**config))
    assert all(part in str(error.value) for part in ["GymAgentTaskRunner", *named]), error.value
    assert SECRET_VALUE not in str(error.value)
    assert not cluster.calls()


async def _agent(task: AgentEvalTask) -> str:
    return ""


class _Changed(GymAgentTaskRunner):
    async def run_tasks(self, *arguments: Any, **named: Any) -> list[AgentEvalTrial]:
        return []


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (CallableAgentTaskRunner(_agent), ["CallableAgentTaskRunner", "placement"]),
        (_Changed(config=runner().config), ["_Changed", "subclass"]),
    ],
)
def test_another_runner_is_refused_by_its_name(other: Any, named: list[str]):
    with pytest.raises(UnsubmittableRunnerError) as error:
        submit(tasks=TasksetRef("suite"), target=other, placement=GymPlacement())
    assert all(part in str(error.value) for part in named)


def test_a_task_without_its_row_is_refused_in_the_sdks_words(cluster: FakeKubectl):
    task = AgentEvalTask(id="t1", intent="", inputs={}, metrics=[GymRewardMetric()])
    with pytest.raises(SubmissionError, match=r"task 't1' is missing inputs\['gym_row'\]"):
        submit(tasks=[task], target=runner())


@pytest.mark.parametrize(
    ("metric", "named"),
    [
        (ExactMatchMetric(reference="a", candidate="b"), "exact-match"),
        (GymRewardMetric(output_name="score"), "gym_reward"),
    ],
)
def test_another_metric_is_refused_by_name(tmp_path: Path, cluster: FakeKubectl, metric: Any, named: str):
    (task, *_) = tasks(tmp_path)
    task.metrics = [metric]
    with pytest.raises(SubmissionError, match=named):
        submit(tasks=[task], target=runner())


def test_tasks_too_large_for_a_config_map_are_told_where_to_go(tmp_path: Path, cluster: FakeKubectl):
    many = tasks(tmp_path, rows=30, text="x" * 40_000)
    with pytest.raises(SubmissionError, match=r"PersistentVolumeClaim or into a FileSet"):
        submit(tasks=many, target=runner())
    assert not cluster.calls()
    written = write_taskset(many, tmp_path / "taskset.jsonl")
    assert written.stat().st_size > CONFIG_MAP_BYTES and len(written.read_text().splitlines()) == 30


def test_stored_tasks_are_to_the_evaluator_what_they_were_here(tmp_path: Path):
    given = tasks(tmp_path, rows=3, text="größer \u2028 2")
    given[0].metadata["gym_row_extras"]["seed"] = 2**64 - 1
    loaded = load_taskset(write_taskset(given, tmp_path / "taskset.jsonl"), "the taskset", Subset())
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    assert materialize_dataset(loaded.tasks, there) == materialize_dataset(given, here)
    assert there.read_bytes() == here.read_bytes()
    assert [task.metrics for task in loaded.tasks] == [task.metrics for task in given]


def test_no_tasks_are_refused(cluster: FakeKubectl):
    with pytest.raises(SubmissionError, match="tasks is empty"):
        submit(tasks=[], target=runner())


@pytest.mark.parametrize("field", [{"work_dir": Path("x")}, {"run_id": "r"}, {"prompt_template": "p"}])
def test_a_run_configuration_that_means_nothing_to_a_job_is_refused(cluster: FakeKubectl, field: dict[str, Any]):
    with pytest.raises(SubmissionError, match=rf"config\.{next(iter(field))}"):
        submit(tasks=TasksetRef("suite"), target=runner(), config=AgentEvalRunConfig(**field))


# ---- the handle


def existing(cluster: FakeKubectl, **status: Any) -> AgentEvaluatorJobResource:
    metadata = {"name": "mcqa", "namespace": "evals", "uid": "4f2c", "creationTimestamp": "2026-01-01T00:00:00Z"}
    cluster.write("jobs", [{"metadata": metadata, "spec": {}, "status": status}])
    return get_job_resource("mcqa")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, HelixJobStatus.CREATED),
        ({"phase": "Pending"}, HelixJobStatus.PENDING),
        ({"phase": "Staging"}, HelixJobStatus.ACTIVE),
        ({"phase": "Starting"}, HelixJobStatus.ACTIVE),
        ({"phase": "Running"}, HelixJobStatus.ACTIVE),
        ({"phase": "Suspended"}, HelixJobStatus.PAUSED),
        ({"phase": "Succeeded"}, HelixJobStatus.COMPLETED),
        ({"phase": "Failed"}, HelixJobStatus.ERROR),
        ({"phase": "Cancelled"}, HelixJobStatus.CANCELLED),
    ],
)
def test_phases_are_the_platforms_statuses(cluster: FakeKubectl, status: dict[str, str], expected: HelixJobStatus):
    job = existing(cluster, **status)
    assert job.get_job_status() is expected
    assert job.check_if_complete() is (expected is HelixJobStatus.COMPLETED)
    if expected is not HelixJobStatus.COMPLETED:
        with pytest.raises(JobNotCompletedError, match="mcqa"):
            job.check_if_complete(raise_if_not_complete=True)


def test_a_job_that_is_being_cancelled_is_so_until_it_has_ended(cluster: FakeKubectl):
    job = existing(cluster, phase="Running")
    (body,) = cluster.read("jobs")
    cluster.write("jobs", [body | {"spec": {"cancel": True}}])
    assert job.get_job_status() is HelixJobStatus.CANCELLING
    cluster.write("jobs", [body | {"spec": {"cancel": True}, "status": {"phase": "Cancelled"}}])
    assert job.get_job_status() is HelixJobStatus.CANCELLED


def test_the_handles_have_the_documented_methods_and_not_those_of_a_dataset_driven_job():
    documented = {"name", "job", "get_job_status", "check_if_complete", "wait_until_done"}
    for handle in (AgentEvaluatorJobResource, AsyncAgentEvaluatorJobResource):
        assert documented <= set(dir(handle))
        assert not {"get_result", "download_artifacts"} & set(dir(handle))


def test_waiting_tells_each_change_once_and_survives_a_server_that_is_away(cluster: FakeKubectl):
    job = existing(cluster, phase="Pending")
    at = {"done": 3, "failed": 1, "total": 10, "meanReward": 0.75}
    story = [{}, "away", {"phase": "Running", "progress": at}, {}, {"phase": "Succeeded"}]
    cluster.write("script", {"story": story})
    seen: list[Any] = []
    job.wait_until_done(on_progress=seen.append, poll_interval=0.01)
    assert [progress.phase for progress in seen] == ["Pending", "Running", "Succeeded"]
    running = seen[1]
    assert (running.done, running.failed, running.total, running.mean_reward) == (3, 1, 10, 0.75)


@pytest.mark.parametrize(("step", "named"), [({"phase": "Failed"}, "Failed"), ({"phase": "Cancelled"}, "Cancelled")])
def test_waiting_raises_what_the_cluster_says_of_a_job_that_did_not_end_well(cluster: FakeKubectl, step, named):
    condition = {"type": "Failed", "status": "True", "reason": "GymStartFailed", "message": "Gym did not start"}
    job = existing(cluster, phase="Running", conditions=[condition])
    cluster.write("script", {"story": [step]})
    with pytest.raises(RuntimeError, match=f"{named}: Gym did not start"):
        job.wait_until_done(poll_interval=0.01)


def test_waiting_ends_when_the_time_is_over_and_says_where_the_job_is(cluster: FakeKubectl):
    job = existing(cluster, phase="Running")
    with pytest.raises(TimeoutError, match=r"mcqa.*0\.2 s: Running"):
        job.wait_until_done(timeout=0.2, poll_interval=0.05)


def test_waiting_for_a_deleted_job_ends(cluster: FakeKubectl):
    job = existing(cluster, phase="Running")
    cluster.write("script", {"story": [{}, "gone"]})
    with pytest.raises(JobNotCompletedError, match="is gone"):
        job.wait_until_done(poll_interval=0.01)


def test_a_job_made_anew_under_the_name_is_not_taken_for_this_one(cluster: FakeKubectl):
    job = existing(cluster, phase="Running")
    (body,) = cluster.read("jobs")
    cluster.write("jobs", [body | {"metadata": body["metadata"] | {"uid": "other"}}])
    with pytest.raises(JobNotCompletedError, match="is another"):
        job.wait_until_done(poll_interval=0.01)


class _Scored(CallableAgentTaskRunner):
    """Trials with a reward, as Gym's runner makes them."""

    async def run_tasks(self, given: Any, config: Any = None) -> list[AgentEvalTrial]:
        trials = await super().run_tasks(given, config)
        return [
            trial.model_copy(update={"metadata": {**trial.metadata, "reward": float(number)}})
            for number, trial in enumerate(trials)
        ]


@pytest.fixture
def bundle(tmp_path: Path) -> Any:
    result = AgentEvaluator().run_sync(
        tasks=tasks(tmp_path), target=_Scored(_agent), config=AgentEvalRunConfig(work_dir=tmp_path / "bundle")
    )
    result.persist()
    return result


def test_a_result_is_the_sdks_object_as_it_was_before_it_was_written(cluster: FakeKubectl, bundle: Any, tmp_path: Path):
    for file in (tmp_path / "bundle").iterdir():
        cluster.add_result(f"attempt-1/{file.name}", file.read_bytes())
    claim = {"location": "persistentVolumeClaim/mcqa-results", "path": "attempt-1"}
    job = existing(cluster, phase="Succeeded", attempt=1, results=claim)
    labels = {"evals.nhx.io/job-uid": "4f2c", "evals.nhx.io/role": "evaluator", "evals.nhx.io/attempt": "1"}
    container = {"name": "agent-evaluate", "image": "tasks:1", "imagePullPolicy": "Never"}
    metadata = {"name": "e", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels}
    ended = {"containerStatuses": [{"name": "agent-evaluate", "state": {"terminated": {"exitCode": 0}}}]}
    cluster.write("pods", [{"metadata": metadata, "spec": {"containers": [container]}, "status": ended}])

    result = job.result(tmp_path / "out")

    assert result.summary == bundle.summary and result.scores == bundle.scores
    assert result.run_id == bundle.run_id and result.metadata == bundle.metadata
    assert [task.id for task in result.tasks] == [task.id for task in bundle.tasks]
    assert [task.metrics[0].type for task in result.tasks] == [task.metrics[0].type for task in bundle.tasks]
    assert {trial.id for trial in result.trials} == {trial.id for trial in bundle.trials}
    assert result.summary.score("gym_reward.reward").headline_value == 0.5
    assert result.work_dir == tmp_path / "out"
    calls = len(cluster.calls())
    assert job.result(tmp_path / "out") == result and len(cluster.calls()) == calls


def test_an_incomplete_bundle_is_refused_by_file(bundle: Any, tmp_path: Path):
    (tmp_path / "bundle/scores.jsonl").unlink()
    with pytest.raises(UserError, match=r"scores\.jsonl"):
        submission.read_bundle(tmp_path / "bundle")


# ---- Gym's version


def gym(tmp_path: Path, answer: str) -> None:
    program = tmp_path / "bin/gym"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable} -S\n{answer}\n")
    program.chmod(0o755)


def test_another_local_gym_is_warned_about_at_submit(cluster: FakeKubectl, tmp_path: Path):
    gym(tmp_path, """print('{"nemo_gym": "0.4.9"}')""")
    with pytest.warns(UserWarning, match=rf"NeMo Gym 0\.4\.9 and the job's is {GYM_VERSION}"):
        submit(tasks=TasksetRef("suite"), target=runner(), name="mcqa")


@pytest.mark.parametrize(
    "answer", [f"""print('{{"nemo_gym": "{GYM_VERSION}"}}')""", "print('usage: gym')", "raise SystemExit(1)", None]
)
def test_the_same_gym_or_none_is_no_matter(cluster: FakeKubectl, tmp_path: Path, answer: str | None):
    if answer:
        gym(tmp_path, answer)
    assert version_warning() is None


def test_the_version_is_that_of_the_images():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"nemo-gym=={GYM_VERSION}" in project["optional-dependencies"]["gym-host"]
