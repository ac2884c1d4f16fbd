"""Stage containers: each brings one FileSet into the evaluator's pod, and is alone in having its source and secrets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..api import pod_rules
from ..api.constants import CONTAINER_STAGE, CONTAINER_STAGE_DATASET
from ..api.fileset import FileSetSpec
from ..api.object_store import CertificateSource, key_volumes
from ..api.resource import SecretValue
from ..api.wire.mounts import AUTHORIZATION, DATASET_DIR, ENVIRONMENT_DIR, SOURCE_DIR, SOURCE_SECRETS_DIR
from ..api.wire.plans import STAGE_PLAN_ENV, HttpFetch, S3Fetch, StagePlan
from . import podspec
from .options import WorkloadOptions
from .podspec import mount, scratch
from .workload import StagedFiles, Workload

Manifest = dict[str, Any]


@dataclass(frozen=True)
class StageParts:
    """What one FileSet adds to the pod. `result` is for the evaluator, which only reads what was staged."""

    container: Manifest
    volumes: list[Manifest]
    result: Manifest


def environment(workload: Workload, files: StagedFiles) -> StageParts:
    return _stage(workload, files, CONTAINER_STAGE, "environment", ENVIRONMENT_DIR)


def dataset(workload: Workload, files: StagedFiles) -> StageParts:
    return _stage(workload, files, CONTAINER_STAGE_DATASET, "dataset", DATASET_DIR)


def _stage(workload: Workload, files: StagedFiles, container: str, volume: str, target: str) -> StageParts:
    sources = [(f"{volume}-{name}", body, where) for name, body, where in _sources(files, workload.options)]
    staged = podspec.container(
        workload.options,
        container,
        image=workload.options.images.tasks,
        module=podspec.EVALUATOR_MODULE,
        command="stage",
        resources=workload.options.resources.stage,
        env=[pod_rules.variable(STAGE_PLAN_ENV, stage_plan(workload, files).model_dump_json(exclude_none=True))],
        mounts=[
            mount("tmp", "/tmp"),
            *(mount(name, where, read_only=True) for name, _, where in sources),
            mount(volume, target),
        ],
        log_speaks=True,
    )
    volumes = [{"name": name, **body} for name, body, _ in sources]
    space = scratch(volume, workload.options.resources.evaluator)
    return StageParts(staged, [*volumes, space], mount(volume, target, read_only=True))


def stage_plan(workload: Workload, files: StagedFiles) -> StagePlan:
    source = files.spec.source
    # An archive and a volume may hold more than the set; an S3 prefix is the set.
    holder = source.persistent_volume_claim or source.http or source.s3 or source.image
    return StagePlan(
        job=workload.name,
        attempt=workload.attempt,
        file_set=files.name,
        uid=files.uid,
        generation=files.generation,
        source=described(files.spec),
        http=HttpFetch(url=source.http.url, sha256=source.http.sha256) if source.http else None,
        s3=S3Fetch.model_validate(source.s3.model_dump(exclude={"path"})) if source.s3 else None,
        path=holder.path if holder else None,
        digest=files.spec.digest,
        dataset=files.file,
    )


def described(spec: FileSetSpec) -> str:
    """A set's source in a user's words. A URL's query is left out: it may hold a signature."""
    source = spec.source
    if source.config_map:
        return f"ConfigMap {source.config_map.name}"
    if source.persistent_volume_claim:
        return f"PersistentVolumeClaim {source.persistent_volume_claim.claim_name}"
    if source.http:
        return source.http.url.partition("?")[0]
    if source.s3:
        return f"s3://{source.s3.bucket}/{source.s3.key or source.s3.prefix or ''}"
    if source.image:
        return f"image {source.image.reference}"
    raise ValueError("a source is one of configMap, persistentVolumeClaim, http, s3 and image")


def _sources(files: StagedFiles, options: WorkloadOptions) -> Iterator[tuple[str, Manifest, str]]:
    """Name, body and place of each volume that the source takes."""
    source = files.spec.source
    if files.config_map:
        yield "source", {"configMap": files.config_map.volume()}, SOURCE_DIR
    elif source.persistent_volume_claim:
        claim = {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}
        yield "source", {"persistentVolumeClaim": claim}, SOURCE_DIR
    elif source.image:
        yield (
            "source",
            {"image": source.image.model_dump(by_alias=True, exclude_none=True, exclude={"path"})},
            SOURCE_DIR,
        )
    secrets, certificates = _credentials(files.spec)
    # Only what is fetched has a server to trust.
    fetched = source.http or source.s3
    for name, body in key_volumes(secrets, options.authorities(certificates) if fetched else None):
        yield name, body, f"{SOURCE_SECRETS_DIR}/{name}"


def _credentials(spec: FileSetSpec) -> tuple[dict[str, SecretValue], CertificateSource | None]:
    source = spec.source
    if source.http:
        return {AUTHORIZATION: source.http.authorization} if source.http.authorization else {}, source.http.certificates
    if source.s3:
        return source.s3.credentials.by_name if source.s3.credentials else {}, source.s3.certificates
    return {}, None
