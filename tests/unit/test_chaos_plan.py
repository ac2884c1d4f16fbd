"""What chaos relies on: a plan comes from its seed alone, and its light host goes nowhere but into tests."""

from __future__ import annotations

import pytest

from chaos.plan import LONG, LOSSES, SHORT, Size, Where, make, scaled
from chaos.world import LIGHT_CONTAINERFILE, LIGHT_IMAGE
from devcluster.images import NAMES, containerfile
from devcluster.images.building import CONTAINERFILE
from support.cluster import ROOT

SIZES = pytest.mark.parametrize("size", [SHORT, scaled(LONG, 30), LONG], ids=["short", "scaled", "long"])


@SIZES
def test_the_seed_alone_makes_the_plan(size: Size) -> None:
    plan = make(6, size)
    assert plan == make(6, size)
    assert plan.faults != make(7, size).faults
    assert len(plan.jobs) == size.light + 2 * size.real
    assert len([job for job in plan.jobs if job.where is Where.COLOCATED]) == size.real
    assert {kind: len([f for f in plan.faults if f.kind is kind]) for kind in size.faults} == dict(size.faults)


@SIZES
@pytest.mark.parametrize("seed", range(20))
def test_each_fault_comes_in_the_middle_of_a_job_that_has_what_it_takes(size: Size, seed: int) -> None:
    plan = make(seed, size)
    jobs = {job.name: job for job in plan.jobs}
    assert len({fault.job for fault in plan.faults}) == len(plan.faults)
    for fault in plan.faults:
        job = jobs[fault.job]
        assert 0 < fault.after < len(job.rollouts)
        assert not (LOSSES.get(fault.kind) == "host" and job.where is Where.COLOCATED)


@SIZES
@pytest.mark.parametrize("seed", range(20))
def test_no_job_has_more_hosts_than_the_api_lets_it_have(size: Size, seed: int) -> None:
    jobs = make(seed, size).jobs
    assert {job.hosts for job in jobs if job.where is not Where.LIGHT} <= {1}
    assert {job.hosts for job in jobs} <= {1, 2}
    assert not [job for job in jobs if job.hosts > job.concurrency]


@SIZES
@pytest.mark.parametrize("seed", range(20))
def test_half_of_the_jobs_with_gym_itself_lose_a_part_in_each_placement(size: Size, seed: int) -> None:
    plan = make(seed, size)
    losing = {fault.job for fault in plan.faults if fault.kind in LOSSES}
    for where in (Where.SANDBOXED, Where.COLOCATED):
        assert len([job for job in plan.jobs if job.where is where and job.name in losing]) >= (size.real + 1) // 2


def test_the_long_plan_is_two_hundred_jobs_and_a_shorter_one_leaves_no_kind_out() -> None:
    assert len(make(6, LONG).jobs) == 200
    assert scaled(LONG, 200) == LONG
    assert set(scaled(LONG, 30).faults) == set(LONG.faults)
    assert len(make(6, scaled(LONG, 30)).jobs) == 30


def test_the_light_host_is_in_no_list_of_images_that_are_pushed() -> None:
    assert LIGHT_IMAGE not in NAMES
    assert LIGHT_IMAGE not in containerfile.parse(CONTAINERFILE.read_text())
    assert LIGHT_IMAGE in containerfile.parse((ROOT / LIGHT_CONTAINERFILE).read_text())
