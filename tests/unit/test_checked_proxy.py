"""Buckets are spoken to through addresses that were checked: after a redirect, and when a name means something else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nhx_gym_operator.api.wire.plans import BucketAddress, S3Fetch, StagePlan
from nhx_gym_operator.evaluator import addresses, checked_proxy
from nhx_gym_operator.evaluator import bucket as bucket_module
from nhx_gym_operator.evaluator.bucket import BucketError, BundleBucket
from nhx_gym_operator.evaluator.sources.errors import StagingError
from nhx_gym_operator.evaluator.stage import stage
from unit.evaluator_fakes import bucket_keys, paths_in

OPEN, SHUT = "127.0.0.1", "127.0.0.2"
FIELD = "spec.results.objectStore"
REDIRECT = 307


@pytest.fixture(autouse=True)
def one_address_is_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a metadata server, which no test machine has."""
    monkeypatch.setattr(addresses, "is_refused", lambda address: str(address) == SHUT)
    monkeypatch.setattr(bucket_module, "RETRY_TIMEOUT_S", 1.0)


@contextmanager
def server(host: str, location: str = "") -> Iterator[tuple[int, list[str]]]:
    """Its port and what it was asked for. It redirects to `location`, or has nothing."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(self.path)
            self.send_response(REDIRECT if location else 404)
            self.send_header("Content-Length", "0")
            self.send_header("Location", location + self.path) if location else None
            self.end_headers()

        do_PUT = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    running = ThreadingHTTPServer((host, 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield running.server_address[1], asked
    finally:
        running.shutdown()
        running.server_close()


def opened(endpoint: str, directory: Path) -> BundleBucket:
    keys = bucket_keys(directory, "id", "secret")
    return BundleBucket(BucketAddress(endpoint=endpoint, region="us-east-1", bucket="results"), keys, FIELD)


async def put(endpoint: str, directory: Path) -> None:
    await opened(endpoint, directory).put({"a": b"1"})


def list_source(endpoint: str, directory: Path) -> None:
    fetch = S3Fetch(endpoint=endpoint, region="us-east-1", bucket="files", prefix="env")
    about = {"job": "j", "attempt": 1, "file_set": "tiny", "uid": "u", "generation": 1, "source": "s3://files/env"}
    stage(StagePlan(**about, s3=fetch), paths_in(directory), {})


async def test_results_do_not_follow_a_redirect_to_a_refused_address(tmp_path: Path) -> None:
    with (
        server(SHUT) as (port, asked),
        server(OPEN, f"http://{SHUT}:{port}") as (open_port, first),
        pytest.raises(BucketError, match=rf"{SHUT}.*metadata server"),
    ):
        # Of what it sends obstore follows none.
        await opened(f"http://{OPEN}:{open_port}", tmp_path).list("team")
    assert first and not asked


def test_a_listing_does_not_follow_a_redirect_to_a_refused_address(tmp_path: Path) -> None:
    with (
        server(SHUT) as (port, asked),
        server(OPEN, f"http://{SHUT}:{port}") as (open_port, first),
        pytest.raises(StagingError, match=rf"{SHUT}.*metadata server"),
    ):
        list_source(f"http://{OPEN}:{open_port}", tmp_path)
    assert first and not asked


def test_a_redirect_to_another_address_is_followed(tmp_path: Path) -> None:
    with (
        server(OPEN) as (port, asked),
        server(OPEN, f"http://{OPEN}:{port}") as (open_port, _),
        pytest.raises(StagingError, match="cannot be listed"),
    ):
        list_source(f"http://{OPEN}:{open_port}", tmp_path)
    assert asked and asked[0].startswith("/files?")


@pytest.fixture
def fickle(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that is one address when it is first looked up, and another from then on."""
    answers = [OPEN]
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host != "fickle.example":
            return real(host, port, *more, **options)
        return real(answers.pop() if answers else SHUT, port, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return "fickle.example"


async def test_results_do_not_go_where_a_name_leads_later(fickle: str, tmp_path: Path) -> None:
    with server(SHUT) as (port, asked), pytest.raises(BucketError, match=rf"fickle\.example is the address {SHUT}"):
        await put(f"http://{fickle}:{port}", tmp_path)
    assert not asked


def test_a_listing_does_not_go_where_a_name_leads_later(fickle: str, tmp_path: Path) -> None:
    with server(SHUT) as (port, asked), pytest.raises(StagingError, match=rf"fickle\.example is the address {SHUT}"):
        list_source(f"http://{fickle}:{port}", tmp_path)
    assert not asked


async def test_an_endpoint_that_is_a_refused_address_is_refused_by_its_field_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    with pytest.raises(BucketError, match=rf"spec\.results\.objectStore.*{SHUT}.*metadata server"):
        await put(f"http://{SHUT}:1", tmp_path)


async def test_a_tunnel_to_a_refused_address_is_refused_too(fickle: str, tmp_path: Path) -> None:
    with server(SHUT) as (port, asked), pytest.raises(BucketError, match=rf"fickle\.example is the address {SHUT}"):
        await put(f"https://{fickle}:{port}", tmp_path)
    assert not asked


def test_where_the_pod_has_a_proxy_of_its_own_that_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = checked_proxy.CheckedProxy()
    assert "proxy_url" in proxy.client_options
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert proxy.client_options == {}
