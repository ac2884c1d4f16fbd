"""Where a bundle goes, whose it is, and what it says about how it came to be."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nhx_gym_operator.api.wire import endpoints, plans
from nhx_gym_operator.api.wire.plans import BucketAddress, EvaluatorPlan, FetchPlan, UploadPlan
from nhx_gym_operator.api.wire.reports import Outcome
from nhx_gym_operator.evaluator import __main__ as program
from nhx_gym_operator.evaluator import addresses
from nhx_gym_operator.evaluator import bucket as bucket_module
from nhx_gym_operator.evaluator import upload as upload_module
from nhx_gym_operator.evaluator.upload import Upload, _files
from support.s3_server import S3Server, s3_server
from unit.evaluator_fakes import MODEL, TOKENS, World, bucket_keys, chat, evaluator_url, prompt_of, row, target, world
from unit.test_evaluator_run import bundle, finish, json_lines

ROWS = [row(number) for number in range(3)]
FOLDER = "team/mcqa-0a1b2c3d"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(autouse=True)
def near_and_short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's servers are on loopback."""
    monkeypatch.setattr(addresses, "is_refused", lambda address: False)
    monkeypatch.setattr(bucket_module, "RETRY_TIMEOUT_S", 3.0)
    monkeypatch.setattr(upload_module, "CHECK_RETRY_S", 3.0)


def uploading(w: World, server: S3Server, bucket: str, **more: Any) -> EvaluatorPlan:
    bucket_keys(w.directory, server.access_key_id, f"{server.secret_access_key}\n")
    address = BucketAddress(endpoint=server.endpoint, region=server.region, bucket=bucket, prefix="evals")
    return w.plan(ROWS, upload=UploadPlan(address=address, folder=FOLDER, timeout_s=60), **more)


def tree(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


# The object store


async def test_the_whole_bundle_is_brought_to_the_bucket_and_the_outcome_says_where(
    server: S3Server, tmp_path: Path
) -> None:
    folder = server.bucket("whole")
    async with world(tmp_path) as w:
        evaluation = w.evaluation(uploading(w, server, "whole"))

        def log() -> None:
            w.paths.log.write_text("what the evaluator logged")
            w.paths.log.with_name("evaluator.log.1").write_text("what went before")

        evaluation.on_own_results = log
        outcome = await finish(evaluation, *w.hosts)
    assert outcome.state == "Complete"
    assert (outcome.results_location, outcome.results_path) == ("s3://whole/evals", f"{FOLDER}/attempt-1")
    assert any("white space around spec.results.objectStore" in text for text in outcome.warnings)
    brought = tree(folder / "evals" / outcome.results_path)
    assert brought == tree(bundle(w.paths))
    assert {"summary.json", "report.html", "provenance.json", "gym_run/rollouts.jsonl"} <= brought.keys()
    assert brought["logs/evaluator.log"] == b"what the evaluator logged"
    assert brought["logs/evaluator.log.1"] == b"what went before"


async def test_while_results_are_uploaded_the_job_says_so(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.bucket("said")
    said: dict[str, Any] = {}
    send = Upload.send
    async with world(tmp_path) as w:
        evaluation = w.evaluation(uploading(w, server, "said"))

        async def asked(self: Upload, directory: Path) -> None:
            headers = {"Authorization": f"Bearer {TOKENS.progress}"}
            url = f"{await evaluator_url(evaluation)}/progress"
            async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
                said.update(await answer.json())
            await send(self, directory)

        monkeypatch.setattr(Upload, "send", asked)
        outcome = await finish(evaluation, *w.hosts)
    assert outcome.state == "Complete"
    assert (said["stage"], said["message"]) == ("uploading", "uploading results to s3://said/evals")
    assert said["done"] == said["total"] > 0


def test_the_summary_comes_last(tmp_path: Path) -> None:
    for name in ("trials.jsonl", "summary.json", "gym_run/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert list(_files(tmp_path)) == ["gym_run/x", "trials.jsonl", "summary.json"]


async def test_a_bucket_that_takes_nothing_is_known_before_any_rollout(server: S3Server, tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        outcome = await asyncio.wait_for(w.evaluation(uploading(w, server, "nowhere")).run(), 60)
    assert (outcome.state, outcome.reason) == ("Failed", "UploadFailed")
    assert "bucket 'nowhere'" in outcome.message and "spec.results.objectStore" in outcome.message
    assert not w.model.requests and not w.hosts[0].rollouts


async def uploaded_to_a_vanishing_bucket(w: World, server: S3Server, **plan: Any) -> Outcome:
    folder = server.bucket("vanishing")
    w.hosts[0].verify = lambda example, text: shutil.rmtree(folder, ignore_errors=True) or 1.0
    return await finish(w.evaluation(uploading(w, server, "vanishing", **plan)), *w.hosts)


async def test_a_job_whose_upload_fails_says_so_and_keeps_what_was_scored(server: S3Server, tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        outcome = await uploaded_to_a_vanishing_bucket(w, server)
    assert (outcome.state, outcome.reason, outcome.upload_failed) == ("Failed", "UploadFailed", True)
    assert "could not be uploaded" in outcome.message and "vanishing" in outcome.message
    assert (outcome.aggregates[0].name, outcome.aggregates[0].value) == ("gym_reward.reward", 1.0)
    assert outcome.results_location == ""


async def test_a_bundle_that_a_claim_has_is_not_lost_with_the_upload(server: S3Server, tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        outcome = await uploaded_to_a_vanishing_bucket(w, server, results_location="persistentVolumeClaim/mine")
    assert (outcome.state, outcome.upload_failed) == ("Complete", True)
    assert "could not be uploaded" in outcome.degraded[0] and "persistentVolumeClaim/mine" in outcome.degraded[0]
    assert (outcome.results_location, outcome.results_path) == ("", "attempt-1")


async def test_the_files_of_a_failed_job_are_brought_too(server: S3Server, tmp_path: Path) -> None:
    folder = server.bucket("failed")
    async with world(tmp_path) as w:
        w.hosts[0].verify = lambda example, text: None
        outcome = await finish(w.evaluation(uploading(w, server, "failed")), *w.hosts)
    assert (outcome.state, outcome.reason) == ("Failed", "CoverageTooLow")
    assert "gym_run/rollouts_failures.jsonl" in tree(folder / "evals" / outcome.results_path)


async def test_an_upload_has_a_deadline_that_its_message_names(server: S3Server, tmp_path: Path) -> None:
    server.bucket("slow")
    async with world(tmp_path) as w:
        plan = uploading(w, server, "slow")
        assert plan.upload is not None
        hurried = plan.model_copy(update={"upload": plan.upload.model_copy(update={"timeout_s": 1e-6})})
        outcome = await asyncio.wait_for(w.evaluation(hurried).run(), 60)
    assert outcome.reason == "UploadFailed" and "objectStore.timeoutSeconds" in outcome.message


async def test_a_reader_fetches_what_was_uploaded_and_says_why_it_cannot(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = server.bucket("fetched")
    async with world(tmp_path) as w:
        plan = uploading(w, server, "fetched")
        outcome = await finish(w.evaluation(plan), *w.hosts)
        assert plan.upload is not None
        fetch = FetchPlan(address=plan.upload.address, path=outcome.results_path, target=str(tmp_path / "back"))
        monkeypatch.setenv(plans.FETCH_PLAN_ENV, fetch.model_dump_json())
        assert await asyncio.to_thread(program._fetch, w.paths) == 0
        assert tree(tmp_path / "back") == tree(bundle(w.paths))
        shutil.rmtree(folder)
        assert await asyncio.to_thread(program._fetch, w.paths) == 1
    assert "bucket 'fetched'" in w.paths.termination_log.read_text()


# Nothing is reused between jobs


async def test_another_jobs_journal_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """Two jobs, one after the other, on one claim."""
    async with world(tmp_path) as w:
        await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
        before = tree(w.paths.results)
        w.hosts[0].rollouts.clear()
        outcome = await asyncio.wait_for(w.evaluation(w.plan(ROWS, uid="another")).run(), 60)
    assert (outcome.state, outcome.reason) == ("Failed", "ResultsNotFresh")
    assert "its uid is" in outcome.message and "a results volume of its own" in outcome.message
    assert not w.hosts[0].rollouts
    assert tree(w.paths.results) == before


@pytest.mark.parametrize("used", ["rollouts.jsonl", "rollouts_failures.jsonl", "model_calls/0-0.capture.jsonl"])
async def test_a_directory_that_holds_rollout_output_is_refused(tmp_path: Path, used: str) -> None:
    async with world(tmp_path) as w:
        file = bundle(w.paths) / "gym_run" / used
        file.parent.mkdir(parents=True)
        file.write_text("somebody's")
        outcome = await asyncio.wait_for(w.evaluation(w.plan(ROWS)).run(), 60)
    assert (outcome.state, outcome.reason) == ("Failed", "ResultsNotFresh")
    assert "already holds Gym rollout output" in outcome.message
    assert file.read_text() == "somebody's"


async def test_an_existing_empty_directory_is_used(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        (bundle(w.paths) / "gym_run" / "model_calls").mkdir(parents=True)
        outcome = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
    assert outcome.state == "Complete"


# The bundle


async def test_a_second_attempts_bundle_has_the_model_calls_of_the_first(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        host = w.hosts[0]
        host.delay_s = 0.5
        plan = w.plan(ROWS, target=target(collection_timeout_s=1.2, concurrency=2))
        first = await finish(w.evaluation(plan), host)
        assert 0 < first.progress.done < 6
        host.delay_s = 0
        again = plan.model_copy(update={"attempt": 2, "target": target()})
        await finish(w.evaluation(again), host)
    calls = bundle(w.paths, 2) / "gym_run" / "model_calls"
    assert sorted(file.name for file in calls.iterdir()) == [
        f"{task}-{repeat}.capture.jsonl" for task in range(3) for repeat in range(2)
    ]
    for trial in json_lines(bundle(w.paths, 2) / "trials.jsonl"):
        assert any("model_calls" in (entry["ref"] or "") for entry in trial["evidence"]["descriptors"].values())


async def test_a_rollout_whose_model_calls_nobody_captured_is_named(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].uncaptured = {(2, 1)}
        outcome = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
    assert (outcome.state, outcome.degraded) == ("Complete", [])
    (warning,) = outcome.warnings
    assert "gym_run/model_calls lacks 1 of 6 rollouts" in warning and "answered them: 2-1. " in warning
    assert not (bundle(w.paths) / "gym_run/model_calls/2-1.capture.jsonl").exists()
    assert "answered them: 2-1. " in (bundle(w.paths) / "report.html").read_text()


async def test_of_many_rollouts_without_model_calls_the_first_are_named(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.hosts[0].uncaptured = {(task, repeat) for task in range(3) for repeat in range(2)}
        outcome = await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
    (warning,) = outcome.warnings
    assert "lacks 6 of 6 rollouts" in warning and "answered them: 0-0, 0-1, 1-0, 1-1, 2-0 and 1 more. " in warning


async def test_gyms_reward_is_dropped_and_a_single_number_has_no_mean(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await finish(w.evaluation(w.plan(ROWS)), *w.hosts)
    written = json.loads((bundle(w.paths) / "gym_run" / "rollouts_aggregate_metrics.json").read_text())
    assert "mean/reward" in written[0]["agent_metrics"]
    scores = json.loads((bundle(w.paths) / "summary.json").read_text())["scores"]["scores"]
    gyms = {score["name"]: score for score in scores if score["name"].startswith("runner.gym.")}
    assert not any("reward" in name for name in gyms)
    accuracy = gyms["runner.gym.pass@1/accuracy"]
    assert (accuracy["score_type"], accuracy["value"], accuracy.get("mean")) == ("scalar", 100.0, None)


# Provenance


async def test_the_bundle_says_what_produced_it(tmp_path: Path) -> None:
    async def answer(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        said = chat(prompt_of(body).split()[-1]) | {"model": "org/Name-3.2-0613", "system_fingerprint": "fp_1"}
        return web.json_response(said)

    async with world(tmp_path) as w:
        w.model.answer = answer
        images = {"evaluator": "reg/nhx-tasks:1", "gymHost": "reg/nhx-gym-host:1"}
        await finish(w.evaluation(w.plan(ROWS, images=images, labels={"benchmark": "mcqa"})), *w.hosts)
    document = json.loads((bundle(w.paths) / "provenance.json").read_text(), parse_constant=pytest.fail)
    assert document["job"] == {
        "namespace": "team",
        "name": "mcqa",
        "uid": "0a1b2c3d-0000-0000-0000-000000000000",
        "attempt": 1,
        "labels": {"benchmark": "mcqa"},
        "placement": "Sandboxed",
    }
    assert document["images"]["gymHost"] == {"reference": "reg/nhx-gym-host:1", "digest": None}
    assert document["packages"]["gym"] == {"nemo-gym": "0.5.0"}
    assert document["packages"]["evaluator"]["nemo-helix-plugin"] == "0.8.1"
    assert document["dataset"]["digest"].startswith("sha256:") and document["dataset"]["tasks"] == 3
    policy = document["models"]["policy"]
    assert (policy["requested"], policy["answeredAs"]) == (MODEL, {"org/Name-3.2-0613": 6})
    assert policy["systemFingerprints"] == {"fp_1": 6} and policy["usage"]["calls"] == 6
    assert document["hostKernel"] == "gVisor" and document["earlierAttempts"] == []


async def test_the_operator_tells_the_image_digests_that_only_it_can_know(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        images = {"evaluator": "reg/nhx-tasks:1"}
        evaluation = w.evaluation(w.plan(ROWS, images=images))
        work = asyncio.create_task(evaluation.run())
        url = await evaluator_url(evaluation)
        headers = {"Authorization": f"Bearer {TOKENS.progress}"}
        async with aiohttp.ClientSession() as session:
            for told in ('{"evaluator": "reg/nhx-tasks@sha256:00"}', "not JSON", '{"evaluator": 1}', ""):
                more = {endpoints.IMAGES_HEADER: told} if told else {}
                async with session.get(f"{url}{endpoints.PROGRESS_PATH}", headers=headers | more) as answer:
                    assert answer.status == 200
        w.hosts[0].evaluator = url
        await w.hosts[0].register()
        await asyncio.wait_for(work, 60)
    document = json.loads((bundle(w.paths) / "provenance.json").read_text())
    assert document["images"] == {"evaluator": {"reference": "reg/nhx-tasks:1", "digest": "reg/nhx-tasks@sha256:00"}}


async def test_a_later_attempt_names_what_the_earlier_ones_asked(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        host = w.hosts[0]
        host.delay_s = 0.5
        plan = w.plan(ROWS, target=target(collection_timeout_s=1.2, concurrency=2))
        first = await finish(w.evaluation(plan), host)
        host.delay_s = 0
        await finish(w.evaluation(plan.model_copy(update={"attempt": 2, "target": target()})), host)
    document = json.loads((bundle(w.paths, 2) / "provenance.json").read_text())
    (earlier,) = document["earlierAttempts"]
    assert earlier["job"]["attempt"] == 1
    calls = [entry["models"]["policy"]["usage"]["calls"] for entry in (earlier, document)]
    assert calls[0] >= first.progress.done and sum(calls) >= 6
