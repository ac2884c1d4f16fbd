"""docs/security.md: what it says of how images are made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devcluster import modules
from devcluster.images import building, containerfile
from support.cluster import ROOT

LOCKS = [*sorted(ROOT.glob("images/*/requirements.lock")), ROOT / "requirements-dev.lock"]
STAGES = containerfile.parse(building.CONTAINERFILE.read_text())
COMPILERS = re.compile(
    r"\b(gcc|g\+\+|clang|cc|build-essential|make|cargo|rustc|golang|pip|uv|python3[.0-9]*-(pip|venv|dev))\b"
)


def made_of(image: str) -> list[str]:
    """An image's stages, itself first. What is copied out of another stage is no part of that."""
    chain = [image]
    while STAGES[chain[-1]].parent in STAGES:
        chain.append(STAGES[chain[-1]].parent)
    return chain


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.relative_to(ROOT)))
def test_every_package_that_is_installed_is_locked_by_hash(lock: Path) -> None:
    entries = re.split(r"\n(?=[A-Za-z])", lock.read_text().replace("\\\n", " "))
    entries = [entry for entry in entries if re.match(r"[A-Za-z]", entry)]
    assert len(entries) > 1
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z,-]+\])?==\S+", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]


def test_builds_take_nothing_without_its_hash() -> None:
    text = building.CONTAINERFILE.read_text()
    assert "UV_REQUIRE_HASHES=1" in text
    installs = [line for line in text.splitlines() if re.search(r"\b(pip|uv)\b.* install ", line)]
    assert installs and all("--require-hashes" in line for line in installs)
    made = (ROOT / "images/build/create-environment").read_text()
    assert re.search(r"uv pip install .*--no-deps --requirements", made)


def test_development_takes_nothing_without_its_hash_but_uv_by_its_version() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes -r requirements-dev.lock" in makefile
    installs = [line for line in makefile.splitlines() if re.search(r"\b(pip|uv)\b.* (install|sync) ", line)]
    (unlocked,) = [line for line in installs if "--require-hashes" not in line]
    assert unlocked.endswith(" uv==$(UV_VERSION)")


def test_the_clusters_programs_are_locked_by_sum() -> None:
    assert "-mod=readonly" in modules.BUILD_FLAGS
    for module in modules.MODULES:
        assert (module.folder / "go.sum").stat().st_size > 1000, module.name


@pytest.mark.parametrize("image", building.NAMES)
def test_no_image_is_made_of_the_stage_with_the_tools(image: str) -> None:
    chain = made_of(image)
    assert chain[-1] == "runtime" and "tools" not in chain
    for stage in chain:
        for line in STAGES[stage].lines:
            installed = line.partition("apt-get install")[2].partition("&&")[0]
            assert not COMPILERS.search(installed), line
    # The search would find one where there is one.
    assert COMPILERS.search(" ".join(STAGES["tools"].lines))
