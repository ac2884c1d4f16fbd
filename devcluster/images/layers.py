"""Layers of buildah's storage as the tar archives that their digests stand for, without writing them anywhere.

buildah can export an image only whole, or compressed anew each time: seconds to minutes, where a code change is a few
kilobytes. Its storage (containers/storage) keeps of each layer the unpacked files and, in tar-split's format, all bytes
of the archive that are not file content. Put together they are the archive again, byte for byte.
"""

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

# The two kinds of entries of tar-split: content of a file, and the bytes between (headers, padding).
_FILE, _SEGMENT = 1, 2
_CHUNK = 1 << 20


class LayerStore:
    def __init__(self, root: Path):
        """`root` is what `buildah --root` was given."""
        self._root = root
        layers = json.loads((root / "overlay-layers/layers.json").read_text())
        self._ids = {layer["diff-digest"]: layer["id"] for layer in layers if "diff-digest" in layer}

    def archive(self, digest: str) -> Iterator[bytes]:
        """The uncompressed archive with that digest, in pieces."""
        layer = self._ids[digest]
        files = self._root / "overlay" / layer / "diff"
        with gzip.open(self._root / "overlay-layers" / f"{layer}.tar-split.gz", "rt", encoding="utf-8") as entries:
            for line in entries:
                yield from _bytes_of(json.loads(line), files)


def _bytes_of(entry: dict, files: Path) -> Iterator[bytes]:
    if entry["type"] == _SEGMENT:
        yield base64.b64decode(entry["payload"])
    elif entry["type"] == _FILE and entry.get("size"):
        with _path_of(entry, files).open("rb") as content:
            while chunk := content.read(_CHUNK):
                yield chunk


def _path_of(entry: dict, files: Path) -> Path:
    # A name that is no UTF-8 is kept apart, encoded.
    name = entry.get("name") or base64.b64decode(entry["name_raw"]).decode(errors="surrogateescape")
    return files / name.lstrip("/")
