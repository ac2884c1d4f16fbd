"""A bucket that result bundles go to: open it, put a folder's files into it, get them back.

The client is obstore, which signs, retries what may pass (5xx, broken connections), sends large files in parts, and
lets the server check the SHA-256 of what it was sent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from ..api.object_store import ACCESS_KEY_ID, CERTIFICATES, SECRET_ACCESS_KEY, SESSION_TOKEN
from ..api.wire.mounts import SECRET_FILE
from ..api.wire.plans import BucketAddress
from ..in_pods.masking import Mask
from ..in_pods.mounted import SecretError, read_secret
from .addresses import AddressRefused, check_host
from .checked_proxy import CheckedProxy

AT_ONCE = 16
"""Files on their way at the same time. Most files of a bundle are small, and there is one per rollout."""
REQUEST_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 10.0
MAX_RETRIES = 30
RETRY_TIMEOUT_S = 240.0
"""For one request. obstore signs it once, and says that five minutes are too long for that."""
_MAX_WORDS = 500
_CAUSES = (
    ("UnknownIssuer", "its certificate is signed by an unknown authority; name that one's own in {field}.certificates"),
    ("InvalidCertificate", "its certificate is not valid for it"),
    ("IncompleteMessage", "it broke the connection off; look whether {field}.endpoint is http or https"),
    ("InvalidContentType", "it does not speak TLS; look whether {field}.endpoint is http or https"),
    ("TimedOut", "it did not answer in time"),
)
"""What stands in obstore's account of its own types, and is left out of its message."""


class BucketError(RuntimeError):
    """What went wrong at the bucket: where, in the server's words, and what to look at. Holds no key."""


class BundleBucket:
    """A bucket below the address's prefix. `field` is how a user names it in a spec; messages refer to it. A request
    that failed in a way that may pass is repeated for `retry_s`."""

    def __init__(self, address: BucketAddress, directory: Path, field: str, retry_s: float | None = None) -> None:
        self.address = address
        self._field = field
        self._secrets, self.trimmed = _credentials(address, directory, field)
        self._mask = Mask(self._secrets.values())
        retry_s = RETRY_TIMEOUT_S if retry_s is None else retry_s
        if address.endpoint:
            try:
                check_host(urlsplit(address.endpoint).hostname or "")
            except AddressRefused as error:
                raise BucketError(f"{self._where}: {error}") from None
        self._proxy = CheckedProxy()
        options = self._proxy.client_options | _certificates(address, directory, field)
        self._store = _store(address, self._secrets, options, retry_s)

    async def put(self, files: Mapping[str, Path | bytes]) -> None:
        """Put each file under its key, in order of the mapping: the last ones only once all others are there.
        Afterwards the bucket's own listing must show each with its size and the tag that its upload was answered with.
        """
        *first, last = files.items()
        with self._as_bucket_errors():
            tags = await _each(self._put, first)
            tags |= await _each(self._put, [last])
            await self._verify({key: (_size(content), tags[key]) for key, content in files.items()})

    async def list(self, folder: str) -> dict[str, int]:
        """Key below `folder` to size in bytes, of every object there that is a file."""
        with self._as_bucket_errors():
            return {
                key.removeprefix(f"{folder}/"): size
                async for key, size, _ in self._listed(folder)
                if key != folder and not key.endswith("/")
            }

    async def get(self, folder: str, target: Path) -> int:
        """Copy all files below `folder` into the directory `target`; returns how many."""
        names = await self.list(folder)
        for name in names:
            if not _stays_inside(name):
                raise BucketError(f"{self._where}: object {name!r} below {folder} has no name that a file may have")

        async def fetch(name: str, size: int) -> None:
            await self._get(f"{folder}/{name}", target / name, size)

        with self._as_bucket_errors():
            await _each(fetch, names.items())
        return len(names)

    async def _put(self, key: str, content: Path | bytes) -> str | None:
        return (await obstore.put_async(self._store, key, content))["e_tag"]

    async def _get(self, key: str, file: Path, size: int) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        found = await obstore.get_async(self._store, key)
        with file.open("wb") as out:
            async for chunk in found.stream():
                out.write(chunk)
        if file.stat().st_size != size:
            raise BucketError(f"{self._where}: {key} did not arrive whole; try again")

    async def _verify(self, expected: Mapping[str, tuple[int, str | None]]) -> None:
        found = {key: (size, tag) async for key, size, tag in self._listed(_common_folder(expected))}
        for key, (size, tag) in expected.items():
            if key not in found:
                raise BucketError(f"{self._where}: {key} was taken and is not there")
            if found[key][0] != size or (tag and found[key][1] and found[key][1] != tag):
                raise BucketError(f"{self._where}: {key} is not what was put there; something else writes to it")

    async def _listed(self, folder: str) -> AsyncIterator[tuple[str, int, str | None]]:
        async for batch in obstore.list(self._store, folder or None):
            for entry in batch:
                yield entry["path"], entry["size"], entry["e_tag"]

    @property
    def _where(self) -> str:
        return f"bucket {self.address.bucket!r} at {self.address.endpoint or 'Amazon S3'} ({self._field})"

    @contextmanager
    def _as_bucket_errors(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise BucketError(f"{self._where}: {self._reason(error)}") from None

    def _reason(self, error: Exception) -> str:
        if self._proxy.refusal:
            return self._proxy.refusal
        words = self._words(error)
        match error:
            case PermissionDeniedError() | UnauthenticatedError():
                hint = f"check {self._field}.credentials and what they may do"
                return f"the server refuses these credentials; {hint}: {words}"
            case FileNotFoundError():
                return f"no such bucket or object: {words}"
            case _:
                return words

    def _words(self, error: Exception) -> str:
        """The cause in one line. What obstore adds about its own types says nothing to a user but for the cause."""
        said, _, account = str(error).partition("Debug source:")
        causes = [words.format(field=self._field) for sign, words in _CAUSES if sign in account]
        cause = self._proxy.trouble or next(iter(causes), "")
        text = " ".join(said.split())
        if cause:
            text = f"{cause} ({text})"
        return self._mask.text(text)[:_MAX_WORDS]


async def _each(work: Any, items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """`work(key, value)` of all items, `AT_ONCE` at a time; the first error ends them all."""
    waiting = iter(items)
    done: dict[str, Any] = {}

    async def worker() -> None:
        for key, value in waiting:
            done[key] = await work(key, value)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return done


def _store(
    address: BucketAddress, secrets: Mapping[str, str], more_options: Mapping[str, Any], retry_s: float
) -> S3Store:
    options: dict[str, Any] = {
        "allow_http": (address.endpoint or "").startswith("http://"),
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        "user_agent": "nhx-gym-operator",
        **more_options,
    }
    keys = {name.replace("-", "_"): value for name, value in secrets.items()}
    with _no_aws_variables():
        return S3Store(
            address.bucket,
            region=address.region,
            virtual_hosted_style_request=False,
            client_options=options,
            retry_config={"max_retries": MAX_RETRIES, "retry_timeout": timedelta(seconds=retry_s)},
            **({"endpoint": address.endpoint.rstrip("/")} if address.endpoint else {}),
            **({"prefix": address.prefix} if address.prefix else {}),
            **keys,
        )


@contextmanager
def _no_aws_variables() -> Iterator[None]:
    """What obstore is not told it takes from `AWS_…` variables. In a container that is shared with Gym those are the
    environment's, not ours."""
    theirs = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for name in theirs:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(theirs)


def _credentials(address: BucketAddress, directory: Path, field: str) -> tuple[dict[str, str], list[str]]:
    """By name, and the fields of those that had white space around, which is left out."""
    names = {ACCESS_KEY_ID: "accessKeyId", SECRET_ACCESS_KEY: "secretAccessKey"}
    if address.has_session_token:
        names[SESSION_TOKEN] = "sessionToken"
    found, trimmed = {}, []
    for name, field_name in names.items():
        where = f"{field}.credentials.{field_name}.secretKeyRef"
        try:
            secret = read_secret(directory / name / SECRET_FILE, where)
        except SecretError as error:
            raise BucketError(str(error)) from None
        found[name] = secret.text
        if secret.trimmed:
            trimmed.append(where)
    return found, trimmed


def _certificates(address: BucketAddress, directory: Path, field: str) -> dict[str, bytes]:
    """Client options of obstore."""
    if not address.has_certificates:
        return {}
    try:
        return {"root_certificate": (directory / CERTIFICATES / SECRET_FILE).read_bytes()}
    except OSError as error:
        raise BucketError(f"{field}.certificates cannot be read: {type(error).__name__}") from None


def _size(content: Path | bytes) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def _common_folder(keys: Iterable[str]) -> str:
    """The longest folder that all keys lie in."""
    parents = [PurePosixPath(key).parent.parts for key in keys]
    common = []
    for level in zip(*parents, strict=False):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return "/".join(common)


def _stays_inside(name: str) -> bool:
    return bool(name) and not name.startswith("/") and ".." not in name.split("/") and "\0" not in name
