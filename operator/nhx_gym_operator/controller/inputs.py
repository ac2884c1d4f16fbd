"""What a job names in its namespace, looked up: files of ConfigMaps and FileSets, and claims.

Nothing of this is watched: a watch of all ConfigMaps would hold a cluster's configuration in memory.
The named ones are read when pods are about to be made, and again every few seconds while one is
missing. Everything but `InputReader` is pure.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from ..api.conditions import AcceptedReason
from ..api.fileset import ConfigMapSource, FileSet, Purpose
from ..api.job import JobSpec
from ..api.resource import first_problem
from ..api.tree import content_sum, digest_of_sums
from ..api.wire.mounts import DATASET_NAME
from ..api.wording import some_of
from ..workloads.workload import ConfigMapFiles, StagedFiles
from .cached_reads import CachedReads
from .kube import CLAIMS, CONFIG_MAPS, FILESETS, NAMESPACES, RUNTIME_CLASSES, ApiError, Resource


@dataclass(frozen=True)
class Missing:
    """Something that a job names and that is not there (yet), or that may not be read."""

    reason: AcceptedReason
    message: str


@dataclass(frozen=True)
class Inputs:
    """What a job's pods will be given, or what is missing for it. None: the job names no such thing."""

    dataset: ConfigMapFiles | StagedFiles | None = None
    environment: StagedFiles | None = None
    missing: Missing | None = None


def file_set_files(file_set: FileSet, source: ConfigMapSource, keys: frozenset[str]) -> ConfigMapFiles | Missing:
    """The files of a set whose ConfigMap has these keys."""
    where = f"ConfigMap {source.name!r} of FileSet {file_set.metadata.name!r}"
    items = tuple((item.key, item.path) for item in source.items) or tuple((key, key) for key in sorted(keys))
    if not items:
        return Missing(AcceptedReason.FILESET_NOT_RESOLVED, f"{where} is empty; add the files as keys")
    absent = [key for key, _ in items if key not in keys]
    if absent:
        return Missing(
            AcceptedReason.CONFIG_MAP_KEY_MISSING,
            f"{where} has no key {', '.join(map(repr, absent))}; it has {_listed(keys)}",
        )
    return ConfigMapFiles(source.name, items)


@dataclass(frozen=True)
class ConfigMapContent:
    """A FileSet's files as a ConfigMap holds them, and what a stage container would say of them."""

    files: ConfigMapFiles
    bytes: int
    digest: str


def config_map_content(
    file_set: FileSet, source: ConfigMapSource, config_map: Mapping[str, Any]
) -> ConfigMapContent | Missing:
    files = file_set_files(file_set, source, keys_of(config_map))
    if isinstance(files, Missing):
        return files
    # Once for each key, and one at a time: a set may have a ConfigMap's largest key under each of its paths.
    read = {key: _size_and_sum(_value(config_map, key)) for key in {key for key, _ in files.items}}
    sums = {path: read[key][1] for key, path in files.items}
    return ConfigMapContent(files, sum(read[key][0] for key, _ in files.items), digest_of_sums(sums))


def _size_and_sum(content: bytes) -> tuple[int, str]:
    return len(content), content_sum(content)


def keys_of(config_map: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(config_map.get("data") or {}) | frozenset(config_map.get("binaryData") or {})


def _value(config_map: Mapping[str, Any], key: str) -> bytes:
    data = config_map.get("data") or {}
    return data[key].encode() if key in data else base64.b64decode(config_map["binaryData"][key])


def dataset_file(files: StagedFiles, path: str) -> ConfigMapFiles | StagedFiles | Missing:
    """The one file of a set that holds the rows: of a ConfigMap a mount, of all else a file to be staged."""
    if files.config_map is None:
        return replace(files, file=path)
    key = next((key for key, item_path in files.config_map.items if item_path == path), None)
    if key is None:
        names = _listed(item for _, item in files.config_map.items)
        message = f"FileSet {files.name!r} has no file {path!r}; it has {names}"
        return Missing(AcceptedReason.FILESET_FILE_MISSING, message)
    # A digest is over the whole set: verified by staging.
    return (
        replace(files, file=path)
        if files.spec.digest
        else ConfigMapFiles(files.config_map.name, ((key, DATASET_NAME),))
    )


class InputReader:
    """Looks up what jobs name. Answers are held for a few seconds, so that a job that waits, and others
    that wait for the same, cost little."""

    def __init__(self, reads: CachedReads) -> None:
        self._reads = reads

    async def read(self, namespace: str, spec: JobSpec) -> Inputs:
        found = Inputs()
        for lookup in (self._environment, self._dataset, self._claims):
            found = await lookup(namespace, spec, found)
            if found.missing:
                break
        return found

    async def runtime_class(self, name: str) -> bool | Missing:
        """Whether the RuntimeClass exists."""
        found = await self._get(RUNTIME_CLASSES, None, name, AcceptedReason.SANDBOX_UNAVAILABLE)
        if isinstance(found, Missing):
            return found if found.reason is AcceptedReason.ACCESS_DENIED else False
        return True

    async def namespace_ends(self, name: str) -> bool:
        """Whether the namespace is being deleted. One that the operator may not look at is taken to stay."""
        try:
            return "deletionTimestamp" in (await self._reads.get(NAMESPACES, None, name))["metadata"]
        except ApiError as error:
            if error.not_found or error.forbidden:
                return error.not_found
            raise

    async def config_map(self, namespace: str, name: str) -> Mapping[str, Any] | Missing:
        return await self._get(CONFIG_MAPS, namespace, name, AcceptedReason.CONFIG_MAP_NOT_FOUND)

    async def files_of(self, namespace: str, name: str, purpose: Purpose) -> StagedFiles | Missing:
        """The named FileSet, with as much of its source looked up as the operator can see."""
        found = await self._get(FILESETS, namespace, name, AcceptedReason.FILESET_NOT_FOUND)
        if isinstance(found, Missing):
            return found
        try:
            file_set = FileSet.model_validate(found)
        except ValidationError as error:
            words = f"FileSet {name!r} is not one that this operator knows; apply it again: {first_problem(error)}"
            return Missing(AcceptedReason.FILESET_NOT_RESOLVED, words)
        if file_set.spec.purpose is not purpose:
            return Missing(
                AcceptedReason.FILESET_WRONG_PURPOSE,
                f"FileSet {name!r} has purpose {file_set.spec.purpose.value!r}, {purpose.value!r} is needed; "
                f"change its spec.purpose or name another",
            )
        content = await self.content_of(file_set)
        if isinstance(content, Missing):
            return content
        files = content.files if content else None
        return StagedFiles(name, file_set.metadata.uid, file_set.metadata.generation, file_set.spec, files)

    async def content_of(self, file_set: FileSet) -> ConfigMapContent | Missing | None:
        """The set's files, if it is a ConfigMap. None: only pods can read the source, and nothing is known to be
        wrong with it."""
        namespace, source = file_set.metadata.namespace, file_set.spec.source
        if source.config_map:
            found = await self.config_map(namespace, source.config_map.name)
            return found if isinstance(found, Missing) else config_map_content(file_set, source.config_map, found)
        if source.persistent_volume_claim:
            name = source.persistent_volume_claim.claim_name
            claim = await self._get(CLAIMS, namespace, name, AcceptedReason.CLAIM_NOT_FOUND)
            return claim if isinstance(claim, Missing) else None
        return None

    async def _environment(self, namespace: str, spec: JobSpec, found: Inputs) -> Inputs:
        environment = spec.target.gym.environment
        if environment is None:
            return found
        files = await self.files_of(namespace, environment.file_set.name, Purpose.ENVIRONMENT)
        return _with(found, "environment", files)

    async def _dataset(self, namespace: str, spec: JobSpec, found: Inputs) -> Inputs:
        source = spec.tasks.source
        if source.file_set:
            files = await self.files_of(namespace, source.file_set.name, Purpose.DATASET)
            if not isinstance(files, Missing):
                files = dataset_file(files, source.file_set.path)
            return _with(found, "dataset", files)
        if source.config_map:
            rows = await self.config_map(namespace, source.config_map.name)
            if not isinstance(rows, Missing):
                rows = _one_key(source.config_map.name, source.config_map.key, keys_of(rows))
            return _with(found, "dataset", rows)
        return found

    async def _claims(self, namespace: str, spec: JobSpec, found: Inputs) -> Inputs:
        for claim in (spec.results.persistent_volume_claim, spec.tasks.source.persistent_volume_claim):
            if claim is None or not claim.claim_name:
                continue
            answer = await self._get(CLAIMS, namespace, claim.claim_name, AcceptedReason.CLAIM_NOT_FOUND)
            if isinstance(answer, Missing):
                return _with(found, "missing", answer)
        return found

    async def _get(
        self, resource: Resource, namespace: str | None, name: str, absent: AcceptedReason
    ) -> Mapping[str, Any] | Missing:
        where = f" in namespace {namespace!r}" if namespace else ""
        try:
            return await self._reads.get(resource, namespace, name)
        except ApiError as error:
            if error.not_found:
                return Missing(absent, f"{resource.kind} {name!r} does not exist{where}; create it or name another")
            if error.forbidden:
                return Missing(
                    AcceptedReason.ACCESS_DENIED,
                    f"the operator may not get {resource.plural}{where}; its role lacks that right: {error.message}",
                )
            raise


def _with(found: Inputs, field: str, value: ConfigMapFiles | StagedFiles | Missing) -> Inputs:
    changes = {"dataset": found.dataset, "environment": found.environment, "missing": found.missing}
    changes["missing" if isinstance(value, Missing) else field] = value
    return Inputs(**changes)


def _one_key(name: str, key: str, keys: frozenset[str]) -> ConfigMapFiles | Missing:
    if key in keys:
        return ConfigMapFiles(name, ((key, DATASET_NAME),))
    return Missing(
        AcceptedReason.CONFIG_MAP_KEY_MISSING, f"ConfigMap {name!r} has no key {key!r}; it has {_listed(keys)}"
    )


_LISTED = 10


def _listed(names: Any) -> str:
    """The first few names, for a message."""
    return some_of([repr(name) for name in sorted(names)], _LISTED) or "none"
