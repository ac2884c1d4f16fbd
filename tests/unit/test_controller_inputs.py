"""What a job names is looked up on demand: what is found, and how what is missing is named."""

import pytest

from nhx_gym_operator.api.conditions import AcceptedReason
from nhx_gym_operator.api.fileset import Purpose
from nhx_gym_operator.api.job import JobSpec
from nhx_gym_operator.controller.cached_reads import CachedReads
from nhx_gym_operator.controller.inputs import InputReader, Missing
from nhx_gym_operator.controller.kube import CONFIG_MAPS, ApiError
from nhx_gym_operator.workloads.workload import ConfigMapFiles


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


async def test_a_namespace_ends_when_it_is_being_deleted_or_gone_and_stays_where_nobody_may_look():
    async def ends(**objects):
        return await InputReader(CachedReads(Objects(**objects))).namespace_ends("team")

    assert await ends(namespaces_team={"metadata": {"deletionTimestamp": "2026-11-29T12:00:00Z"}})
    assert await ends()
    assert not await ends(namespaces_team={"metadata": {}})
    assert not await ends(namespaces_team=ApiError(403, "Forbidden", "no"))


async def test_a_dataset_set_is_read_for_a_dataset_only():
    objects = Objects(filesets_mine=file_set("environment"), configmaps_files=FILES)
    found = await InputReader(CachedReads(objects)).files_of("team", "mine", Purpose.DATASET)
    assert found.reason is AcceptedReason.FILESET_WRONG_PURPOSE


async def test_a_set_that_an_older_definition_admitted_is_missing_by_its_field():
    older = file_set("environment")
    older["spec"]["purpose"] = "something"
    found = await InputReader(CachedReads(Objects(filesets_mine=older))).files_of("team", "mine", Purpose.DATASET)
    assert found.reason is AcceptedReason.FILESET_NOT_RESOLVED and "spec.purpose" in found.message


async def test_nothing_large_is_held_and_nothing_for_longer_than_it_counts():
    time = [0.0]
    large = {"data": {"rows": "x" * 1_000_000}}
    reads = CachedReads(Objects(configmaps_large=large, configmaps_small=FILES), clock=lambda: time[0])
    assert await reads.get(CONFIG_MAPS, "team", "large") == large
    for time[0] in (0.0, 5.0):
        await reads.get(CONFIG_MAPS, "team", "small")
        await reads.get(CONFIG_MAPS, f"team-{time[0]:.0f}", "small")
    assert {key[1:] for key in reads._held} == {("team", "small"), ("team-5", "small")}
