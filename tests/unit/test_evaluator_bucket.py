"""A bucket of a real S3 server: what is put there, what is said when it is not, and what comes back."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from nhx_gym_operator.api.wire.plans import BucketAddress
from nhx_gym_operator.evaluator import addresses
from nhx_gym_operator.evaluator import bucket as module
from nhx_gym_operator.evaluator.bucket import BucketError, BundleBucket
from support.certificates import private_authority
from support.s3_server import S3Server, s3_server
from unit.evaluator_fakes import bucket_keys, serving

FIELD = "spec.results.objectStore"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        running.bucket("results")
        yield running


@pytest.fixture(autouse=True)
def near_and_short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's servers are on loopback."""
    monkeypatch.setattr(addresses, "is_refused", lambda address: False)
    monkeypatch.setattr(module, "RETRY_TIMEOUT_S", 5.0)


def opened(server: S3Server, directory: Path, *, certificates: Path | None = None, **changes: object) -> BundleBucket:
    """The bucket as a pod opens it; `changes` are those of its address."""
    keys = bucket_keys(directory, server.access_key_id, server.secret_access_key)
    if certificates:
        shutil.copy(certificates, made_parent(keys / "certificates" / "value"))
    address = {"endpoint": server.endpoint, "region": server.region, "bucket": "results", **changes}
    return BundleBucket(BucketAddress(**address), keys, FIELD)


def made_parent(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def tree(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("prefix", ["", "plain", "my envs/tiny qa+v2/#1 100%"])
async def test_files_come_back_as_they_were_put_whatever_the_prefix(
    server: S3Server, tmp_path: Path, prefix: str
) -> None:
    there = opened(server, tmp_path, prefix=prefix)
    large = tmp_path / "rollouts.jsonl"
    large.write_bytes(os.urandom(12 * 1024 * 1024))
    files: dict[str, Path | bytes] = {
        "team/mcqa-1/attempt-1/gym_run/rollouts.jsonl": large,
        "team/mcqa-1/attempt-1/gym_run/rollouts_failures.jsonl": b"",
        "team/mcqa-1/attempt-1/summary.json": b"{}",
    }
    await there.put(files)
    assert await there.get("team/mcqa-1/attempt-1", tmp_path / "back") == 3
    assert tree(tmp_path / "back") == {
        "gym_run/rollouts.jsonl": large.read_bytes(),
        "gym_run/rollouts_failures.jsonl": b"",
        "summary.json": b"{}",
    }


async def test_a_folder_holds_its_own_files_only(server: S3Server, tmp_path: Path) -> None:
    there = opened(server, tmp_path, prefix="siblings")
    await there.put({"job-1/attempt-1/a": b"1", "job-1/attempt-10/b": b"2", "job-12/attempt-1/c": b"3"})
    assert await there.list("job-1/attempt-1") == {"a": 1}


async def test_a_folder_without_files_gives_none(server: S3Server, tmp_path: Path) -> None:
    assert await opened(server, tmp_path).get("nobody/was/here", tmp_path / "back") == 0


async def test_refused_credentials_are_named_by_field_and_not_printed(server: S3Server, tmp_path: Path) -> None:
    keys = bucket_keys(tmp_path, server.access_key_id, "a-secret-that-is-wrong")
    there = BundleBucket(BucketAddress(endpoint=server.endpoint, region=server.region, bucket="results"), keys, FIELD)
    with pytest.raises(BucketError, match=r"spec\.results\.objectStore\.credentials") as refused:
        await there.put({"a": b"1"})
    assert "refuses these credentials" in str(refused.value)
    assert "a-secret-that-is-wrong" not in str(refused.value) and server.secret_access_key not in str(refused.value)


async def test_a_missing_bucket_is_named_with_its_server(server: S3Server, tmp_path: Path) -> None:
    with pytest.raises(BucketError, match=r"bucket 'nowhere' at http://127\.0\.0\.1") as missing:
        await opened(server, tmp_path, bucket="nowhere").put({"a": b"1"})
    assert "NoSuchBucket" in str(missing.value)


@pytest.mark.parametrize(
    "endpoint, cause",
    [("http://127.0.0.1:9", "the connection was refused"), ("http://nobody.invalid", "no such host is known here")],
)
async def test_a_server_that_does_not_answer_is_named_and_not_waited_for_without_end(
    tmp_path: Path, endpoint: str, cause: str
) -> None:
    nobody = S3Server(endpoint, "us-east-1", "key", "secret", tmp_path)
    with pytest.raises(BucketError, match=f"at {re.escape(endpoint)} .*{cause}"):
        await opened(nobody, tmp_path).put({"a": b"1"})


@asynccontextmanager
async def stumbling(server: S3Server, refusals: int) -> AsyncIterator[S3Server]:
    """The server behind a proxy that answers 503 so many times first."""
    left = refusals

    async def forward(request: web.Request) -> web.Response:
        nonlocal left
        body = await request.read()
        if left > 0:
            left -= 1
            return web.Response(status=503, text="<Error><Code>SlowDown</Code></Error>")
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, server.endpoint + request.raw_path, headers=request.headers, data=body
            ) as answer,
        ):
            kept = {name: answer.headers[name] for name in ("ETag", "Content-Type") if name in answer.headers}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", forward)
    async with serving(app) as url:
        yield S3Server(url, server.region, server.access_key_id, server.secret_access_key, server.root)


async def test_a_server_that_is_busy_for_a_moment_is_asked_again(server: S3Server, tmp_path: Path) -> None:
    async with stumbling(server, refusals=3) as busy:
        there = opened(busy, tmp_path, prefix="busy")
        await there.put({"a": b"1", "b": b"2"})
        assert await there.list("") == {"a": 1, "b": 1}


async def test_a_file_that_is_not_there_afterwards_is_noticed(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = opened(server, tmp_path, prefix="lossy")
    put = there._put

    async def lose_b(key: str, content: Path | bytes) -> str | None:
        tag = await put(key, content)
        if key == "b":
            (server.bucket("results") / "lossy" / "b").unlink()
        return tag

    monkeypatch.setattr(there, "_put", lose_b)
    with pytest.raises(BucketError, match="b was taken and is not there"):
        await there.put({"b": b"1", "a": b"2"})


async def test_a_file_that_something_else_overwrote_is_noticed(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = opened(server, tmp_path, prefix="shared")
    put = there._put

    async def overwrite(key: str, content: Path | bytes) -> str | None:
        tag = await put(key, content)
        await put(key, b"X")
        return tag

    monkeypatch.setattr(there, "_put", overwrite)
    with pytest.raises(BucketError, match="a is not what was put there"):
        await there.put({"a": b"1"})


async def test_a_key_stored_with_an_editors_line_end_works(server: S3Server, tmp_path: Path) -> None:
    keys = bucket_keys(tmp_path, f"{server.access_key_id}\r\n", f" {server.secret_access_key}\n")
    there = BundleBucket(BucketAddress(endpoint=server.endpoint, region=server.region, bucket="results"), keys, FIELD)
    await there.put({"line-end/a": b"1"})
    assert [field.rpartition("credentials.")[2] for field in there.trimmed] == [
        "accessKeyId.secretKeyRef",
        "secretAccessKey.secretKeyRef",
    ]


@pytest.mark.parametrize(
    "variable", ["AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_SKIP_SIGNATURE", "AWS_SERVER_SIDE_ENCRYPTION"]
)
async def test_variables_for_gyms_own_use_of_a_bucket_change_nothing(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "true")
    await opened(server, tmp_path).put({"variables/a": b"1"})
    assert os.environ[variable] == "true"


@pytest.mark.parametrize("stored", ["two\nlines", "", " \n", "schlüssel"])
def test_a_key_that_no_request_can_carry_is_refused_by_field(tmp_path: Path, stored: str) -> None:
    keys = bucket_keys(tmp_path, "id", stored)
    with pytest.raises(BucketError, match=r"credentials\.secretAccessKey\.secretKeyRef (is empty|holds a line break)"):
        BundleBucket(BucketAddress(region="us-east-1", bucket="results"), keys, FIELD)


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    keys = bucket_keys(tmp_path, "id", "secret")
    shutil.rmtree(keys / "access-key-id")
    with pytest.raises(BucketError, match=r"credentials\.accessKeyId\.secretKeyRef cannot be read"):
        BundleBucket(BucketAddress(region="us-east-1", bucket="results"), keys, FIELD)


async def test_a_server_of_a_private_authority_is_trusted_once_its_certificate_is_given(tmp_path: Path) -> None:
    made = private_authority(tmp_path)
    with s3_server(tmp_path, certificate=made.certificate, key=made.key) as server:
        server.bucket("results")
        with pytest.raises(BucketError, match=r"https://127\.0\.0\.1.*unknown authority.*objectStore\.certificates"):
            await opened(server, tmp_path).put({"a": b"1"})
        there = opened(server, tmp_path, has_certificates=True, certificates=made.authority)
        await there.put({"a": b"1"})
        assert await there.list("") == {"a": 1}


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_an_object_whose_name_leads_out_of_the_target_is_not_fetched(name: str) -> None:
    assert not module._stays_inside(name)
