"""From an earlier release to this one with jobs under way: `helm upgrade`, and they finish."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos import world
from chaos.model import Model
from chaos.plan import Job, Where
from chaos.test_uninstall import until
from chaos.world import CRDS, LIGHT, LIGHT_CONTAINERFILE, LIGHT_IMAGE, Release
from devcluster.images import building, loading
from e2e.installations import CHART, TAG
from support import cluster
from support.cluster import ROOT
from support.job_watch import JobWatch, condition, phase

FROZEN = "057abce4bd8b01c45e23778f9f3e22010798b8f2"
"""A commit from before operators had a Lease: chart, CRDs, operator, evaluator and host are all of it."""
FROZEN_TAG = "frozen"
END_SECONDS = 600
IMAGES = ["nhx-gym-operator", "nhx-tasks", LIGHT_IMAGE]

pytestmark = pytest.mark.nightly


@pytest.fixture
def earlier(alone: None, tmp_path: Path) -> Iterator[Release]:
    """The earlier release, installed, with its own CRDs."""
    tree = tmp_path / "frozen"
    tree.mkdir()
    # Modes as a checkout has them: they are part of what a stage of an image is known by.
    archive = subprocess.run(["git", "-c", "tar.umask=0022", "archive", FROZEN], cwd=ROOT, capture_output=True)
    assert archive.returncode == 0, f"this clone has no commit {FROZEN}: fetch its whole history"
    subprocess.run(["tar", "-x"], cwd=tree, input=archive.stdout, check=True)
    bring_light_host(tree)
    building.build(IMAGES, source=tree, beside=LIGHT_CONTAINERFILE, tag=FROZEN_TAG)
    loading.load(IMAGES, FROZEN_TAG)
    world.build_light_image()
    release = Release("nhx-chaos-upgrade", LIGHT.values, chart=tree / CHART.relative_to(ROOT), tag=FROZEN_TAG)
    world.apply_crds(tree / "crds")
    try:
        with world.installed(release):
            yield release
    finally:
        world.apply_crds(CRDS)


def bring_light_host(tree: Path) -> None:
    """The light host of today's tests onto the launcher of then, without packages that there were not yet."""
    folder = Path(LIGHT_CONTAINERFILE).parent
    shutil.copytree(ROOT / folder, tree / folder)
    shutil.copy(ROOT / ".containerignore", tree)
    lines = (tree / LIGHT_CONTAINERFILE).read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("COPY ") or (tree / line.split()[1]).exists()]
    (tree / LIGHT_CONTAINERFILE).write_text("".join(kept))


def test_jobs_of_an_earlier_release_finish_under_this_one(earlier: Release, model: Model, watch: JobWatch) -> None:
    finished, running, starting, later = (
        Job(name, Where.LIGHT, 4, 2, 2) for name in ("finished", "running", "starting", "later")
    )
    model.stops |= {"running": 3}
    cluster.apply(*world.inputs(earlier.jobs, [finished, running, starting, later]))

    def submit(*jobs: Job) -> None:
        cluster.apply(*(world.manifest(job, model.url, earlier.jobs) for job in jobs))

    submit(finished, running)
    watch.finished(earlier.jobs, "finished", timeout=END_SECONDS)
    before = cluster.get("aej", "finished", earlier.jobs)["status"]
    until(lambda: model.is_waiting("running"), "a job is under way", END_SECONDS)

    submit(starting)
    world.apply_crds(CRDS)
    replace(earlier, chart=CHART, tag=TAG).install()
    model.release("running")
    submit(later)

    for job in (finished, running, starting, later):
        state = watch.finished(earlier.jobs, job.name, timeout=END_SECONDS)
        assert phase(state) == "Succeeded", state["status"]
        reward = next(entry for entry in state["status"]["aggregates"] if entry["name"] == "gym_reward.reward")
        assert (reward["value"], reward["count"]) == (job.reward, len(job.rollouts))
        answered = sorted(call.rollout for call in model.calls_of(job.name) if call.rollout and call.answered)
        assert answered == sorted(job.rollouts), f"{job.name}: a rollout was paid for twice"
    after = cluster.get("aej", "finished", earlier.jobs)
    assert after["status"]["aggregates"] == before["aggregates"]
    assert condition(after, "Complete")["lastTransitionTime"] == next(
        entry["lastTransitionTime"] for entry in before["conditions"] if entry["type"] == "Complete"
    )
