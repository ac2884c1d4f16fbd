"""A bill of materials per image, in CycloneDX: every Debian and Python package that its file system holds.

Read from what the package managers wrote down in the image itself, not from what was asked for.
"""

import json
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import quote

from .. import report
from .buildah import Buildah
from .building import reference, storage

SPEC_VERSION = "1.6"
DPKG_STATUS = "var/lib/dpkg/status"
_METADATA = "*.dist-info/METADATA"


def write(names: list[str], folder: Path) -> None:
    """NAME.cdx.json in `folder` for each image, which is built already."""
    folder.mkdir(parents=True, exist_ok=True)
    buildah = storage()
    for name in names:
        file = folder / f"{name}.cdx.json"
        image = buildah.image_id(reference(name))
        if image is None:
            raise report.DevclusterError(f"image {name} is not built: python3 -m devcluster images build {name}")
        file.write_text(json.dumps(_of_image(buildah, name, image), indent=1) + "\n")
        report.say(f"{file}")


def bill(root: Path, name: str, version: str) -> dict:
    """The document about the file system below `root`."""
    found = {component["purl"]: component for component in (*_debian(root), *_python(root))}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": version}},
        "components": [found[purl] for purl in sorted(found)],
    }


def _of_image(buildah: Buildah, name: str, image: str) -> dict:
    container = buildah.run("from", "--pull=never", image)
    try:
        return bill(Path(buildah.run("mount", container)), name, image)
    finally:
        buildah.run("rm", container)


def _debian(root: Path) -> Iterator[dict]:
    status = root / DPKG_STATUS
    text = status.read_text(encoding="utf-8", errors="replace") if status.exists() else ""
    for paragraph in text.split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if fields.get("Status", "").endswith(" installed"):
            package, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
            yield _component(package, version, f"pkg:deb/debian/{package}@{quote(version)}?arch={architecture}")


def _python(root: Path) -> Iterator[dict]:
    for metadata in root.rglob(_METADATA):
        fields = HeaderParser().parsestr(metadata.read_text(encoding="utf-8", errors="replace"))
        name, version = fields["Name"], fields["Version"]
        yield _component(name, version, f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}")


def _component(name: str, version: str, purl: str) -> dict:
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}
