"""FileSets in S3: the objects below a prefix, or one archive.

Objects are listed by obstore and downloaded, as those of a web server are, through addresses that it signs.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store
from yarl import URL

from ...api.object_store import ACCESS_KEY_ID, SECRET_ACCESS_KEY, SESSION_TOKEN
from ...api.tree import MAX_BYTES, MAX_ENTRIES
from ...api.wire.plans import S3Fetch
from ..addresses import AddressRefused, check_host
from ..checked_proxy import CheckedProxy
from .download import DEADLINE_S, Downloader
from .errors import StagingError

_AT_ONCE = 8
_SIGNED_FOR = timedelta(seconds=DEADLINE_S)

_WORDS = 600
_ANSWER = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")
_DENIED = re.compile(r"status code: 40[13]\b")
_DISTRUSTED = re.compile(r"InvalidCertificate\(\s*(\w+)")
"""How the TLS library that obstore is built with names its refusal; obstore has no exception of its own for it."""

log = logging.getLogger(__name__)


class SourceBucket:
    """One bucket, as the plan and the mounted keys say. `keys` are by the names of `api.object_store`; none:
    anonymous."""

    def __init__(self, fetch: S3Fetch, keys: Mapping[str, str], ca_file: Path) -> None:
        self._fetch = fetch
        self._endpoint = URL(fetch.endpoint or f"https://s3.{fetch.region}.amazonaws.com")
        try:
            check_host(self._endpoint.host or "")
        except AddressRefused as error:
            raise StagingError(f"{self.name} (spec.source.s3.endpoint): {error}") from None
        self._proxy = CheckedProxy()
        options: dict[str, Any] = {
            "allow_http": self._endpoint.scheme == "http",
            "connect_timeout": "15s",
            "timeout": "60s",
            **self._proxy.client_options,
        }
        if ca_file.is_file():
            options["root_certificate"] = ca_file.read_bytes()
        self._signed = bool(keys)
        account: dict[str, Any] = {"skip_signature": True}
        if keys:
            account = {"access_key_id": keys[ACCESS_KEY_ID], "secret_access_key": keys[SECRET_ACCESS_KEY]}
            account |= {"session_token": keys[SESSION_TOKEN]} if SESSION_TOKEN in keys else {}
        self._store = S3Store(
            fetch.bucket,
            endpoint=str(self._endpoint).rstrip("/"),
            region=fetch.region,
            virtual_hosted_style_request=False,
            client_options=options,
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=60)},
            **account,
        )

    @property
    def name(self) -> str:
        return f"s3://{self._fetch.bucket}/{self._fetch.key or self._fetch.prefix or ''}"

    async def archive(self, downloader: Downloader, target: Path) -> None:
        """Write the archive that the plan names to `target`."""
        await downloader.get(self._url(self._fetch.key or ""), target, limit=MAX_BYTES, shown=self.name)

    async def folder(self, downloader: Downloader, target: Path) -> None:
        """Write every object below the plan's prefix to its place below `target`."""
        try:
            async with asyncio.timeout_at(downloader.deadline):
                objects = await self._listed()
        except TimeoutError as error:
            raise StagingError(f"{self.name} was not listed within {DEADLINE_S:g} s") from error
        log.info("%s: %d objects, %d bytes", self.name, len(objects), sum(objects.values()))
        gate = asyncio.Semaphore(_AT_ONCE)

        async def get(key: str, size: int) -> None:
            file = target / key.removeprefix(self._prefix).lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            async with gate:
                # An empty object may be the mark of an empty folder, whose key ends with a slash: obstore drops it.
                shown = f"s3://{self._fetch.bucket}/{key}"
                await downloader.get(self._url(key), file, limit=size, shown=shown, may_be_absent=size == 0)

        try:
            async with asyncio.TaskGroup() as tasks:
                for key, size in objects.items():
                    tasks.create_task(get(key, size))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    @property
    def _prefix(self) -> str:
        return (self._fetch.prefix or "").strip("/")

    async def _listed(self) -> dict[str, int]:
        """Sizes of the objects by their keys, without the marks of folders that hold something."""
        found: dict[str, int] = {}
        size = 0
        try:
            async for chunk in obstore.list(self._store, prefix=self._prefix or None):
                for entry in chunk:
                    found[entry["path"]] = entry["size"]
                    size += entry["size"]
                if len(found) > MAX_ENTRIES or size > MAX_BYTES:
                    raise StagingError(f"{self.name} holds more than {MAX_ENTRIES} objects or {MAX_BYTES >> 30} GiB")
        except (BaseError, FileNotFoundError, ValueError) as error:
            if isinstance(error, StagingError):
                raise
            raise StagingError(self._words(error)) from error
        folders = {parent for key in found for parent in _parents(key)} | {self._prefix}
        clash = next((key for key in sorted(found) if key in folders and found[key]), None)
        if clash:
            raise StagingError(f"s3://{self._fetch.bucket}/{clash} is an object, and a folder of other objects")
        objects = {key: count for key, count in found.items() if key not in folders}
        if not objects:
            raise StagingError(
                f"there are no objects under {self.name}: look at spec.source.s3.prefix; a single archive is named "
                "by key"
            )
        return objects

    def _url(self, key: str) -> URL:
        if self._signed:
            return URL(obstore.sign(self._store, "GET", key, _SIGNED_FOR), encoded=True)
        path = "/".join(quote(part, safe="") for part in (self._fetch.bucket, *key.split("/")))
        return URL(f"{str(self._endpoint).rstrip('/')}/{path}", encoded=True)

    def _words(self, error: Exception) -> str:
        """The server's or obstore's words without debug output, and the field to look at."""
        if self._proxy.trouble:
            return f"{self.name} cannot be listed: {self._proxy.trouble}; look at spec.source.s3.endpoint"
        text = str(error)
        answered, distrusted = _ANSWER.search(text), _DISTRUSTED.search(text)
        words = ": ".join(answered.groups()) if answered else " ".join(text.partition("Debug source")[0].split())
        hint = "; look at spec.source.s3.credentials" if _DENIED.search(text) else ""
        if distrusted:
            words = f"{self._endpoint.host}:{self._endpoint.port} cannot be trusted ({distrusted[1]})"
            hint = ": for an unknown authority, put it into a ConfigMap and name it in spec.source.s3.certificates"
        return f"{self.name} cannot be listed: {words[:_WORDS]}{hint}"


def _parents(key: str) -> list[str]:
    return [str(parent) for parent in PurePosixPath(key).parents][:-1]
