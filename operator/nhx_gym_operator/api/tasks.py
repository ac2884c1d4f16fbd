"""What a job evaluates: rows of a dataset, or the tasks of a stored taskset."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from .origins import GYM_RUNNER_PAGE, kubernetes, ours, page
from .resource import ApiModel, KeyRef, ObjectName, exactly_one_of, relative_path, rule, validated


class FileSetFile(ApiModel):
    """One file of a FileSet."""

    name: Annotated[ObjectName, kubernetes("LocalObjectReference.name")] = Field(
        description="Name of the FileSet, in the job's namespace. Its purpose must be `dataset`."
    )
    path: Annotated[str, ours("file inside a FileSet")] = Field(
        min_length=1,
        max_length=512,
        description="Path of the file inside the FileSet, e.g. `rows.jsonl`.",
        json_schema_extra=relative_path("path"),
    )


class ClaimFile(ApiModel):
    """One file on a PersistentVolumeClaim."""

    claim_name: Annotated[ObjectName, kubernetes("PersistentVolumeClaimVolumeSource.claimName")] = Field(
        description="Name of the claim, in the job's namespace. It is mounted read-only, into the evaluator alone."
    )
    path: Annotated[str, ours("file on a claim")] = Field(
        min_length=1,
        max_length=512,
        description="Path of the file on the claim, e.g. `mcqa/rows.jsonl`. Pods read it as user and group 1000.",
        json_schema_extra=relative_path("path"),
    )


class StoredFile(ApiModel):
    """One file and where it is kept."""

    config_map: Annotated[KeyRef | None, kubernetes("EnvVarSource.configMapKeyRef")] = Field(
        default=None,
        description="A key of a ConfigMap whose value is the file. A ConfigMap holds at most 1 MiB; a larger file "
        "belongs on a persistentVolumeClaim or into a fileSet.",
    )
    file_set: Annotated[FileSetFile | None, ours("rows from a FileSet")] = Field(
        default=None, description="A file of a FileSet."
    )
    persistent_volume_claim: Annotated[ClaimFile | None, kubernetes("Volume.persistentVolumeClaim")] = Field(
        default=None, description="A file on a claim, of any size."
    )


class Dataset(StoredFile):
    """Where the rows come from: a JSON Lines file, one row per task."""

    model_config = ConfigDict(
        json_schema_extra=validated(exactly_one_of("bundled", "configMap", "fileSet", "persistentVolumeClaim"))
    )

    bundled: Annotated[str | None, ours("row files that ship inside NeMo Gym")] = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="A row file that ships with NeMo Gym, by its path there, e.g. "
        "`resources_servers/mcqa/data/example.jsonl`.",
        json_schema_extra=relative_path("bundled"),
    )


class Taskset(StoredFile):
    """Where the tasks come from: a JSON Lines file of tasks as the SDK's `discover_gym_tasks` makes them, each with
    `inputs.gym_row` and `metadata.gym_row_extras`. The `tasks.jsonl` of a result bundle is one."""

    model_config = ConfigDict(
        json_schema_extra=validated(exactly_one_of("configMap", "fileSet", "persistentVolumeClaim"))
    )


class Tasks(ApiModel):
    """What is evaluated: each distinct row of a dataset, or each task of a stored taskset."""

    model_config = ConfigDict(
        json_schema_extra=validated(
            rule(
                "has(self.dataset) != has(self.taskset)",
                "exactly one of dataset (rows) and taskset (stored tasks) must be set",
            ),
            rule(
                "!has(self.limit) || !has(self.taskIds) || size(self.taskIds) == 0",
                "limit and taskIds both choose a subset; set one of them",
            ),
        )
    )

    dataset: Annotated[Dataset | None, page(GYM_RUNNER_PAGE, "dataset")] = Field(
        default=None, description="Rows: each distinct one is a task, with the hash of its content as id."
    )
    taskset: Annotated[Taskset | None, page(GYM_RUNNER_PAGE, "taskset")] = Field(
        default=None, description="Stored tasks. A task without an `id` gets the hash of its row, as one of a dataset."
    )
    limit: Annotated[int | None, ours("as the `limit` of the SDK's task loaders")] = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Use only the first so many distinct tasks. Unset: all of them.",
    )
    task_ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], ours("a subset by task id")] = Field(
        default=[],
        max_length=1000,
        description="Use only the tasks of these ids, as `tasks.jsonl` of a bundle names them. Empty: all of them.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )

    @property
    def source(self) -> Dataset | Taskset:
        """The one of both that is set."""
        source = self.dataset or self.taskset
        if source is None:
            raise ValueError("exactly one of dataset and taskset must be set")
        return source
