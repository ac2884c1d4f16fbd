"""What is in each image, as its bill of materials says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from devcluster.images import sbom
from devcluster.images.building import NAMES


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_an_images_bill_of_materials_lists_the_packages_that_are_in_it(name: str, tmp_path: Path) -> None:
    sbom.write([name], tmp_path)
    bill = json.loads((tmp_path / f"{name}.cdx.json").read_text())
    assert bill["metadata"]["component"]["name"] == name
    found = {component["purl"].partition("@")[0] for component in bill["components"]}
    assert "pkg:deb/debian/libc6" in found and len(found) > 20
