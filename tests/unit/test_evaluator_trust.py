"""Model endpoints with the certificate of a private authority."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from nhx_gym_operator.api.wire.reports import FailureClass
from nhx_gym_operator.evaluator.trust import NoCertificates, trust
from support.certificates import Certificates, private_authority
from unit.evaluator_fakes import FakeModel, World, evaluator_url, route, row, world
from unit.test_evaluator_run import finish
from unit.test_gateway_calls import gate

FIELD = "spec.models[name=policy]"


@contextlib.asynccontextmanager
async def over_tls(made: Certificates) -> AsyncIterator[str]:
    """A model server with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    runner = web.AppRunner(FakeModel().app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def trusting(w: World, made: Certificates) -> None:
    file = w.paths.model_certificates / "policy" / "value"
    file.parent.mkdir(parents=True)
    file.write_bytes(made.authority.read_bytes())


async def test_a_model_of_an_unknown_authority_ends_the_job_at_once_with_host_and_field(tmp_path: Path) -> None:
    made = private_authority(tmp_path)
    async with over_tls(made) as url, world(tmp_path) as w:
        plan = w.plan([row(0)]).model_copy(update={"models": [route(url)]})
        # No gym host ever comes.
        outcome = await asyncio.wait_for(w.evaluation(plan).run(), 60)
    assert (outcome.state, outcome.reason, outcome.failure_class) == ("Failed", "ModelUnavailable", "model")
    host = url.removeprefix("https://").removesuffix("/v1")
    for words in ("model policy answered no call", host, "unknown authority", f"{FIELD}.certificates"):
        assert words in outcome.message


async def test_it_is_called_once_the_job_names_its_authority(tmp_path: Path) -> None:
    made = private_authority(tmp_path)
    async with over_tls(made) as url, world(tmp_path) as w:
        trusting(w, made)
        plan = w.plan([row(0)]).model_copy(update={"models": [route(url, has_certificates=True)]})
        outcome = await finish(w.evaluation(plan), *w.hosts)
    assert (outcome.state, outcome.aggregates[0].value) == ("Complete", 1.0)


async def test_a_certificate_that_goes_bad_during_the_run_is_a_refusal_of_the_model(tmp_path: Path) -> None:
    made = private_authority(tmp_path)
    async with over_tls(made) as url, gate(tmp_path, url=url, max_retries=3) as g:
        status, body = await g.call()
        call = g.calls.behind(body["error"]["message"])
    assert status == 424 and "unknown authority" in body["error"]["message"]
    assert call is not None and call.failure_class is FailureClass.MODEL


async def test_another_hosts_certificate_is_refused_whoever_signed_it(tmp_path: Path) -> None:
    made = private_authority(tmp_path, "127.0.0.2")
    async with over_tls(made) as url, world(tmp_path) as w:
        trusting(w, made)
        plan = w.plan([row(0)]).model_copy(update={"models": [route(url, has_certificates=True)]})
        outcome = await asyncio.wait_for(w.evaluation(plan).run(), 60)
    assert outcome.reason == "ModelUnavailable"
    assert "cannot be trusted" in outcome.message and "unknown authority" not in outcome.message


async def test_a_model_that_is_not_there_yet_is_waited_for_as_ever(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        plan = w.plan([row(0)]).model_copy(update={"models": [route("https://127.0.0.1:9/v1")]})
        evaluation = w.evaluation(plan)
        work = asyncio.create_task(evaluation.run())
        await evaluator_url(evaluation)
        assert not work.done()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def test_a_file_without_certificates_is_refused_by_its_field(tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_text("nonsense")
    with pytest.raises(NoCertificates, match=r"spec\.models\[name=policy\]\.certificates holds no PEM certificate"):
        trust(file, FIELD)
