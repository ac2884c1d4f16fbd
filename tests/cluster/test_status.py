"""What a user sees: from Pending to the end, and what is said when something is missing."""

import asyncio

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from cluster.world import condition
from nhx_gym_operator.api.wire.endpoints import Latency, ModelUsage, Progress, Stage
from nhx_gym_operator.api.wire.reports import Aggregate, Staged
from nhx_gym_operator.controller.kube import FILESETS, JOBS, PODS
from nhx_gym_operator.workloads import tokens
from support.controller_values import outcome

EVALUATOR_IP = "127.77.0.1"
"""The address that a test gives to an evaluator pod; it serves `/progress` there itself."""


@pytest.fixture
async def evaluator():
    """What the evaluator answers, at its pod's address. `answer` is changed by the test."""

    class Evaluator:
        answer = Progress(stage=Stage.STARTING, attempt=1, total=10, hosts=1)
        token = ""

        async def progress(self, request: web.Request) -> web.Response:
            if request.headers.get("Authorization") != f"Bearer {self.token}":
                return web.Response(status=401)
            return web.Response(text=self.answer.model_dump_json())

    evaluator = Evaluator()
    app = web.Application()
    app.router.add_get("/progress", evaluator.progress)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, EVALUATOR_IP, 8080).start()
    yield evaluator
    await runner.cleanup()


async def started(world, **changes):
    await world.apply_job(**changes)
    return await world.until_condition("Running", "PodsCreated")


async def test_a_job_from_apply_to_its_result(world, operator, evaluator):
    from support.controller_values import KEY

    job = await started(world)
    assert job["status"]["phase"] == "Starting"
    assert job["status"]["placement"] == "Sandboxed"
    assert job["status"]["hosts"]["summary"] == "0/1"
    assert job["status"]["observedGeneration"] == 1

    evaluator.token = tokens.progress_token(KEY, job["metadata"]["uid"])
    await world.report_running(ip=EVALUATOR_IP)

    async def shown(summary):
        status = (await world.job())["status"]
        return status if status.get("progress", {}).get("summary") == summary else None

    await world.until(lambda: shown("0/10"), "the rollouts are counted", world.job)
    evaluator.answer = Progress(
        stage=Stage.COLLECTING, attempt=1, done=5, failed=1, total=10, mean_reward=5 / 6, hosts=1, hosts_ready=1
    )
    status = await world.until(lambda: shown("6/10"), "six rollouts are in", world.job)
    assert (status["phase"], status["reward"], status["hosts"]["summary"]) == ("Running", "0.83", "1/1")

    score = Aggregate(name="gym_reward.reward", value=0.8, kind="range", unit="reward", count=10, mean=0.8)
    await world.report_outcome(outcome(aggregates=[score]))
    job = await world.until_phase("Succeeded")
    assert job["status"]["reward"] == "0.80"
    assert job["status"]["progress"]["summary"] == "10/10"
    assert job["status"]["aggregates"][0]["name"] == "gym_reward.reward"
    image = "reg/nhx-tasks:1"
    results = {"location": "persistentVolumeClaim/mcqa-results", "path": "attempt-1", "image": image}
    assert job["status"]["results"] == results
    assert job["status"]["ran"]["images"]["evaluator"].startswith("x@sha256:")
    assert all(entry["observedGeneration"] == 1 for entry in job["status"]["conditions"])


async def test_what_a_jobs_models_were_used_for_is_in_its_status_and_once_in_the_operators_metrics(
    world, operator, evaluator
):
    from support.controller_values import KEY

    def scraped():
        labels = {"namespace": world.namespace, "model": "org/Name-3.2", "result": "answered"}
        return REGISTRY.get_sample_value("nhx_model_calls_total", labels)

    async def counted(calls):
        usage = (await world.job())["status"].get("usage", {})
        return usage.get("policy", {}).get("calls") == calls and scraped() == calls

    job = await started(world)
    evaluator.token = tokens.progress_token(KEY, job["metadata"]["uid"])
    evaluator.answer = Progress(
        stage=Stage.COLLECTING, attempt=1, done=3, total=10, hosts=1, usage={"policy": ModelUsage(calls=4)}
    )
    await world.report_running(ip=EVALUATOR_IP)
    await world.until(lambda: counted(4), "calls are shown while the job runs", world.job)
    latency = Latency(mean=1.5, p50=1.0, p99=4.0, max=4.2)
    await world.report_outcome(outcome(usage={"policy": ModelUsage(calls=11, latency_seconds=latency)}))
    job = await world.until_phase("Succeeded")
    assert job["status"]["usage"]["policy"]["latencySeconds"] == latency.model_dump()
    await world.until(lambda: counted(11), "calls are counted up to the end", world.job)


async def test_progress_that_does_not_change_costs_no_call(world, operator, evaluator):
    from support.controller_values import KEY

    job = await started(world)
    evaluator.token = tokens.progress_token(KEY, job["metadata"]["uid"])
    await world.report_running(ip=EVALUATOR_IP)

    async def counted():
        return (await world.job())["status"].get("progress")

    await world.until(counted, "the rollouts are counted", world.job)
    before = (await world.job())["metadata"]["resourceVersion"]
    await asyncio.sleep(5)
    assert (await world.job())["metadata"]["resourceVersion"] == before


async def test_each_transition_is_one_event(world, operator):
    await started(world)
    await world.report_outcome(outcome())
    await world.until_phase("Succeeded")

    async def told():
        found = [(event["message"].partition(":")[0], event["reason"]) for event in await world.events()]
        return found if ("Complete=True", "AllRolloutsRecorded") in found else None

    changes = await world.until(told, "the end is told", world.events)
    assert len(changes) == len(set(changes))
    assert {"Accepted", "PodsCreated", "RunEnded", "AllRolloutsRecorded"} <= {reason for _, reason in changes}


async def test_writers_who_meet_lose_nothing(world, operator):
    await started(world)

    async def annotate():
        for number in range(20):
            await world.annotate(JOBS, "mcqa", str(number))

    async def run():
        await world.report_running()
        await world.report_outcome(outcome())

    await asyncio.gather(annotate(), run())
    job = await world.until_phase("Succeeded")
    assert job["metadata"]["annotations"]["touched"] == "19"


async def test_a_bundle_that_was_uploaded_is_where_the_status_says(world, operator):
    key = {"secretKeyRef": {"name": "s3", "key": "k"}}
    prefix = "p" * 512
    store = {"bucket": "results", "prefix": prefix, "credentials": {"accessKeyId": key, "secretAccessKey": key}}
    await world.apply_job(results={"objectStore": store})
    job = await world.until_condition("Running", "PodsCreated")
    assert job["status"]["results"]["location"] == "emptyDir"
    uploaded = {"results_location": f"s3://results/{prefix}", "results_path": "team/mcqa-1/attempt-1"}
    await world.report_outcome(outcome(**uploaded))
    job = await world.until_phase("Succeeded")
    results = job["status"]["results"]
    assert (results["location"], results["path"]) == (f"s3://results/{prefix}", "team/mcqa-1/attempt-1")


async def test_an_outcome_that_came_while_the_operator_was_away_is_read_when_it_returns(world, operating):
    with operating():
        await started(world)
    await world.report_outcome(outcome(done=7, message="7 of 10 rollouts have a reward"))
    with operating():
        job = await world.until_phase("Succeeded")
    assert condition(job, "Degraded")["reason"] == "RolloutsMissing"


async def test_what_vanished_with_its_empty_dir_while_nobody_looked_is_not_paid_for_twice(world, operating):
    with operating():
        await started(world, results={"emptyDir": {}})
    await world.remove(PODS, "mcqa-evaluator-1")
    with operating():
        job = await world.until_phase("Failed")
        assert condition(job, "Failed")["reason"] == "ResultsLost"
        await world.until_no_pods()


async def test_a_finished_job_is_left_alone(world, operator):
    await started(world)
    await world.report_outcome(outcome())
    before = (await world.until_phase("Succeeded"))["status"]
    await world.remove(PODS, "mcqa-evaluator-1")
    await world.annotate(JOBS, "mcqa", "again")
    await asyncio.sleep(2)
    assert (await world.job())["status"] == before
    assert "mcqa-evaluator-2" not in await world.names(PODS)


DATASET = {"tasks": {"dataset": {"configMap": {"name": "rows", "key": "rows.jsonl"}}}}


async def test_a_missing_config_map_is_named_and_the_job_recovers_when_it_comes(world, operator):
    await world.apply_job(**DATASET)
    job = await world.until_condition("Accepted", "ConfigMapNotFound")
    assert "'rows'" in condition(job, "Accepted")["message"]
    assert job["status"]["phase"] == "Pending"
    await world.create_config_map("rows", other="{}")
    job = await world.until_condition("Accepted", "ConfigMapKeyMissing")
    assert "'rows.jsonl'" in condition(job, "Accepted")["message"]
    await world._patch(_config_maps(), "rows", {"data": {"rows.jsonl": "{}"}})
    await world.until_phase("Starting")
    pod = await world.api.get(PODS, world.namespace, "mcqa-evaluator-1")
    (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "dataset"]
    assert volume["configMap"]["items"] == [{"key": "rows.jsonl", "path": "dataset.jsonl"}]


def _config_maps():
    from nhx_gym_operator.controller.kube import CONFIG_MAPS

    return CONFIG_MAPS


async def test_waiting_for_what_is_missing_ends(world, operating):
    with operating(timeouts={"waitForInputsSeconds": 2}):
        await world.apply_job(**DATASET)
        job = await world.until_phase("Failed")
    assert condition(job, "Failed")["reason"] == "InputsTimeout"
    assert "'rows'" in condition(job, "Failed")["message"]
    assert await world.names(PODS) == []


async def test_pods_that_never_run_end_the_job_and_are_removed(world, operating):
    with operating(timeouts={"podStartSeconds": 3}):
        await world.apply_job()
        job = await world.until_phase("Failed")
        assert condition(job, "Failed")["reason"] == "PodStartTimeout"
        await world.until_no_pods()


async def test_a_secret_that_the_kubelet_misses_is_named(world, operator):
    await started(world)
    pod = await world.api.get(PODS, world.namespace, "mcqa-evaluator-1")
    words = 'MountVolume.SetUp failed for volume "model-key-0" : references non-existent secret key: k'
    await world.complain(pod, "FailedMount", words)
    job = await world.until_condition("Running", "SecretKeyMissing")
    assert "Secret 'model' has no key 'k'" in condition(job, "Running")["message"]


ENVIRONMENT = {"gym": {"environment": {"fileSet": {"name": "mine"}}}}


async def test_an_environment_waits_for_its_fileset_and_is_mounted_into_staging(world, operator):
    await world.apply_job(**ENVIRONMENT)
    await world.until_condition("Accepted", "FileSetNotFound")
    await world.create_file_set("mine", "files")
    await world.until_condition("Accepted", "ConfigMapNotFound")
    await world.create_config_map("files", **{"nemo-environment.yaml": "x"})
    job = await world.until_phase("Staging")
    assert condition(job, "Staged")["reason"] == "Staging"
    pod = await world.api.get(PODS, world.namespace, "mcqa-evaluator-1")
    assert [container["name"] for container in pod["spec"]["initContainers"]] == ["stage-environment"]


async def test_a_fileset_says_whether_its_files_are_there(world, operator):
    await world.create_file_set("mine", "files")

    async def resolved(reason):
        live = await world.api.get(FILESETS, world.namespace, "mine")
        entry = condition(live, "Resolved")
        return live if entry and entry["reason"] == reason else None

    await world.until(lambda: resolved("ConfigMapNotFound"), "the source is missed")
    await world.create_config_map("files", a="1", b="2")
    live = await world.until(lambda: resolved("Resolved"), "the files are found")
    assert live["status"]["files"] == 2


async def test_what_a_jobs_pod_found_at_a_source_is_in_the_status_of_its_fileset(world, operator):
    await world.create_file_set("mine", source={"http": {"url": "https://files.example.org/env.tgz"}})

    async def resolved(reason):
        live = await world.api.get(FILESETS, world.namespace, "mine")
        entry = condition(live, "Resolved")
        return live if entry and entry["reason"] == reason else None

    live = await world.until(lambda: resolved("NotReadYet"), "nobody has read the source")
    assert condition(live, "Resolved")["status"] == "Unknown"
    await world.apply_job(**ENVIRONMENT)
    await world.until_phase("Staging")
    found = Staged(digest=f"sha256:{'a' * 64}", files=3, bytes=99)
    await world.report_staged("stage-environment", found.model_dump_json())
    await world.until_condition("Staged", "Staged")
    live = await world.until(lambda: resolved("Resolved"), "the job's pod has read it")
    assert (live["status"]["files"], live["status"]["bytes"], live["status"]["digest"]) == (3, 99, found.digest)
    assert live["status"]["seenBy"] == {"job": "mcqa", "attempt": 1, "time": "2026-11-29T12:00:30Z"}
    assert (await world.job())["status"]["ran"]["environmentDigest"] == found.digest


async def test_a_dataset_that_cannot_be_fetched_fails_the_job_and_shows_on_its_fileset(world, operator):
    await world.create_file_set("rows", source={"s3": {"bucket": "bkt", "prefix": "rows"}}, purpose="dataset")
    await world.apply_job(tasks={"dataset": {"fileSet": {"name": "rows", "path": "rows.jsonl"}}})
    await world.until_phase("Staging")
    await world.report_staged("stage-dataset", "there are no objects under s3://bkt/rows", code=1)
    job = await world.until_condition("Failed", "StagingFailed")
    assert "no objects under s3://bkt/rows" in condition(job, "Failed")["message"]

    async def told():
        live = await world.api.get(FILESETS, world.namespace, "rows")
        return "no objects under s3://bkt/rows" in condition(live, "Resolved")["message"]

    await world.until(told, "the FileSet says so too")


async def test_a_claim_that_is_not_there_is_asked_for_by_name(world, operator):
    await world.create_file_set("mine", source={"persistentVolumeClaim": {"claimName": "envs"}})
    await world.apply_job(**ENVIRONMENT)
    job = await world.until_condition("Accepted", "ClaimNotFound")
    assert "'envs'" in condition(job, "Accepted")["message"]


async def test_an_environment_without_a_sandbox_is_refused_in_condition_and_event(world, operating):
    with operating(sandbox={"mode": "Disabled"}):
        await world.apply_job(**ENVIRONMENT)
        job = await world.until_phase("Failed")
        assert "sandbox.mode" in condition(job, "Accepted")["message"]

        async def told():
            return [event for event in await world.events() if "sandbox.mode" in event["message"]]

        told_events = await world.until(told, "an event says so")
    assert all(event["type"] == "Warning" for event in told_events)
    assert await world.names(PODS) == []


async def test_a_runtime_class_that_is_missing_is_named(world, operating):
    with operating(sandbox={"mode": "Required", "runtimeClassName": "kata"}):
        await world.apply_job()
        job = await world.until_phase("Failed")
    assert condition(job, "Failed")["reason"] == "SandboxUnavailable"
    assert "'kata'" in condition(job, "Failed")["message"]


async def test_an_operator_for_all_namespaces_serves_this_one(world, operating):
    with operating(watchNamespaces=[]):
        await started(world)
