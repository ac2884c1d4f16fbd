"""FileSets on real pods: every kind of source, both formats of a package, and the page that explains them."""

from __future__ import annotations

import json
import re

import pytest

from e2e.filesets import Staging, _plain_environment, digest_of
from e2e.manifests import CAPITALS_TASKS
from e2e.runs import Run
from support.job_watch import condition, is_true

PAGES = ["from_the_page", "wheels_from_the_page"]
RUNS = pytest.mark.parametrize("run", ["wheels_from_a_bucket", *PAGES], indirect=True)


@RUNS
def test_an_environment_of_ones_own_is_scored(run: Run) -> None:
    progress = run.status["progress"]
    assert (progress["done"], progress["failed"], progress["total"]) == (2 * CAPITALS_TASKS, 0, 2 * CAPITALS_TASKS)
    assert run.aggregates["gym_reward.reward"]["value"] == 1.0


def test_wheels_are_installed_without_an_index_under_a_kernel_of_its_own(wheels_from_a_bucket: Run) -> None:
    assert wheels_from_a_bucket.status["isolation"] == "Kernel"
    log = wheels_from_a_bucket.logs["gym-host"]
    assert "near-enough==1.0.0" in log, log[-3000:]


def test_an_env_yaml_in_the_package_reroutes_nothing(wheels_from_a_bucket: Run) -> None:
    usage = wheels_from_a_bucket.status["usage"]["policy"]
    assert usage["calls"] >= 2 * CAPITALS_TASKS and usage["failedCalls"] == 0


def test_a_set_that_a_job_has_read_shows_what_it_is_and_who_read_it(wheels_from_a_bucket: Run) -> None:
    run, environment = wheels_from_a_bucket, wheels_from_a_bucket.facts["capitals-wheels"]["status"]
    assert environment["digest"] == run.facts["digest"] == run.status["ran"]["environmentDigest"]
    assert run.bundle
    written = json.loads((run.bundle / "provenance.json").read_text())
    assert written["environment"]["digest"] == environment["digest"]
    assert written["dataset"]["digest"].startswith("sha256:")
    assert environment["seenBy"]["job"] == "capitals-wheels" and environment["bytes"] > 0
    rows = wheels_from_a_bucket.facts["capitals-rows"]["status"]
    assert rows["files"] == 1 and condition(wheels_from_a_bucket.facts["capitals-rows"], "Resolved")["status"] == "True"
    assert is_true(run.job, "Staged")


def test_the_keys_of_a_source_reach_the_stage_container_alone(wheels_from_a_bucket: Run) -> None:
    spec = wheels_from_a_bucket.pod("evaluator")["spec"]
    holders = [
        container["name"]
        for container in [*spec["initContainers"], *spec["containers"]]
        if any("nhx/source" in mount["mountPath"] for mount in container["volumeMounts"])
    ]
    assert holders == ["stage-environment"]


@pytest.mark.parametrize("run", PAGES, indirect=True)
def test_the_pages_commands_wait_for_the_jobs_end_and_show_its_reward(run: Run) -> None:
    said = run.facts["said"]
    assert re.search(r"^Succeeded +6/6 ", said, re.MULTILINE), said
    shown = "fileset.evals.nhx.io/capitals " if run.job["metadata"]["name"] == "capitals" else "gym_reward.reward "
    assert shown in said


def test_a_folder_that_the_plugin_submits_is_installed_with_its_wheels_and_goes_with_the_job(
    wheels_from_the_page: Run,
) -> None:
    log = wheels_from_the_page.logs["gym-host"]
    assert "near-enough==1.0.0" in log, log[-3000:]
    uid = wheels_from_the_page.job["metadata"]["uid"]
    for name, owners in wheels_from_the_page.facts["owned"].items():
        assert [owner["uid"] for owner in owners] == [uid], name


@pytest.mark.parametrize("source", ["claim", "archive"])
def test_one_tree_has_one_digest_from_every_source(source: str, other_sources: dict[str, Staging]) -> None:
    staging = other_sources[source]
    assert is_true(staging.job, "Staged")
    assert staging.file_set["status"]["digest"] == digest_of(_plain_environment())
    assert staging.resolved["status"] == "True"


def test_rows_come_out_of_an_image(other_sources: dict[str, Staging]) -> None:
    assert is_true(other_sources["image"].job, "Staged")
    assert other_sources["image"].file_set["status"]["files"] > 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("pinned", ["source.http.sha256 asks for " + "0" * 64, "spec.digest"]),
        ("missing", ["HTTP 404", "envv.tar.gz"]),
        ("metadata", ["169.254.169.254", "metadata server"]),
    ],
)
def test_why_a_source_was_refused_stands_on_the_job_and_on_the_set(
    source: str, words: list[str], other_sources: dict[str, Staging]
) -> None:
    staging = other_sources[source]
    assert condition(staging.job, "Staged")["reason"] == "StagingFailed"
    assert staging.resolved["reason"] == "StagingFailed"
    for word in words:
        assert word in condition(staging.job, "Staged")["message"] and word in staging.resolved["message"]


def test_a_requirement_that_only_an_index_could_meet_is_refused_by_its_line(lacking_requirement: Run) -> None:
    message = condition(lacking_requirement.job, "Failed")["message"]
    assert "resources_servers/capitals/requirements.txt, line 2: 'nowhere-to-be-found>=2'" in message
    assert "wheels/" in message
