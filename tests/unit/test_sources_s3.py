"""FileSets in an object store: read from a real S3 server by a stage container's own code."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from nhx_gym_operator.api.object_store import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from nhx_gym_operator.api.tree import tree_files
from nhx_gym_operator.api.wire.plans import S3Fetch, StagePlan
from nhx_gym_operator.api.wire.reports import Staged
from nhx_gym_operator.evaluator import addresses
from nhx_gym_operator.evaluator.sources import download, s3
from nhx_gym_operator.evaluator.sources.errors import StagingError
from nhx_gym_operator.evaluator.stage import stage
from support.certificates import private_authority
from support.s3_server import S3Server, s3_server
from unit.evaluator_fakes import paths_in
from unit.test_evaluator_stage import FILES, write
from unit.test_evaluator_stage import stage as stage_folder
from unit.test_sources_archives import tar_of

IS_REFUSED = addresses.is_refused


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path) -> Path:
    """An empty bucket as the folder that it is on the server's disk."""
    return server.bucket(hashlib.sha256(str(tmp_path).encode()).hexdigest()[:20])


@pytest.fixture(autouse=True)
def near_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "is_refused", lambda address: not address.is_loopback and IS_REFUSED(address))
    monkeypatch.setattr(download, "delay_before_retry", lambda number, headers: 0.01)


def staged(directory: Path, server: S3Server, bucket: Path, *, ca: Path | None = None, **fetch: Any) -> Staged:
    paths = paths_in(directory)
    if ca:
        paths.source_certificates.parent.mkdir(parents=True, exist_ok=True)
        paths.source_certificates.write_bytes(ca.read_bytes())
    keys = {ACCESS_KEY_ID: server.access_key_id, SECRET_ACCESS_KEY: fetch.pop("secret", server.secret_access_key)}
    path, dataset = fetch.pop("path", None), fetch.pop("dataset", None)
    s3_fetch = S3Fetch(endpoint=server.endpoint, region=server.region, bucket=bucket.name, **fetch)
    where = f"s3://{bucket.name}/{s3_fetch.key or s3_fetch.prefix or ''}"
    about = {"job": "j", "attempt": 1, "file_set": "tiny", "uid": "u", "generation": 1, "source": where}
    return stage(StagePlan(**about, s3=s3_fetch, path=path, dataset=dataset), paths, keys)


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(StagingError) as error:
        staged(*args, **kwargs)
    return str(error.value)


@pytest.mark.parametrize("prefix", ["my envs/tiny qa+v2/", "my envs/tiny qa+v2", "/my envs/tiny qa+v2/"])
def test_a_folder_of_a_bucket_is_the_tree_that_a_claim_would_be(
    prefix: str, server: S3Server, bucket: Path, tmp_path: Path
) -> None:
    odd = FILES | {"resources_servers/tiny/data#1/ä b%20c?x=1&y+.txt": "odd", "empty.txt": ""}
    folder = write(bucket / "my envs/tiny qa+v2", odd)
    write(bucket, {"my envs/tiny qa+v22/other": "not of the set", "my envs/x": ""})
    found = staged(tmp_path, server, bucket, prefix=prefix)
    assert tree_files(tmp_path / "environment") == sorted(odd)
    assert found == stage_folder(folder, tmp_path / "other" / "target")


def test_marks_of_folders_are_no_files(server: S3Server, bucket: Path, tmp_path: Path) -> None:
    store = S3Store(
        bucket.name,
        endpoint=server.endpoint,
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key,
        client_options={"allow_http": True},
    )
    write(bucket / "env", FILES)
    # This server keeps a folder as a folder; what it lists of one ends with a slash, as the marks of others do.
    (bucket / "env/an empty folder").mkdir()
    assert obstore.list(store, prefix="env").collect()
    assert staged(tmp_path, server, bucket, prefix="env").files == len(FILES)


def test_more_objects_than_one_page_of_a_listing_are_all_there(server: S3Server, bucket: Path, tmp_path: Path) -> None:
    write(bucket / "env", FILES | {f"data/{number}.txt": str(number) for number in range(1200)})
    assert staged(tmp_path, server, bucket, prefix="env").files == len(FILES) + 1200


@pytest.mark.parametrize("prefix", ["envs/tinny", "envs/tin", "envs/tiny/nemo-environment.yaml"])
def test_a_misspelt_prefix_is_told_by_its_field_and_never_ends_well(
    prefix: str, server: S3Server, bucket: Path, tmp_path: Path
) -> None:
    write(bucket / "envs/tiny", FILES)
    words = refusal(tmp_path, server, bucket, prefix=prefix)
    assert f"no objects under s3://{bucket.name}/{prefix}" in words and "source.s3.prefix" in words


def test_one_archive_of_a_bucket(server: S3Server, bucket: Path, tmp_path: Path) -> None:
    archive = gzip.compress(tar_of({f"top/{name}": text.encode() for name, text in FILES.items()}))
    (bucket / "env +1.tgz").write_bytes(archive)
    right = hashlib.sha256(archive).hexdigest()
    staged(tmp_path, server, bucket, key="env +1.tgz", sha256=right, path="top")
    assert tree_files(tmp_path / "environment") == sorted(FILES)
    words = refusal(tmp_path, server, bucket, key="env +1.tgz", sha256="0" * 64, path="top")
    assert right in words and "source.s3.sha256" in words
    assert "source.s3.path" in refusal(tmp_path, server, bucket, key="env +1.tgz")
    assert "HTTP 404" in refusal(tmp_path, server, bucket, key="env.tgz")


def test_rows_of_a_bucket(server: S3Server, bucket: Path, tmp_path: Path) -> None:
    write(bucket / "data", {"rows.jsonl": "{}\n", "notes.txt": ""})
    staged(tmp_path, server, bucket, prefix="data", dataset="rows.jsonl")
    assert (tmp_path / "dataset/dataset.jsonl").read_text() == "{}\n"


def test_a_wrong_key_and_a_bucket_that_is_not_there_say_so(server: S3Server, bucket: Path, tmp_path: Path) -> None:
    write(bucket / "env", FILES)
    words = refusal(tmp_path, server, bucket, prefix="env", secret="wr0ng")
    assert "cannot be listed" in words and "source.s3.credentials" in words and "wr0ng" not in words
    (bucket / "env.tgz").write_bytes(b"")
    assert "source.s3's credentials" in refusal(tmp_path, server, bucket, key="env.tgz", secret="wr0ng")
    assert "NoSuchBucket" in refusal(tmp_path, server, bucket.with_name("no-such-bucket"), prefix="env")


def test_more_than_the_bounds_is_refused_before_anything_is_downloaded(
    server: S3Server, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bucket / "env", FILES)
    monkeypatch.setattr(s3, "MAX_ENTRIES", 2)
    assert "more than 2 objects" in refusal(tmp_path, server, bucket, prefix="env")


def test_a_private_authority_is_trusted_when_named_and_the_field_is_named_when_not(tmp_path: Path) -> None:
    made = private_authority(tmp_path)
    with s3_server(tmp_path / "s3", certificate=made.certificate, key=made.key) as server:
        bucket = server.bucket("envs")
        write(bucket / "env", FILES)
        words = refusal(tmp_path, server, bucket, prefix="env")
        assert all(said in words for said in ("127.0.0.1", "unknown authority", "source.s3.certificates")), words
        assert staged(tmp_path, server, bucket, prefix="env", ca=made.authority).files == len(FILES)


def test_an_endpoint_that_is_a_metadata_server_is_refused(server: S3Server, bucket: Path, tmp_path: Path) -> None:
    elsewhere = replace(server, endpoint="http://169.254.169.254")
    assert "metadata server" in refusal(tmp_path, elsewhere, bucket, prefix="env")


@pytest.fixture
def endless() -> Iterator[str]:
    """A server whose listing has always another page, and nothing on it."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
            body += b"<Name>b</Name><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys></ListBucketResult>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_listing_without_an_end_is_given_up(
    server: S3Server, bucket: Path, endless: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (download, s3):
        monkeypatch.setattr(module, "DEADLINE_S", 1.0)
    elsewhere = replace(server, endpoint=endless)
    assert "was not listed within 1 s" in refusal(tmp_path, elsewhere, bucket, prefix="env")
