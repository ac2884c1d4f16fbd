"""FileSet: a named set of files, taken from somewhere, for jobs to use."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .constants import API_VERSION, FILESET_KIND
from .origins import kubernetes, ours, page
from .resource import (
    CONDITION_LIST,
    ApiModel,
    Condition,
    ConfigKey,
    ObjectMeta,
    ObjectName,
    relative_path,
)

CUSTOM_ENVIRONMENT_PAGE = "evals/agent-eval/gym-custom-environment.mdx"


class Purpose(StrEnum):
    """What a FileSet is good for."""

    ENVIRONMENT = "environment"
    DATASET = "dataset"


class KeyToPath(ApiModel):
    """One file: a key of the ConfigMap and the path it gets."""

    key: Annotated[ConfigKey, kubernetes("KeyToPath.key")] = Field(description="A key of the ConfigMap.")
    path: Annotated[str, kubernetes("KeyToPath.path")] = Field(
        min_length=1,
        max_length=512,
        description="Path of the file in the set, e.g. `resources_servers/mine/app.py`.",
        json_schema_extra=relative_path("path"),
    )


class ConfigMapSource(ApiModel):
    """Files that stand in one ConfigMap of the same namespace."""

    name: Annotated[ObjectName, kubernetes("ConfigMapVolumeSource.name")] = Field(
        description="Name of the ConfigMap, in the FileSet's namespace."
    )
    items: Annotated[list[KeyToPath], kubernetes("ConfigMapVolumeSource.items")] = Field(
        default=[],
        max_length=256,
        description="Which keys become which files. Empty: every key, under its own name.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["path"],
        },
    )


class Source(ApiModel):
    """Where the files come from. A ConfigMap is the only kind."""

    config_map: Annotated[ConfigMapSource, kubernetes("Volume.configMap")] = Field(
        description="Files from a ConfigMap (at most 1 MiB together)."
    )


class FileSetSpec(ApiModel):
    """Which files, and what for."""

    purpose: Annotated[Purpose, page(CUSTOM_ENVIRONMENT_PAGE, "--purpose environment")] = Field(
        default=Purpose.ENVIRONMENT,
        description="`environment`: a Gym environment package, with `nemo-environment.yaml` at its "
        "root. `dataset`: row files.",
    )
    source: Annotated[Source, ours("where the files come from")] = Field(description="Where the files come from.")


class FileSetStatus(ApiModel):
    """What is known about the set. Written by the operator alone."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="`metadata.generation` that this status speaks of."
    )
    files: int | None = Field(default=None, ge=0, description="Files found at the source.")
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=8,
        description="Resolved: every file can be read from its source.",
        json_schema_extra=CONDITION_LIST,
    )


class FileSet(ApiModel):
    """A named set of files: a Gym environment package or a dataset."""

    api_version: str = API_VERSION
    kind: str = FILESET_KIND
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: FileSetSpec = Field(description="Which files, and what for.")
    status: FileSetStatus = Field(default_factory=FileSetStatus, description="What is known about the set.")
