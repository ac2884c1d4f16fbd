"""What a job names and what is missing: shown by name, mended by itself, ended by a deadline."""

import pytest

from nhx_gym_operator.api.conditions import AcceptedReason
from nhx_gym_operator.api.fileset import FileSet, FileSetSpec
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.inputs import Inputs, Missing, dataset_file, file_set_files
from nhx_gym_operator.workloads.workload import ConfigMapFiles, StagedFiles
from support.controller_values import NOW, after, condition_of, holds, installation, job, kinds, new, observe

ABSENT = Inputs(missing=Missing(AcceptedReason.CONFIG_MAP_NOT_FOUND, "ConfigMap 'rows' does not exist"))


def waiting_since(seconds):
    """A job that has waited for its inputs so long."""
    first = decide(new(inputs=ABSENT), after(-seconds))
    return job(status=first.status)


def test_what_is_missing_is_named_and_looked_for_again():
    decision = decide(new(inputs=ABSENT), NOW)
    entry = condition_of(decision, "Accepted")
    assert (entry["status"], entry["reason"]) == ("False", "ConfigMapNotFound")
    assert "'rows'" in entry["message"]
    assert decision.status["phase"] == "Pending"
    assert decision.actions == ()
    assert decision.requeue_after == 5.0


@pytest.mark.parametrize(
    ("spec", "until"),
    [
        ({}, "2026-11-29T12:05:00Z at most (the operator's setting timeouts.waitForInputsSeconds)"),
        ({"startingDeadlineSeconds": 60}, "2026-11-29T12:01:00Z at most (spec.startingDeadlineSeconds)"),
        ({"activeDeadlineSeconds": 400}, "2026-11-29T12:05:00Z at most"),
    ],
    ids=["the operator's", "the job's", "the sooner one"],
)
def test_a_wait_says_until_when_it_goes_on(spec, until):
    first = decide(new(job(**spec), inputs=ABSENT), NOW)
    assert until in condition_of(first, "Accepted")["message"]
    again = decide(new(job(status=first.status, **spec), inputs=ABSENT), after(7.3))
    assert condition_of(again, "Accepted") == condition_of(first, "Accepted")


def test_the_table_has_the_reason_of_a_wait_of_what_follows_and_of_the_end():
    waits = decide(new(inputs=ABSENT), NOW)
    goes_on = decide(observe(), NOW)
    ended = decide(new(waiting_since(300), inputs=ABSENT), NOW)
    assert [each.status["reason"] for each in (waits, goes_on, ended)] == [
        "ConfigMapNotFound", "PodsCreated", "InputsTimeout"
    ]  # fmt: skip


def test_a_job_recovers_when_what_was_missing_appears():
    decision = decide(new(waiting_since(100)), NOW)
    assert holds(decision, "Accepted")
    assert "Apply Service mcqa" in kinds(decision)


def test_waiting_ends_at_the_deadline_naming_what_was_missing_and_the_setting():
    decision = decide(new(waiting_since(300), inputs=ABSENT), NOW)
    entry = condition_of(decision, "Failed")
    assert entry["reason"] == "InputsTimeout"
    assert "'rows'" in entry["message"] and "timeouts.waitForInputsSeconds" in entry["message"]
    assert decision.status["phase"] == "Failed"


@pytest.mark.parametrize(
    ("spec", "seconds", "phase"), [({}, 300, "Failed"), ({"cancel": True}, 20, "Cancelled")], ids=["late", "cancelled"]
)
def test_a_job_that_has_ended_says_what_it_waited_for_and_waits_until_no_time(spec, seconds, phase):
    waited = waiting_since(seconds).status.to_dict()
    ended = decide(new(job(status=waited, **spec), inputs=ABSENT), NOW).status
    assert ended["phase"] == phase
    said = [entry["message"] for entry in ended["conditions"]]
    assert any(message.startswith(ABSENT.missing.message) for message in said)
    assert "it waits until" in waited["conditions"][0]["message"] and not any("waits until" in each for each in said)


def test_the_deadline_is_looked_at_in_time():
    assert decide(new(waiting_since(298), inputs=ABSENT), NOW).requeue_after == pytest.approx(2.0)


def test_the_deadline_is_the_administrators():
    observed = new(waiting_since(20), inputs=ABSENT, installation=installation(timeouts={"waitForInputsSeconds": 10}))
    assert holds(decide(observed, NOW), "Failed")


def files_of(*items, keys):
    source = {"configMap": {"name": "files", "items": list(items)}}
    file_set = FileSet.model_validate({"metadata": {"name": "mine"}, "spec": {"source": source}})
    return file_set_files(file_set, file_set.spec.source.config_map, frozenset(keys))


def test_items_map_keys_to_paths():
    found = files_of({"key": "app", "path": "a/app.py"}, keys={"app", "other"})
    assert found == ConfigMapFiles("files", (("app", "a/app.py"),))


def test_without_items_every_key_is_a_file():
    assert files_of(keys={"b", "a"}) == ConfigMapFiles("files", (("a", "a"), ("b", "b")))


def test_a_key_that_is_not_there_is_named_with_those_that_are():
    found = files_of({"key": "app", "path": "a.py"}, keys={"ap"})
    assert found.reason is AcceptedReason.CONFIG_MAP_KEY_MISSING
    assert "'app'" in found.message and "'ap'" in found.message and "'files'" in found.message


def test_an_empty_source_is_no_environment():
    assert files_of(keys=()).reason is AcceptedReason.FILESET_NOT_RESOLVED


def dataset_set(config_map=None, **spec):
    source = {"configMap": {"name": "files"}} if config_map else {"http": {"url": "http://h/x.zip"}}
    return StagedFiles("mine", "u", 1, FileSetSpec.model_validate({"source": source, **spec}), config_map)


def test_a_dataset_is_one_file_of_its_set():
    files = dataset_set(ConfigMapFiles("files", (("k", "rows.jsonl"),)))
    assert dataset_file(files, "rows.jsonl") == ConfigMapFiles("files", (("k", "dataset.jsonl"),))
    missing = dataset_file(files, "row.jsonl")
    assert missing.reason is AcceptedReason.FILESET_FILE_MISSING
    assert "'row.jsonl'" in missing.message and "'rows.jsonl'" in missing.message


def test_rows_are_staged_where_only_a_pod_can_read_them_or_a_digest_is_to_be_verified():
    assert dataset_file(dataset_set(), "rows.jsonl").file == "rows.jsonl"
    pinned = dataset_set(ConfigMapFiles("files", (("k", "rows.jsonl"),)), digest=f"sha256:{'0' * 64}")
    assert dataset_file(pinned, "rows.jsonl").file == "rows.jsonl"
    assert dataset_file(pinned, "row.jsonl").reason is AcceptedReason.FILESET_FILE_MISSING
