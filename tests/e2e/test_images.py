"""What is in each image, as a user finds it who runs it, and as its bill of materials says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from devcluster.images import sbom
from devcluster.images.building import NAMES
from e2e.image_facts import KNOWN
from e2e.scenarios import IMPORTED
from e2e.sdk_alone import ANY_USER
from support.cluster import Object

EVERY = pytest.mark.parametrize("name", NAMES)
ENVIRONMENTS = {
    "nhx-tasks": {"nhx"},
    "nhx-gym-host": {"gym"},
    "nhx-gym-tasks": {"gym", "nhx"},
    "nhx-gym-operator": {"operator"},
    "demo-model": {"demo-model"},
}


@EVERY
def test_an_image_holds_nothing_that_compiles_or_installs(inside_images: dict[str, Object], name: str) -> None:
    assert inside_images[name]["programs"] == [f"/usr/bin/{KNOWN}"]
    assert inside_images[name]["installers"] == []


@EVERY
def test_every_module_of_an_image_is_compiled(inside_images: dict[str, Object], name: str) -> None:
    assert inside_images[name]["modules"].keys() == ENVIRONMENTS[name]
    assert all(inside_images[name]["modules"].values())
    assert inside_images[name]["uncompiled"] == []


@EVERY
def test_any_user_of_group_0_runs_an_image(inside_images: dict[str, Object], name: str) -> None:
    """It has imported its program, with a read-only root."""
    assert inside_images[name]["user"] == f"{ANY_USER}:0"
    assert inside_images[name]["unreadable"] == []


def test_all_images_are_looked_into() -> None:
    assert IMPORTED.keys() == ENVIRONMENTS.keys() == set(NAMES)


@pytest.mark.nightly
@EVERY
def test_an_images_bill_of_materials_lists_the_packages_that_are_in_it(name: str, tmp_path: Path) -> None:
    sbom.write([name], tmp_path)
    bill = json.loads((tmp_path / f"{name}.cdx.json").read_text())
    assert bill["metadata"]["component"]["name"] == name
    found = {component["purl"].partition("@")[0] for component in bill["components"]}
    assert "pkg:deb/debian/libc6" in found and len(found) > 20
