"""What stage containers said: read once, for the job and for the FileSet alike."""

import pytest

from nhx_gym_operator.api.fileset import FileSetSpec
from nhx_gym_operator.api.wire.reports import Staged
from nhx_gym_operator.controller import staging_reports
from nhx_gym_operator.workloads.workload import StagedFiles
from support.controller_values import ended, evaluator, job, running, workload

URL = "http://files/a$b/$(HOME)/env.tgz"
FOUND = Staged(digest="sha256:new", files=3, bytes=99)


def pod(environment, dataset=None):
    source = FileSetSpec.model_validate({"source": {"http": {"url": URL}}})
    of = workload(
        job(),
        environment=StagedFiles("mine", "uid-of-mine", 3, source),
        dataset=StagedFiles("rows", "uid-of-rows", 1, source, file="rows.jsonl"),
    )
    return evaluator(of, states={"stage-environment": environment, **({"stage-dataset": dataset} if dataset else {})})


def test_a_plan_comes_back_to_the_letter_from_the_pod_that_carries_it():
    (report,) = staging_reports.reports(pod(ended(message=FOUND.model_dump_json())))
    assert report.plan.http.url == URL and report.staged == FOUND


@pytest.mark.parametrize(
    ("message", "words"), [("HTTP 404\n", "HTTP 404"), ("", "exit code 137 (OOMKilled)")], ids=["said", "said nothing"]
)
def test_a_failure_has_the_same_words_for_the_job_and_for_the_set(message, words):
    failed = pod(ended(message=FOUND.model_dump_json()), ended(137, message, reason="OOMKilled"))
    assert staging_reports.failure(failed) == words
    assert [report.failure for report in staging_reports.reports(failed)] == ["", words]


def test_an_end_that_cannot_be_read_is_no_report():
    assert staging_reports.reports(pod(ended(message="Traceback"), running())) == ()


def test_a_pod_that_stages_nothing_has_nothing_to_say():
    plain = evaluator(workload())
    assert staging_reports.failure(plain) is None and staging_reports.reports(plain) == ()
    assert staging_reports.failure(None) is None and staging_reports.reports(None) == ()
