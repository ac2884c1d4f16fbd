"""What a job names in its namespace, looked up: files of ConfigMaps and FileSets, and claims.

Nothing of this is watched: a watch of all ConfigMaps would hold a cluster's configuration in memory.
The named ones are read when pods are about to be made, and again every few seconds while one is
missing. Everything but `InputReader` is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..api.conditions import AcceptedReason
from ..api.fileset import FileSet, Purpose
from ..api.job import JobSpec
from ..workloads.workload import ConfigMapFiles
from .cached_reads import CachedReads
from .kube import CLAIMS, CONFIG_MAPS, FILESETS, RUNTIME_CLASSES, ApiError, Resource

DATASET_NAME = "dataset.jsonl"


@dataclass(frozen=True)
class Missing:
    """Something that a job names and that is not there (yet), or that may not be read."""

    reason: AcceptedReason
    message: str


@dataclass(frozen=True)
class Inputs:
    """What a job's pods will be given, or what is missing for it. None: the job names no such thing."""

    dataset: ConfigMapFiles | None = None
    environment: ConfigMapFiles | None = None
    missing: Missing | None = None


def file_set_files(file_set: FileSet, keys: frozenset[str]) -> ConfigMapFiles | Missing:
    """The files of a set whose ConfigMap has these keys."""
    source = file_set.spec.source.config_map
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


def dataset_file(files: ConfigMapFiles, file_set: str, path: str) -> ConfigMapFiles | Missing:
    """The one file of a set that holds the rows."""
    for key, item_path in files.items:
        if item_path == path:
            return ConfigMapFiles(files.name, ((key, DATASET_NAME),))
    return Missing(
        AcceptedReason.FILESET_FILE_MISSING,
        f"FileSet {file_set!r} has no file {path!r}; it has {_listed(item for _, item in files.items)}",
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

    async def config_map_keys(self, namespace: str, name: str) -> frozenset[str] | Missing:
        found = await self._get(CONFIG_MAPS, namespace, name, AcceptedReason.CONFIG_MAP_NOT_FOUND)
        if isinstance(found, Missing):
            return found
        return frozenset(found.get("data") or {}) | frozenset(found.get("binaryData") or {})

    async def files_of(self, namespace: str, name: str, purpose: Purpose) -> ConfigMapFiles | Missing:
        """The files of the named FileSet."""
        found = await self._get(FILESETS, namespace, name, AcceptedReason.FILESET_NOT_FOUND)
        if isinstance(found, Missing):
            return found
        file_set = FileSet.model_validate(found)
        if file_set.spec.purpose is not purpose:
            return Missing(
                AcceptedReason.FILESET_WRONG_PURPOSE,
                f"FileSet {name!r} has purpose {file_set.spec.purpose.value!r}, {purpose.value!r} is needed; "
                f"change its spec.purpose or name another",
            )
        keys = await self.config_map_keys(namespace, file_set.spec.source.config_map.name)
        return keys if isinstance(keys, Missing) else file_set_files(file_set, keys)

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
                files = dataset_file(files, source.file_set.name, source.file_set.path)
            return _with(found, "dataset", files)
        if source.config_map:
            keys = await self.config_map_keys(namespace, source.config_map.name)
            if not isinstance(keys, Missing):
                keys = _one_key(source.config_map.name, source.config_map.key, keys)
            return _with(found, "dataset", keys)
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


def _with(found: Inputs, field: str, value: ConfigMapFiles | Missing) -> Inputs:
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
    every = sorted(names)
    if not every:
        return "none"
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return ", ".join(map(repr, every[:_LISTED])) + more
