"""The S3 server that other tests read from and write to, spoken to by the client that the images carry."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from support.s3_server import S3Server, s3_server


def store(s3: S3Server, **changes: str) -> S3Store:
    options = {"access_key_id": s3.access_key_id, "secret_access_key": s3.secret_access_key} | changes
    return S3Store("bucket", endpoint=s3.endpoint, region=s3.region, client_options={"allow_http": True}, **options)


def test_an_object_is_a_file_of_its_bucket_both_ways_and_a_wrong_key_is_refused(tmp_path: Path) -> None:
    with s3_server(tmp_path) as s3:
        bucket = s3.bucket("bucket")
        obstore.put(store(s3), "a folder/x#1.txt", b"one")
        assert (bucket / "a folder" / "x#1.txt").read_bytes() == b"one"
        (bucket / "two+2.txt").write_bytes(b"two")
        assert bytes(obstore.get(store(s3), "two+2.txt").bytes()) == b"two"
        with pytest.raises(obstore.exceptions.BaseError, match=r"SignatureDoesNotMatch|403"):
            obstore.put(store(s3, secret_access_key="wrong"), "x", b"")
