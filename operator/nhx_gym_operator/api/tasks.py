"""What a job evaluates: rows of a dataset."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from .origins import kubernetes, ours, page
from .resource import ApiModel, KeyRef, ObjectName, relative_path, rule, validated
from .target import PLACEMENT_PAGE


class FileSetFile(ApiModel):
    """One file of a FileSet."""

    name: Annotated[ObjectName, kubernetes("LocalObjectReference.name")] = Field(
        description="Name of the FileSet, in the job's namespace. Its purpose must be `dataset`."
    )
    path: Annotated[str, ours("file inside a FileSet")] = Field(
        min_length=1,
        max_length=512,
        description="Path of the row file inside the FileSet, e.g. `rows.jsonl`.",
        json_schema_extra=relative_path("path"),
    )


class Dataset(ApiModel):
    """Where the rows come from: a JSON Lines file, one row per task."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "(has(self.bundled) ? 1 : 0) + (has(self.configMap) ? 1 : 0) + (has(self.fileSet) ? 1 : 0) == 1",
                "exactly one of bundled, configMap and fileSet must be set",
            )
        )
    )

    bundled: Annotated[str | None, ours("row files that ship inside NeMo Gym")] = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="A row file that ships with NeMo Gym, by its path there, e.g. "
        "`resources_servers/mcqa/data/example.jsonl`.",
        json_schema_extra=relative_path("bundled"),
    )
    config_map: Annotated[KeyRef | None, kubernetes("EnvVarSource.configMapKeyRef")] = Field(
        default=None, description="A key of a ConfigMap whose value is the row file."
    )
    file_set: Annotated[FileSetFile | None, ours("rows from a FileSet")] = Field(
        default=None, description="A file of a FileSet."
    )


class Tasks(ApiModel):
    """What is evaluated: each distinct row of the dataset is one task."""

    dataset: Annotated[Dataset, page(PLACEMENT_PAGE, "dataset")] = Field(
        description="Where the rows come from. Exactly one source."
    )
    limit: Annotated[int | None, ours("as the `limit` of the SDK's task loaders")] = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Use only the first so many distinct rows. Unset: all of them.",
    )
