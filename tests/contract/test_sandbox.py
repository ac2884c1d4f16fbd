"""What the page on sandboxed Gym says of borders and of time."""

from __future__ import annotations

import re
from pathlib import Path

from sandboxed_gym.host.models import DEFAULT_ROLLOUT_TIMEOUT_S

from contract import runs
from contract.pages import lines_of, numbers, table
from contract.runs import Finished
from nhx_gym_operator.api import origins_page
from nhx_gym_operator.api.job import JobSpec
from nhx_gym_operator.controller.decide import decide
from nhx_gym_operator.controller.settings import Settings
from nhx_gym_operator.evaluator.collect import through_hosts
from nhx_gym_operator.workloads import plans, pods
from support.controller_values import NOW, holds, installation, job, new, workload
from unit.evaluator_fakes import target


def test_nothing_in_a_job_chooses_the_image_or_the_runtime_or_widens_what_a_sandbox_reaches() -> None:
    paths = [path for path, _ in origins_page.fields(JobSpec, "spec")]
    assert len(paths) > 20
    found = [path for path in paths if re.search("egress|network|image|runtimeClass|provider|isolation", path)]
    # These ask for a part of what the administrator allows, and by default that is nothing.
    assert found == ["spec.egress", "spec.egress.allow"]
    asking = job(egress={"allow": ["artifacts.example.internal:443"]})
    for ceiling, refused in (["artifacts.example.internal:443"], False), ([], True):
        allowed = installation(sandbox={"egress": {"allow": ceiling}})
        assert holds(decide(new(asking, installation=allowed), NOW), "Failed") is refused


def test_a_sandbox_may_take_900_seconds_to_run() -> None:
    assert Settings.model_fields["timeouts"].default_factory().pod_start_seconds == 900  # type: ignore[misc, call-arg]


def test_no_pod_has_a_lifetime_that_ends_a_long_collection() -> None:
    evaluator, host = pods.job_pods(workload(job()))
    assert not [pod for pod in (evaluator, host) if "activeDeadlineSeconds" in pod["spec"]]


def test_an_idle_collection_has_an_hour_or_no_limit_and_a_rollout_the_half_hour_of_the_packages() -> None:
    asked = [job(), job(idleTimeoutSeconds=None)]
    assert [plans.evaluator_plan(workload(each)).idle_s for each in asked] == [3600.0, None]
    assert DEFAULT_ROLLOUT_TIMEOUT_S == 1800.0
    # A host that says so itself has two minutes for that.
    assert through_hosts.ROLLOUT_TIMEOUT_S - DEFAULT_ROLLOUT_TIMEOUT_S == 120.0


def test_the_collection_timeout_counts_over_all_requests_names_its_field_and_ends_the_host(tmp_path: Path) -> None:
    limited = target(collection_timeout_s=1.0, concurrency=1)
    run = runs.sandboxed(tmp_path, delay_s=0.4, target=limited)
    assert (run.outcome.state, run.outcome.reason) == ("Failed", "CollectionTimeout")
    assert "1 s (spec.target.gym.collectionTimeoutSeconds)" in run.outcome.message
    assert 1 <= run.outcome.progress.done < 5 and len(run.sent) < 5
    assert run.shut_down


def test_a_completed_and_a_degraded_run_end_their_hosts(whole: Finished, partly: Finished) -> None:
    assert whole.shut_down and partly.shut_down


def test_every_setting_of_the_pages_table_has_a_row() -> None:
    settings = [setting.strip("`") for setting, _, _ in table("gym-sandbox-configuration", "Setting")]
    page = lines_of("gym-sandbox-configuration")
    text = (Path(__file__).resolve().parents[2] / "docs/compatibility.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| sandbox-")]
    for setting in settings:
        (number,) = [n for n, line in enumerate(page, 1) if line.startswith(f"| `{setting}` |")]
        assert [row for row in rows if number in numbers(row[1])], setting
