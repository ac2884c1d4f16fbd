"""A FileSet's status: what the operator can see itself, and what the pods of jobs report."""

import tracemalloc

import pytest

from nhx_gym_operator.api.conditions import AcceptedReason
from nhx_gym_operator.api.fileset import FileSet
from nhx_gym_operator.api.tree import tree_digest
from nhx_gym_operator.api.wire.plans import StagePlan
from nhx_gym_operator.api.wire.reports import Staged
from nhx_gym_operator.controller.conditions import MESSAGE_LIMIT
from nhx_gym_operator.controller.filesets import file_set_status
from nhx_gym_operator.controller.inputs import Missing, config_map_content
from nhx_gym_operator.controller.staging_reports import StagingReport
from support.controller_values import NOW

CONFIG_MAP = {"configMap": {"name": "files", "items": [{"key": "app", "path": "a/app.py"}, {"key": "b", "path": "b"}]}}
HTTP = {"http": {"url": "http://files/env.tgz"}}
DATA = {"data": {"app": "print('ü')\n"}, "binaryData": {"b": "AP8="}}


def file_set(source=HTTP, status=None, generation=2):
    metadata = {"name": "mine", "namespace": "team", "uid": "u", "generation": generation}
    return FileSet.model_validate({"metadata": metadata, "spec": {"source": source}, "status": status or {}})


def content(data=DATA):
    found = file_set(CONFIG_MAP)
    return config_map_content(found, found.spec.source.config_map, data)


def report(digest="sha256:aa", *, job="first", time="2026-11-29T12:00:00Z", generation=2, failure=""):
    plan = StagePlan(job=job, attempt=1, file_set="mine", uid="u", generation=generation, source="x")
    staged = None if failure else Staged(digest=digest, files=3, bytes=99)
    return StagingReport(plan, time, staged, failure)


def status_of(file_set, found, said=None, now=NOW):
    status = file_set_status(file_set, found, said, now)
    (entry,) = status["conditions"]
    assert entry["type"] == "Resolved"
    return status, entry


def test_a_config_map_is_described_by_the_operator_just_as_staging_would(tmp_path):
    status, entry = status_of(file_set(CONFIG_MAP), content())
    (tmp_path / "a").mkdir()
    (tmp_path / "a/app.py").write_text("print('ü')\n")
    (tmp_path / "b").write_bytes(b"\x00\xff")
    assert status["digest"] == tree_digest(tmp_path)
    assert (status["files"], status["bytes"], status["observedGeneration"]) == (2, len("print('ü')\n".encode()) + 2, 2)
    assert (entry["status"], entry["reason"]) == ("True", "Resolved")


def test_an_unchanged_set_keeps_its_status():
    first, _ = status_of(file_set(CONFIG_MAP), content())
    assert status_of(file_set(CONFIG_MAP, first), content(), now=NOW.replace(hour=20))[0] == first


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        (AcceptedReason.CONFIG_MAP_NOT_FOUND, "ConfigMapNotFound"),
        (AcceptedReason.CONFIG_MAP_KEY_MISSING, "ConfigMapKeyMissing"),
        (AcceptedReason.FILESET_NOT_RESOLVED, "NoFiles"),
        (AcceptedReason.CLAIM_NOT_FOUND, "ClaimNotFound"),
        (AcceptedReason.ACCESS_DENIED, "AccessDenied"),
    ],
)
def test_an_unresolved_set_says_why(missing, reason):
    status, entry = status_of(file_set(), Missing(missing, "why"))
    assert (entry["status"], entry["reason"], entry["message"]) == ("False", reason, "why")
    assert status["files"] == 0


def test_of_a_source_that_only_pods_can_read_nothing_is_known_before_a_job_has_read_it():
    status, entry = status_of(file_set(), None)
    assert (entry["status"], entry["reason"]) == ("Unknown", "NotReadYet")
    assert "http://files/env.tgz" in entry["message"]
    assert "files" not in status and "digest" not in status


def test_what_a_job_found_is_shown_with_its_name_and_stays():
    status, entry = status_of(file_set(), None, report())
    assert (status["files"], status["bytes"], status["digest"]) == (3, 99, "sha256:aa")
    assert status["seenBy"] == {"job": "first", "attempt": 1, "time": "2026-11-29T12:00:00Z"}
    assert entry["status"] == "True" and "'first'" in entry["message"]
    for said in (None, report()):
        assert status_of(file_set(status=status), None, said, NOW.replace(hour=20))[0] == status


def test_why_a_job_could_not_read_it_is_shown_with_its_name():
    _, entry = status_of(file_set(), None, report(failure="there are no objects under s3://b/x"))
    assert (entry["status"], entry["reason"]) == ("False", "StagingFailed")
    assert "'first'" in entry["message"] and "no objects under s3://b/x" in entry["message"]


def test_what_a_pod_printed_stands_plain_and_bounded_in_the_condition():
    _, entry = status_of(file_set(), None, report(failure="\x1b[2J\x1b[31mno\x07 such file\x1b[0m\r\n" + "x" * 5000))
    assert "no such file\nxxx" in entry["message"]
    assert "\x1b" not in entry["message"] and "\x07" not in entry["message"]
    assert len(entry["message"]) == MESSAGE_LIMIT


def test_content_that_changed_between_two_jobs_is_said_with_both_digests():
    first, _ = status_of(file_set(), None, report())
    later = report("sha256:bb", job="second", time="2026-11-29T13:00:00Z")
    status, entry = status_of(file_set(status=first), None, later)
    assert status["digest"] == "sha256:bb" and status["seenBy"]["job"] == "second"
    assert "sha256:aa" in entry["message"] and "'first'" in entry["message"] and "sha256:bb" in entry["message"]
    assert status_of(file_set(status=status), None, later)[0] == status


def test_an_older_report_changes_nothing():
    first, _ = status_of(file_set(), None, report(time="2026-11-29T13:00:00Z"))
    assert status_of(file_set(status=first), None, report("sha256:old"))[0] == first


def test_a_changed_spec_is_unknown_until_a_job_has_read_it_as_it_is_now():
    first, _ = status_of(file_set(), None, report())
    changed = file_set(status=first, generation=3)
    assert status_of(changed, None, report())[1]["reason"] == "NotReadYet"
    status, entry = status_of(changed, None, report("sha256:bb", time="2026-11-29T13:00:00Z", generation=3))
    assert status["digest"] == "sha256:bb" and "changed" not in entry["message"]


def test_one_large_key_under_many_paths_is_read_once_and_described_as_staging_would(tmp_path):
    items = [{"key": "big", "path": f"copy-{number}"} for number in range(200)]
    found = file_set({"configMap": {"name": "files", "items": items}})
    text = "x" * 1_000_000
    tracemalloc.start()
    described = config_map_content(found, found.spec.source.config_map, {"data": {"big": text}})
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 5_000_000
    for number in range(200):
        (tmp_path / f"copy-{number}").symlink_to(tmp_path / "copy-0") if number else (tmp_path / "copy-0").write_text(
            text
        )
    assert (described.digest, described.bytes) == (tree_digest(tmp_path), 200 * len(text))
