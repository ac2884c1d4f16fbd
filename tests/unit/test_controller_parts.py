"""Events, progress, reads on demand, and settings."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from aiohttp import web

from nhx_gym_operator.api.conditions import AcceptedReason
from nhx_gym_operator.api.fileset import Purpose
from nhx_gym_operator.api.job import JobSpec
from nhx_gym_operator.api.wire import IMAGES_HEADER, Progress, Stage
from nhx_gym_operator.controller import events, progress
from nhx_gym_operator.controller.cached_reads import CachedReads
from nhx_gym_operator.controller.inputs import InputReader, Missing
from nhx_gym_operator.controller.kube import CONFIG_MAPS, ApiError
from nhx_gym_operator.controller.observation import ProgressSource
from nhx_gym_operator.controller.settings import SettingsError, load_installation
from nhx_gym_operator.workloads.workload import ConfigMapFiles
from support.controller_values import UID, condition

JOB = {
    "apiVersion": "evals.nhx.io/v1alpha1",
    "kind": "AgentEvalJob",
    "metadata": {"name": "mcqa", "namespace": "team", "uid": UID},
}

# Events


def test_a_transition_is_told_once_and_under_one_name():
    old = [condition("Accepted", False, "ConfigMapNotFound")]
    new = [condition("Accepted", True, "Accepted"), condition("Running", False, "PodsCreated")]
    first = events.of_transitions(JOB, old, new)
    assert [(event["reason"], event["type"]) for event in first] == [("Accepted", "Normal"), ("PodsCreated", "Normal")]
    assert events.of_transitions(JOB, old, new) == first
    assert events.of_transitions(JOB, new, new) == []


@pytest.mark.parametrize(
    ("entry", "severity"),
    [
        (condition("Failed", True, "CoverageTooLow"), "Warning"),
        (condition("Degraded", True, "RolloutsMissing"), "Warning"),
        (condition("Accepted", False, "SandboxUnavailable"), "Warning"),
        (condition("Running", False, "PodRefused"), "Warning"),
        (condition("Running", False, "RunEnded"), "Normal"),
        (condition("SandboxReady", False, "GateChecking"), "Normal"),
        (condition("Complete", True, "AllRolloutsRecorded"), "Normal"),
    ],
)
def test_bad_news_is_a_warning(entry, severity):
    (event,) = events.of_transitions(JOB, [], [entry])
    assert event["type"] == severity


def test_an_event_fits_whatever_the_job_is_called_and_the_message_says():
    job = {**JOB, "metadata": {**JOB["metadata"], "name": "n" * 253}}
    (event,) = events.of_transitions(job, [], [condition("Failed", True, "X", message="m" * 5000)])
    assert len(event["metadata"]["name"]) <= 253
    assert len(event["message"]) <= 1024
    job["metadata"]["name"] = f"{'n' * 199}-{'n' * 20}"
    (event,) = events.of_transitions(job, [], [condition("Failed", True, "X")])
    assert "-." not in event["metadata"]["name"]


# Progress


@pytest.fixture
async def evaluator():
    """An evaluator's `/progress`: `answers` is what it says, `seen` who asked."""

    evaluator = SimpleNamespace(
        answers=Progress(stage=Stage.COLLECTING, attempt=1, done=1, total=10), status=200, seen=[], told=[]
    )

    async def answer(request):
        evaluator.seen.append(request.headers.get("Authorization", ""))
        evaluator.told.append(request.headers.get(IMAGES_HEADER))
        return web.Response(text=evaluator.answers.model_dump_json(), status=evaluator.status)

    app = web.Application()
    app.router.add_get("/progress", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    evaluator.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/progress"
    yield evaluator
    await runner.cleanup()


@pytest.fixture
async def poller(monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0.02)
    changed = []
    poller = progress.ProgressPoller(changed.append)
    poller.changed = changed
    task = asyncio.create_task(poller.run())
    yield poller
    task.cancel()


async def test_a_changed_answer_is_told_and_an_unchanged_one_is_not(poller, evaluator):
    poller.watch(UID, ProgressSource(evaluator.url, "token"))
    await asyncio.sleep(0.2)
    assert poller.changed == [UID]
    assert poller.latest(UID).done == 1
    assert set(evaluator.seen) == {"Bearer token"}
    evaluator.answers = Progress(stage=Stage.COLLECTING, attempt=1, done=2, total=10)
    await asyncio.sleep(0.2)
    assert poller.changed == [UID, UID]


async def test_the_evaluator_is_told_the_images_that_only_the_kubelet_knows(poller, evaluator):
    poller.watch(UID, ProgressSource(evaluator.url, "token", {"evaluator": "reg/nhx-tasks@sha256:00"}))
    await asyncio.sleep(0.2)
    assert json.loads(evaluator.told[0]) == {"evaluator": "reg/nhx-tasks@sha256:00"}


async def test_an_evaluator_that_does_not_answer_is_asked_again(poller, evaluator):
    evaluator.status = 503
    poller.watch(UID, ProgressSource(evaluator.url, "token"))
    await asyncio.sleep(0.1)
    assert poller.latest(UID) is None
    evaluator.status = 200
    await asyncio.sleep(0.15)
    assert poller.latest(UID).done == 1


async def test_asking_ends_when_it_is_told_to(poller, evaluator):
    poller.watch(UID, ProgressSource(evaluator.url, "token"))
    await asyncio.sleep(0.1)
    poller.watch(UID, None)
    await asyncio.sleep(0.05)
    asked = len(evaluator.seen)
    await asyncio.sleep(0.1)
    assert len(evaluator.seen) == asked
    assert poller.latest(UID).done == 1


# What a job names


class Objects:
    """An API server that answers GETs from a table."""

    def __init__(self, **objects):
        self.objects = objects
        self.asked = []

    async def get(self, resource, namespace, name):
        self.asked.append(name)
        answer = self.objects.get(f"{resource.plural}_{name}")
        if isinstance(answer, ApiError):
            raise answer
        if answer is None:
            raise ApiError(404, "NotFound", name)
        return answer


FILES = {"data": {"a": "1"}, "binaryData": {"b": "MQ=="}}


def file_set(purpose="environment", name="mine", source=None):
    return {
        "metadata": {"name": name, "namespace": "team", "generation": 2},
        "spec": {"purpose": purpose, "source": source or {"configMap": {"name": "files"}}},
    }


def spec(dataset, **gym):
    return JobSpec.model_validate(
        {
            "tasks": {"dataset": dataset},
            "target": {"gym": {"agent": "a", "agentConfig": "c", "resourcesServer": "mcqa", **gym}},
            "models": [{"name": "policy", "baseUrl": "http://m/v1", "model": "m"}],
            "results": {"persistentVolumeClaim": {"claimName": "mine"}},
        }
    )


ENVIRONMENT = {"environment": {"fileSet": {"name": "mine"}}}
CLAIM = {"persistentvolumeclaims_mine": {"metadata": {}}}


async def read(objects, dataset, **gym):
    return await InputReader(CachedReads(Objects(**CLAIM | objects))).read("team", spec(dataset, **gym))


async def test_all_that_a_job_names_is_found():
    found = await read(
        {"filesets_mine": file_set(), "configmaps_files": FILES, "configmaps_rows": {"data": {"r": ""}}},
        {"configMap": {"name": "rows", "key": "r"}},
        **ENVIRONMENT,
    )
    assert found.missing is None
    assert found.dataset == ConfigMapFiles("rows", (("r", "dataset.jsonl"),))
    assert found.environment.config_map == ConfigMapFiles("files", (("a", "a"), ("b", "b")))
    assert (found.environment.name, found.environment.generation) == ("mine", 2)


@pytest.mark.parametrize(
    ("objects", "dataset", "gym", "reason", "words"),
    [
        ({}, {"bundled": "x"}, ENVIRONMENT, "FileSetNotFound", "FileSet 'mine'"),
        ({"filesets_mine": file_set()}, {"bundled": "x"}, ENVIRONMENT, "ConfigMapNotFound", "ConfigMap 'files'"),
        ({"filesets_mine": file_set("dataset")}, {"bundled": "x"}, ENVIRONMENT, "FileSetWrongPurpose", "'dataset'"),
        (
            {"filesets_mine": file_set(source={"persistentVolumeClaim": {"claimName": "envs"}})},
            {"bundled": "x"},
            ENVIRONMENT,
            "ClaimNotFound",
            "PersistentVolumeClaim 'envs'",
        ),
        ({}, {"configMap": {"name": "rows", "key": "r"}}, {}, "ConfigMapNotFound", "ConfigMap 'rows'"),
        (
            {"configmaps_rows": {"data": {"other": ""}}},
            {"configMap": {"name": "rows", "key": "r"}},
            {},
            "ConfigMapKeyMissing",
            "'other'",
        ),
        (
            {"filesets_mine": file_set("dataset"), "configmaps_files": FILES},
            {"fileSet": {"name": "mine", "path": "x.jsonl"}},
            {},
            "FileSetFileMissing",
            "'x.jsonl'",
        ),
        ({"persistentvolumeclaims_mine": None}, {"bundled": "x"}, {}, "ClaimNotFound", "PersistentVolumeClaim 'mine'"),
        (
            {},
            {"persistentVolumeClaim": {"claimName": "rows", "path": "a.jsonl"}},
            {},
            "ClaimNotFound",
            "PersistentVolumeClaim 'rows'",
        ),
        (
            {"configmaps_rows": ApiError(403, "Forbidden", "no")},
            {"configMap": {"name": "rows", "key": "r"}},
            {},
            "AccessDenied",
            "configmaps",
        ),
    ],
)
async def test_what_is_missing_is_named(objects, dataset, gym, reason, words):
    found = await read(objects, dataset, **gym)
    assert found.missing.reason == reason
    assert words in found.missing.message
    assert "'team'" in found.missing.message or reason not in ("ConfigMapNotFound", "FileSetNotFound")


async def test_a_set_that_only_pods_can_read_is_found_without_its_files():
    source = {"s3": {"bucket": "bkt", "prefix": "env"}}
    found = await read({"filesets_mine": file_set(source=source)}, {"bundled": "x"}, **ENVIRONMENT)
    assert found.missing is None
    assert found.environment.config_map is None and found.environment.spec.source.s3.bucket == "bkt"


async def test_a_server_that_fails_is_not_taken_for_an_absence():
    with pytest.raises(ApiError):
        await read({"configmaps_rows": ApiError(500, "", "etcd")}, {"configMap": {"name": "rows", "key": "r"}})


async def test_an_answer_is_held_for_a_few_seconds_and_no_longer():
    time = [0.0]
    objects = Objects(configmaps_rows=FILES)
    reads = CachedReads(objects, clock=lambda: time[0])
    for time[0] in (0.0, 3.9, 4.1):
        await reads.get(CONFIG_MAPS, "team", "rows")
    assert objects.asked == ["rows", "rows"]


async def test_the_runtime_class_is_there_is_not_there_or_may_not_be_asked_for():
    async def answer(**objects):
        return await InputReader(CachedReads(Objects(**objects))).runtime_class("gvisor")

    assert await answer(runtimeclasses_gvisor={}) is True
    assert await answer() is False
    denied = await answer(runtimeclasses_gvisor=ApiError(403, "Forbidden", "no"))
    assert isinstance(denied, Missing) and denied.reason is AcceptedReason.ACCESS_DENIED


async def test_a_dataset_set_is_read_for_a_dataset_only():
    objects = Objects(filesets_mine=file_set("environment"), configmaps_files=FILES)
    found = await InputReader(CachedReads(objects)).files_of("team", "mine", Purpose.DATASET)
    assert found.reason is AcceptedReason.FILESET_WRONG_PURPOSE


async def test_a_set_that_an_older_definition_admitted_is_missing_by_its_field():
    older = file_set("environment")
    older["spec"]["purpose"] = "something"
    found = await InputReader(CachedReads(Objects(filesets_mine=older))).files_of("team", "mine", Purpose.DATASET)
    assert found.reason is AcceptedReason.FILESET_NOT_RESOLVED and "spec.purpose" in found.message


# Settings

MINIMAL = {"images": {"tasks": "t", "gymHost": "h", "gymTasks": "g"}}


def load(tmp_path, content=MINIMAL, key=b"k" * 32, **environ):
    (tmp_path / "settings.yaml").write_text(json.dumps(content))
    (tmp_path / "key").write_bytes(key)
    paths = {
        "NHX_SETTINGS": str(tmp_path / "settings.yaml"),
        "NHX_OPERATOR_KEY_FILE": str(tmp_path / "key"),
    }
    return load_installation(paths | environ)


def test_defaults_are_those_that_the_documents_give(tmp_path):
    installation = load(tmp_path)
    assert installation.settings.sandbox.mode == "Auto"
    assert installation.settings.sandbox.isolation == "Kernel"
    assert installation.settings.timeouts.pod_start_seconds == 900
    assert installation.settings.timeouts.wait_for_inputs_seconds == 300
    assert installation.settings.resources.gym_host["limits"]["memory"] == "3Gi"
    assert installation.api_server is None


def test_the_address_of_the_api_is_known_in_a_pod(tmp_path):
    installation = load(tmp_path, KUBERNETES_SERVICE_HOST="10.96.0.1", KUBERNETES_SERVICE_PORT="443")
    assert installation.api_server == ("10.96.0.1", 443)


@pytest.mark.parametrize(
    ("content", "key", "words"),
    [
        ({}, b"k" * 32, "images"),
        (MINIMAL | {"sandbox": {"mode": "Maybe"}}, b"k" * 32, "sandbox.mode"),
        (MINIMAL | {"sandbux": {}}, b"k" * 32, "sandbux"),
        (MINIMAL, b"short", "at least 32"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(tmp_path, content, key, words):
    with pytest.raises(SettingsError, match=words):
        load(tmp_path, content, key)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match="NHX_SETTINGS"):
        load_installation({"NHX_SETTINGS": str(tmp_path / "none")})
