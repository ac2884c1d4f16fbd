from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from nhx_gym_operator.api.tree import tree_digest
from nhx_gym_operator.api.wire.endpoints import ENVIRONMENT_DIGEST_HEADER, HostRegistration, HostState
from nhx_gym_operator.gym_host import environment
from nhx_gym_operator.gym_host.environment import UnpackError, link_venvs, unpack
from nhx_gym_operator.gym_host.evaluator_client import EvaluatorClient, EvaluatorError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "staged"
    (root / "resources_servers/words").mkdir(parents=True)
    (root / "resources_servers/words/app.py").write_text("print()\n")
    (root / "nemo-environment.yaml").write_text("format: native-v1\n")
    return root


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "environment"
    directory.mkdir()
    return directory


def pack(tmp_path: Path, tree: Path) -> Path:
    archive = tmp_path / "tree.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(tree, arcname=".")
    return archive


def pack_member(tmp_path: Path, member: tarfile.TarInfo) -> Path:
    archive = tmp_path / "member.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member, io.BytesIO(b"x" * member.size))
    return archive


def test_the_tree_that_was_staged_is_the_tree_that_arrives(tmp_path: Path, tree: Path, target: Path) -> None:
    (target / "left over").write_text("from a former life")
    unpack(pack(tmp_path, tree), target, tree_digest(tree))
    assert sorted(path.name for path in target.iterdir()) == ["nemo-environment.yaml", "resources_servers"]


def test_another_tree_is_refused_with_both_digests(tmp_path: Path, tree: Path, target: Path) -> None:
    archive, digest = pack(tmp_path, tree), tree_digest(tree)
    (tree / "nemo-environment.yaml").write_text("format: other\n")
    with pytest.raises(UnpackError, match=rf"arrived as {digest}, but the evaluator staged {tree_digest(tree)}"):
        unpack(archive, target, tree_digest(tree))


@pytest.mark.parametrize("name", ["../outside", "/etc/outside"])
def test_nothing_is_written_outside(tmp_path: Path, target: Path, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = 1
    with pytest.raises(UnpackError):
        unpack(pack_member(tmp_path, member), target, "sha256:0")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused_by_name(tmp_path: Path, target: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("odd")
    member.type, member.linkname = kind, "nemo-environment.yaml"
    with pytest.raises(UnpackError, match="odd, neither a file nor a directory"):
        unpack(pack_member(tmp_path, member), target, "sha256:0")


def test_a_tree_beyond_the_bounds_is_refused(
    tmp_path: Path, tree: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "MAX_ENTRIES", 2)
    with pytest.raises(UnpackError, match="more than 2 entries"):
        unpack(pack(tmp_path, tree), target, tree_digest(tree))


def test_a_damaged_archive_is_refused(tmp_path: Path, target: Path) -> None:
    archive = tmp_path / "damaged.tar"
    archive.write_bytes(b"no archive" * 100)
    with pytest.raises(UnpackError, match="cannot be unpacked"):
        unpack(archive, target, "sha256:0")


def test_bundled_and_custom_components_share_the_images_virtual_environment(tmp_path: Path, tree: Path) -> None:
    python, bundled, venvs = tmp_path / "opt/gym", tmp_path / "opt/venvs", tmp_path / "venvs"
    python.mkdir(parents=True)
    (bundled / "responses_api_models/vllm_model").mkdir(parents=True)
    (bundled / "responses_api_models/vllm_model/.venv").symlink_to(python)
    for _ in range(2):
        link_venvs(venvs, tree, bundled=bundled, python=python)
    links = {str(link.relative_to(venvs)): link.resolve() for link in venvs.glob("*/*/.venv")}
    assert links == {"resources_servers/words/.venv": python, "responses_api_models/vllm_model/.venv": python}


class Evaluator:
    """Answers what the test says, then 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.registrations: list[dict] = []
        self.authorization: set[str | None] = set()
        self.body, self.digest = b"", "sha256:0"

    async def hosts(self, request: web.Request) -> web.Response:
        self.authorization.add(request.headers.get("Authorization"))
        if self.statuses:
            return web.Response(status=self.statuses.pop(0), text="not now")
        self.registrations.append(await request.json())
        return web.json_response({})

    async def environment(self, _request: web.Request) -> web.Response:
        headers = {ENVIRONMENT_DIGEST_HEADER: self.digest} if self.digest else {}
        return web.Response(body=self.body, headers=headers)


@pytest.fixture
async def evaluator() -> AsyncIterator[tuple[Evaluator, EvaluatorClient]]:
    fake = Evaluator()
    app = web.Application()
    app.router.add_post("/hosts", fake.hosts)
    app.router.add_get("/environment", fake.environment)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield fake, EvaluatorClient(f"http://127.0.0.1:{runner.addresses[0][1]}", "token", deadline_s=3)
    await runner.cleanup()


STARTING = HostRegistration(ordinal=0, state=HostState.STARTING, boot_id="b")


async def test_registration_is_repeated_until_the_evaluator_takes_it(evaluator) -> None:
    fake, client = evaluator
    fake.statuses = [503, 500]
    await client.register(STARTING)
    assert [body["state"] for body in fake.registrations] == ["starting"]
    assert fake.authorization == {"Bearer token"}


async def test_a_refused_registration_is_not_repeated(evaluator) -> None:
    fake, client = evaluator
    fake.statuses = [403]
    with pytest.raises(EvaluatorError, match="refused POST /hosts: HTTP 403: not now"):
        await client.register(STARTING)
    assert fake.registrations == []


async def test_an_evaluator_that_is_not_there_is_given_up_at_the_deadline() -> None:
    client = EvaluatorClient("http://127.0.0.1:9", "token", deadline_s=0.5)
    with pytest.raises(EvaluatorError, match=r"registration: no success at http://127\.0\.0\.1:9 within 0\.5 s"):
        await client.register(STARTING)


async def test_the_environment_comes_with_its_digest(evaluator, tmp_path: Path) -> None:
    fake, client = evaluator
    fake.body = b"archive"
    assert await client.fetch_environment(tmp_path / "a.tar") == "sha256:0"
    assert (tmp_path / "a.tar").read_bytes() == b"archive"
    fake.digest = ""
    with pytest.raises(EvaluatorError, match=ENVIRONMENT_DIGEST_HEADER):
        await client.fetch_environment(tmp_path / "a.tar")
