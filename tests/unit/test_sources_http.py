"""Archives on web servers: fetched by a stage container from a real server, refused or given up with a reason."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from nhx_gym_operator.api.tree import tree_digest, tree_files
from nhx_gym_operator.api.wire.mounts import AUTHORIZATION
from nhx_gym_operator.api.wire.plans import HttpFetch, StagePlan
from nhx_gym_operator.api.wire.reports import Staged
from nhx_gym_operator.evaluator import addresses
from nhx_gym_operator.evaluator.plan import PlanError, load_source_secrets
from nhx_gym_operator.evaluator.sources import download
from nhx_gym_operator.evaluator.sources.errors import StagingError
from nhx_gym_operator.evaluator.stage import stage
from support.certificates import Certificates, private_authority
from unit.evaluator_fakes import paths_in
from unit.test_evaluator_stage import FILES
from unit.test_sources_archives import tar_of, zip_of

TREE = {name: text.encode() for name, text in FILES.items()}
ARCHIVE = gzip.compress(tar_of(TREE))
IS_REFUSED = addresses.is_refused


@dataclass
class Files:
    """A web server. `answers` are given first, one a request; then `archive`."""

    url: str = ""
    archive: bytes = ARCHIVE
    answers: list[Callable[[], web.StreamResponse]] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append({"path": request.path_qs, **request.headers})
        if self.answers:
            return self.answers.pop(0)()
        return web.Response(body=self.archive, content_type="application/gzip")


def serving(files: Files, context: ssl.SSLContext | None = None) -> Iterator[Files]:
    """In a thread of its own: staging runs an event loop itself."""
    loop = asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/{path:.*}", files.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        files.url = f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield files
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def tls(made: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    return context


@pytest.fixture
def files() -> Iterator[Files]:
    yield from serving(Files())


@pytest.fixture
def elsewhere() -> Iterator[Files]:
    yield from serving(Files())


@pytest.fixture(autouse=True)
def near_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's servers are on loopback, and nobody waits for a server that is meant to fail."""
    monkeypatch.setattr(addresses, "is_refused", lambda address: not address.is_loopback and IS_REFUSED(address))
    monkeypatch.setattr(download, "delay_before_retry", lambda number, headers: 0.01)


def staged(
    directory: Path, url: str, *, secrets: dict[str, str] | None = None, ca: Path | None = None, **plan
) -> Staged:
    paths = paths_in(directory)
    if ca:
        paths.source_certificates.parent.mkdir(parents=True, exist_ok=True)
        paths.source_certificates.write_bytes(ca.read_bytes())
    http = HttpFetch(url=url, sha256=plan.pop("sha256", None))
    source = url.partition("?")[0]
    what = StagePlan(job="j", attempt=1, file_set="tiny", uid="u", generation=1, source=source, http=http, **plan)
    return stage(what, paths, secrets or {})


def refusal(*args, **kwargs) -> str:
    with pytest.raises(StagingError) as error:
        staged(*args, **kwargs)
    return str(error.value)


def test_an_archive_becomes_the_same_tree_as_the_folder_it_was_packed_from(files: Files, tmp_path: Path) -> None:
    found = staged(tmp_path, f"{files.url}/env.tgz?sig=x", sha256=hashlib.sha256(ARCHIVE).hexdigest())
    assert tree_files(tmp_path / "environment") == sorted(FILES)
    assert found.digest == tree_digest(tmp_path / "environment") and found.files == len(FILES)
    assert files.requests[0]["path"] == "/env.tgz?sig=x"


def test_an_archive_that_is_served_with_a_content_encoding_is_taken_as_it_is(files: Files, tmp_path: Path) -> None:
    files.answers = [lambda: web.Response(body=ARCHIVE, headers={"Content-Encoding": "gzip"})]
    staged(tmp_path, files.url, sha256=hashlib.sha256(ARCHIVE).hexdigest())


def test_other_bytes_are_refused_with_both_sums_and_nothing_of_them_is_staged(files: Files, tmp_path: Path) -> None:
    files.archive = b"no archive, but something that is made for the one who unpacks it"
    wanted = hashlib.sha256(ARCHIVE).hexdigest()
    words = refusal(tmp_path, files.url, sha256=wanted)
    assert wanted in words and hashlib.sha256(files.archive).hexdigest() in words
    assert "source.http.sha256" in words and "spec.digest" in words and "cannot be unpacked" in words
    assert tree_files(tmp_path / "environment") == []


def test_the_same_files_packed_again_are_refused_with_the_digest_that_they_had(files: Files, tmp_path: Path) -> None:
    wanted, right = hashlib.sha256(ARCHIVE).hexdigest(), staged(tmp_path, files.url).digest
    files.archive = gzip.compress(tar_of(TREE), compresslevel=1, mtime=5)
    words = refusal(tmp_path, files.url, sha256=wanted)
    assert wanted in words and right in words
    assert tree_files(tmp_path / "environment") == []
    files.archive = zip_of({f"tiny-1.0/{name}": content for name, content in TREE.items()})
    assert right in refusal(tmp_path, files.url, sha256=wanted, path="tiny-1.0")


def test_the_digest_of_a_set_does_not_depend_on_packing(files: Files, tmp_path: Path) -> None:
    right = staged(tmp_path, files.url)
    files.archive = gzip.compress(tar_of(TREE), compresslevel=1, mtime=5)
    assert staged(tmp_path, files.url, digest=right.digest) == right


def test_a_tree_one_folder_down_is_found_by_its_path_and_refused_naming_the_field(files: Files, tmp_path: Path) -> None:
    files.archive = zip_of({f"tiny-1.0/{name}": content for name, content in TREE.items()})
    words = refusal(tmp_path, files.url)
    assert "'tiny-1.0'" in words and "source.http.path" in words
    staged(tmp_path, files.url, path="tiny-1.0")


def test_the_header_is_sent_and_does_not_follow_a_redirect_to_another_server(
    files: Files, elsewhere: Files, tmp_path: Path
) -> None:
    def to(url: str) -> Callable[[], web.StreamResponse]:
        return lambda: web.Response(status=302, headers={"Location": url})

    files.answers = [to("/moved"), to(f"{elsewhere.url}/there")]
    staged(tmp_path, files.url, secrets={AUTHORIZATION: "Bearer t0p"})
    assert [request.get("Authorization") for request in files.requests] == ["Bearer t0p", "Bearer t0p"]
    assert [request.get("Authorization") for request in elsewhere.requests] == [None]


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/latest/meta-data", "http://[fd00:ec2::254]/", "http://[::ffff:169.254.169.254]/"]
)
def test_a_redirect_to_a_metadata_server_is_refused(target: str, files: Files, tmp_path: Path) -> None:
    files.answers = [lambda: web.Response(status=307, headers={"Location": target})]
    assert "metadata server" in refusal(tmp_path, files.url)
    assert "metadata server" in refusal(tmp_path, target)


def test_a_name_of_a_metadata_server_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def resolve(self, host, port=0, family=0):
        return [{"hostname": host, "host": "169.254.169.254", "port": port, "family": 2, "proto": 0, "flags": 0}]

    monkeypatch.setattr(addresses.ThreadedResolver, "resolve", resolve)
    assert "169.254.169.254" in refusal(tmp_path, "http://metadata.internal/x.tgz")


def test_a_step_down_from_https_is_refused(files: Files, tmp_path: Path) -> None:
    made = private_authority(tmp_path)
    for secure in serving(Files(), tls(made)):
        secure.answers = [lambda: web.Response(status=302, headers={"Location": files.url})]
        assert "redirects from https to http" in refusal(tmp_path, secure.url, ca=made.authority)
    assert files.requests == []


def test_endless_redirects_are_refused(files: Files, tmp_path: Path) -> None:
    files.answers = [lambda: web.Response(status=302, headers={"Location": "/again"})] * 9
    assert "redirects more than 5 times" in refusal(tmp_path, files.url)


def test_a_failure_that_may_pass_is_tried_again(files: Files, tmp_path: Path) -> None:
    files.answers = [lambda: web.Response(status=503), lambda: web.Response(status=429)]
    assert staged(tmp_path, files.url).files == len(FILES)


def test_a_server_that_keeps_failing_is_given_up_with_its_words(files: Files, tmp_path: Path) -> None:
    files.answers = [lambda: web.Response(status=503, text="come back later")] * 9
    words = refusal(tmp_path, f"{files.url}/env.tgz?sig=s3cr3t")
    assert "come back later" in words and "tried 4 times" in words and "s3cr3t" not in words


@pytest.mark.parametrize(("status", "hint"), [(404, ""), (403, "source.http's credentials"), (401, "credentials")])
def test_a_plain_no_is_final(status: int, hint: str, files: Files, tmp_path: Path) -> None:
    files.answers = [lambda: web.Response(status=status)]
    words = refusal(tmp_path, files.url)
    assert f"HTTP {status}" in words and hint in words and len(files.requests) == 1


def test_nobody_there_is_told_apart(tmp_path: Path) -> None:
    assert "tried 4 times" in refusal(tmp_path, "http://127.0.0.1:9/x.tgz")


def test_more_than_the_bound_is_not_read(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nhx_gym_operator.evaluator.stage.MAX_BYTES", 100)
    assert "more than the 100 that are allowed" in refusal(tmp_path, files.url)


def test_a_deadline_ends_a_server_that_drips(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "DEADLINE_S", 0.5)

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x")
            await asyncio.sleep(0.1)
        return response

    files.answer = drip  # type: ignore[method-assign]
    for dripping in serving(files):
        assert "was not fetched within 0.5 s" in refusal(tmp_path, dripping.url)


def test_a_private_authority_is_trusted_when_named_and_the_field_is_named_when_not(tmp_path: Path) -> None:
    made = private_authority(tmp_path)
    for files in serving(Files(), tls(made)):
        words = refusal(tmp_path, files.url)
        assert all(said in words for said in ("127.0.0.1", "unknown authority", "source.http.certificates")), words
        staged(tmp_path, files.url, ca=made.authority)


def test_a_file_that_is_no_certificate_is_refused(files: Files, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("nonsense")
    assert "certificates holds no PEM" in refusal(tmp_path, files.url, ca=tmp_path / "ca.crt")


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        ("169.254.169.254", True),
        ("169.254.170.2", True),
        ("127.0.0.1", True),
        ("0.0.0.0", True),
        ("224.0.0.1", True),
        ("100.100.100.200", True),
        ("fe80::1", True),
        ("::1", True),
        ("64:ff9b::a9fe:a9fe", True),
        ("2002:a9fe:a9fe::1", True),
        ("10.0.0.7", False),
        ("192.168.1.1", False),
        ("198.18.0.1", False),
        ("fd12::1", False),
        ("93.184.216.34", False),
    ],
)
def test_refused_are_a_nodes_own_addresses_and_not_a_clusters(address: str, refused: bool) -> None:
    assert IS_REFUSED(ipaddress.ip_address(address)) is refused


def test_a_secret_is_trimmed_and_one_that_no_header_can_carry_is_refused_without_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / AUTHORIZATION / "value"
    file.parent.mkdir()
    file.write_text("  Bearer t0p\r\n")
    assert load_source_secrets(tmp_path) == {AUTHORIZATION: "Bearer t0p"}
    assert "source.http.authorization was left out" in caplog.text and "t0p" not in caplog.text
    file.write_text("Bearer\nt0p")
    with pytest.raises(PlanError, match=r"source\.http\.authorization") as error:
        load_source_secrets(tmp_path)
    assert "t0p" not in str(error.value)


def test_a_redirect_to_what_is_no_address_is_named(files: Files, tmp_path: Path) -> None:
    files.answers = [lambda: web.Response(status=302, headers={"Location": "http://[::1"})]
    assert "redirects to 'http://[::1', which is no address" in refusal(tmp_path, files.url)


def test_a_wish_for_a_year_that_no_calendar_has_is_none(files: Files, tmp_path: Path) -> None:
    never = {"Retry-After": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}
    files.answers = [lambda: web.Response(status=503, headers=never)]
    assert staged(tmp_path, files.url).files == len(FILES)
