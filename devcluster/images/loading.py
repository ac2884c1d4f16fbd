"""Carry built images into the cluster's containerd, without a registry and without what it already holds.

`ctr images import` reads an OCI archive from a pipe. The archive made here has only the layers that containerd's
content store lacks, straight from buildah's storage: nothing for an unchanged image, kilobytes for a change of code.
"""

import hashlib
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .. import containerd, paths, report
from ..settings import IMAGE_TAG
from .building import reference, storage
from .layers import LayerStore

_INDEX = "application/vnd.oci.image.index.v1+json"
_LAYOUT = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()


@dataclass(frozen=True)
class BuiltImage:
    reference: str
    manifest: bytes
    configuration: bytes

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    @property
    def layers(self) -> list[dict]:
        """Descriptors with `digest` and `size`, each layer once."""
        return list({layer["digest"]: layer for layer in json.loads(self.manifest)["layers"]}.values())


def load(names: list[str], tag: str = IMAGE_TAG) -> None:
    buildah = storage()
    present = _images_in_cluster()
    for name in names:
        inspected = buildah.inspect(reference(name, tag))
        if inspected is None:
            raise report.DevclusterError(
                f"image {name} is not built; run `python3 -m devcluster images build {name}` first"
            )
        image = BuiltImage(reference(name, tag), inspected["Manifest"].encode(), inspected["Config"].encode())
        if present.get(image.reference) == image.digest:
            report.say(f"image {name} is in the cluster")
            continue
        held = _blobs_in_cluster()
        megabytes = sum(layer["size"] for layer in image.layers if layer["digest"] not in held) / 1e6
        with report.step(f"image {name}: loading {megabytes:.1f} MB, about {1 + megabytes / 50:.0f} s"):
            _import(image, held, LayerStore(buildah.root))


def write_archive(image: BuiltImage, held: set[str], read_layer: Callable[[str], Iterable[bytes]], out) -> None:
    """An OCI archive without the layers in `held`."""
    write = _ArchiveWriter(out)
    write.file("oci-layout", len(_LAYOUT), [_LAYOUT])
    index = _index_of(image)
    write.file("index.json", len(index), [index])
    for content in (image.manifest, image.configuration):
        write.file(_blob_name(digest_of(content)), len(content), [content])
    for layer in image.layers:
        if layer["digest"] not in held:
            write.file(_blob_name(layer["digest"]), layer["size"], read_layer(layer["digest"]))
    write.end()


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


class _ArchiveWriter:
    """tarfile wants a file object per entry; layers come as pieces."""

    def __init__(self, out):
        self._out = out

    def file(self, name: str, size: int, pieces: Iterable[bytes]) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = size
        self._out.write(entry.tobuf())
        written = 0
        for piece in pieces:
            self._out.write(piece)
            written += len(piece)
        if written != size:
            raise ValueError(f"{name} has {written} bytes in buildah's storage, its manifest says {size}")
        self._out.write(b"\0" * (-size % tarfile.BLOCKSIZE))

    def end(self) -> None:
        self._out.write(b"\0" * tarfile.RECORDSIZE)


def _index_of(image: BuiltImage) -> bytes:
    descriptor = {
        "mediaType": json.loads(image.manifest)["mediaType"],
        "digest": image.digest,
        "size": len(image.manifest),
        "annotations": {"io.containerd.image.name": image.reference},
    }
    return json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [descriptor]}).encode()


def _blob_name(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _import(image: BuiltImage, held: set[str], layers: LayerStore) -> None:
    process = subprocess.Popen(
        containerd.ctr_command("images", "import", "-"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        write_archive(image, held, layers.archive, process.stdin)
    except BrokenPipeError:
        pass  # it says why itself
    output = process.communicate()[0].decode(errors="replace")
    if process.returncode:
        raise report.DevclusterError(
            f"containerd did not take {image.reference} (code {process.returncode}):\n{output}"
        )


def _images_in_cluster() -> dict[str, str]:
    """Reference to digest."""
    rows = [line.split() for line in _output("images", "ls").splitlines()[1:]]
    return {row[0]: row[2] for row in rows}


def _blobs_in_cluster() -> set[str]:
    return set(_output("content", "ls", "--quiet").split())


def _output(*arguments: str) -> str:
    result = subprocess.run(containerd.ctr_command(*arguments), capture_output=True, text=True)
    if result.returncode:
        socket = paths.containerd_socket()
        raise report.DevclusterError(
            f"the cluster's containerd does not answer at {socket}; is it up?\n{result.stderr.strip()}"
        )
    return result.stdout
