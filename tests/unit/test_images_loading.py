import base64
import gzip
import io
import json
import tarfile

import pytest

from devcluster.images.layers import LayerStore
from devcluster.images.loading import BuiltImage, digest_of, write_archive

DEPENDENCIES, CODE = b"a layer of dependencies", b"a layer of code"


@pytest.fixture
def image():
    layers = [{"digest": digest_of(content), "size": len(content)} for content in (DEPENDENCIES, CODE)]
    manifest = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": layers}
    return BuiltImage("registry.local/app:dev", json.dumps(manifest).encode(), b'{"os": "linux"}')


def archive(image, held):
    contents = {digest_of(content): [content[:5], content[5:]] for content in (DEPENDENCIES, CODE)}
    out = io.BytesIO()
    write_archive(image, held, contents.__getitem__, out)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}


def blobs(*contents):
    return {"blobs/" + digest_of(content).replace(":", "/") for content in contents}


def test_an_archive_names_the_image_and_holds_all_its_blobs(image):
    files = archive(image, held=set())
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert (entry["digest"], entry["size"]) == (image.digest, len(image.manifest))
    assert entry["annotations"] == {"io.containerd.image.name": "registry.local/app:dev"}
    assert files.keys() - {"oci-layout", "index.json"} == blobs(image.manifest, image.configuration, DEPENDENCIES, CODE)


def test_layers_that_the_cluster_holds_are_left_out(image):
    files = archive(image, held={digest_of(DEPENDENCIES)})
    assert files.keys() - {"oci-layout", "index.json"} == blobs(image.manifest, image.configuration, CODE)


def test_a_layer_of_another_size_than_its_manifest_says_is_refused(image):
    with pytest.raises(ValueError, match="has 4 bytes in buildah's storage, its manifest says 23"):
        write_archive(image, set(), lambda digest: [b"less"], io.BytesIO())


def test_a_layer_is_put_together_from_its_files_and_the_bytes_between(tmp_path):
    """As containers/storage keeps it: `type` 2 are bytes of the archive, `type` 1 the content of a file."""
    (tmp_path / "overlay/abc/diff/opt").mkdir(parents=True)
    (tmp_path / "overlay/abc/diff/opt/app.py").write_bytes(b"print()")
    (tmp_path / "overlay-layers").mkdir()
    (tmp_path / "overlay-layers/layers.json").write_text(
        json.dumps([{"id": "no-layer-yet"}, {"id": "abc", "diff-digest": "sha256:1"}])
    )
    entries = [
        {"type": 2, "payload": base64.b64encode(b"<header>").decode()},
        {"type": 1, "name": "opt/app.py", "size": 7},
        {"type": 2, "payload": base64.b64encode(b"<padding>").decode()},
        {"type": 1, "name": "opt/link-or-folder"},
    ]
    with gzip.open(tmp_path / "overlay-layers/abc.tar-split.gz", "wt") as out:
        out.writelines(json.dumps(entry) + "\n" for entry in entries)
    assert b"".join(LayerStore(tmp_path).archive("sha256:1")) == b"<header>print()<padding>"
