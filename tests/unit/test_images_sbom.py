"""An image's bill of materials says what is in the image."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

from devcluster.images import sbom

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.42-5
Description: a library
 in several lines

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1:1.0

Package: perl-base
Status: install ok installed
Architecture: amd64
Version: 1:5.40.1-6
"""


def test_what_the_package_managers_wrote_down_is_listed_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / sbom.DPKG_STATUS).parent.mkdir(parents=True)
    (tmp_path / sbom.DPKG_STATUS).write_text(STATUS)
    for place in ("opt/gym", "opt/nhx"):
        info = tmp_path / place / "lib/python3.13/site-packages/Ray_Core-2.60.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.4\nName: Ray_Core\nVersion: 2.60.0\n\nName: not this\n")
    bill = sbom.bill(tmp_path, "nhx-gym-host", "sha256:abc")
    assert [component["purl"] for component in bill["components"]] == [
        "pkg:deb/debian/libc6@2.42-5?arch=amd64",
        "pkg:deb/debian/perl-base@1%3A5.40.1-6?arch=amd64",
        "pkg:pypi/ray-core@2.60.0",
    ]
    assert bill["metadata"]["component"] == {"type": "container", "name": "nhx-gym-host", "version": "sha256:abc"}


def test_a_real_environment_is_listed_whole() -> None:
    root = Path(sys.prefix)
    found = {entry["name"].lower().replace("_", "-") for entry in sbom.bill(root, "this", "1")["components"]}
    here = {
        entry.name.lower().replace("_", "-").replace(".", "-")
        for entry in metadata.distributions(path=[str(path) for path in root.rglob("site-packages")])
    }
    assert {name.replace(".", "-") for name in found} >= here and len(here) > 20
    json.dumps(sbom.bill(root, "this", "1"))
