"""The API models against the packages and pages that they take names and defaults from."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from nhx_evals_sdk.agent_eval.runtimes.gym import GymRuntimeConfig
from nhx_evals_sdk.agent_eval.tasks import AgentEvalRunConfig
from pydantic.fields import FieldInfo

from nhx_gym_operator.api import origins_page
from nhx_gym_operator.api.fileset import FileSet, FileSetSpec, FileSetStatus
from nhx_gym_operator.api.job import AgentEvalJob, JobSpec
from nhx_gym_operator.api.models import ModelSpec
from nhx_gym_operator.api.resource import ApiModel
from nhx_gym_operator.api.status import JobAggregate, JobStatus
from nhx_gym_operator.api.target import GymSpec
from nhx_gym_operator.api.wire.reports import Aggregate

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

ONLY_IN_THE_DOCUMENTS = {"agent_ref_name", "environment"}
OPTIONAL_BY_THE_DOCUMENTS = {"agent_config"}
"""evals/agent-eval/gym-custom-environment.mdx: "you can omit `agent_config`"."""


def spec_fields() -> list[tuple[str, FieldInfo]]:
    return [*origins_page.fields(JobSpec, "job.spec"), *origins_page.fields(FileSetSpec, "fileset.spec")]


def every_field() -> list[tuple[str, FieldInfo]]:
    return [
        *spec_fields(),
        *origins_page.fields(JobStatus, "job.status"),
        *origins_page.fields(FileSetStatus, "fileset.status"),
    ]


def by_path(fields: list[tuple[str, FieldInfo]]) -> Any:
    return pytest.mark.parametrize(("path", "info"), fields, ids=[path for path, _ in fields])


def sdk_name(name: str) -> str:
    return name.removesuffix("_seconds") + "_s" if name.endswith("_seconds") else name


@cache
def pages() -> Path:
    package = importlib.util.find_spec("nemo_helix_ext.cli")
    assert package and package.submodule_search_locations, "nemo-helix-plugin is not installed"
    return Path(next(iter(package.submodule_search_locations))) / "docs"


def test_the_target_has_the_fields_of_the_installed_gym_config_and_no_other():
    ours = {sdk_name(name) for name in GymSpec.model_fields}
    assert ours - ONLY_IN_THE_DOCUMENTS == set(GymRuntimeConfig.model_fields)


@pytest.mark.parametrize("name", sorted(set(GymSpec.model_fields) - ONLY_IN_THE_DOCUMENTS))
def test_a_target_field_has_the_default_of_the_installed_gym_config(name: str):
    ours, theirs = GymSpec.model_fields[name], GymRuntimeConfig.model_fields[sdk_name(name)]
    assert origins_page.origin_of(ours).name == sdk_name(name)
    if name in OPTIONAL_BY_THE_DOCUMENTS:
        assert ours.get_default() is None
        return
    assert ours.is_required() == theirs.is_required()
    assert ours.get_default() == theirs.get_default(call_default_factory=True)


@pytest.mark.parametrize("name", ["parallelism", "labels", "fail_fast"])
def test_a_run_field_has_the_default_of_the_installed_run_config(name: str):
    theirs = AgentEvalRunConfig.model_fields[name].get_default(call_default_factory=True)
    assert JobSpec.model_fields[name].get_default() == theirs


def test_calls_have_the_deadline_and_retries_of_the_openai_client():
    assert ModelSpec.model_fields["timeout_seconds"].get_default() == openai.DEFAULT_TIMEOUT.read
    assert ModelSpec.model_fields["max_retries"].get_default() == openai.DEFAULT_MAX_RETRIES


@by_path(spec_fields())
def test_every_field_of_a_spec_says_where_its_name_is_from(path: str, info: FieldInfo):
    origin = origins_page.origin_of(info)
    assert origin, f"{path} has no origin"
    kind, _, page = origin.source.partition("docs page ")
    if not kind:
        assert origin.name in (pages() / page).read_text(encoding="utf-8")


@by_path(every_field())
def test_every_field_is_explained(path: str, info: FieldInfo):
    assert info.description and info.description.endswith("."), f"{path} needs a sentence"


@by_path(spec_fields())
def test_an_optional_field_has_a_default_or_says_what_its_absence_means(path: str, info: FieldInfo):
    if info.is_required() or info.get_default() is not None:
        return
    choices = ("Claim.size", "Claim.claimName", "emptyDir")
    is_choice = path.startswith(("job.spec.tasks.dataset", "job.spec.tasks.taskset")) or path.endswith(choices)
    sources = ("source.configMap", "source.persistentVolumeClaim", "source.http", "source.s3", "source.image")
    is_choice = is_choice or path.endswith((*sources, "s3.prefix", "s3.key"))
    assert "Unset" in info.description or is_choice


def test_the_table_of_origins_is_up_to_date():
    written = (ROOT / "docs/api-sources.md").read_text(encoding="utf-8")
    assert written == origins_page.render(), "run: make crds"


def example_objects() -> list[dict[str, Any]]:
    files = [*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("*/*.yaml")]
    return [obj for file in sorted(files) for obj in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def examples_of(kind: str) -> list[dict[str, Any]]:
    return [obj for obj in example_objects() if obj["kind"] == kind]


@pytest.mark.parametrize("manifest", examples_of("AgentEvalJob"), ids=lambda obj: obj["metadata"]["name"])
def test_an_example_job_survives_being_read_and_written(manifest: dict[str, Any]):
    job = AgentEvalJob.model_validate(manifest)
    assert job.spec.policy.base_url.startswith("http")
    assert_contains(job.to_dict(), manifest)


@pytest.mark.parametrize("manifest", examples_of("FileSet"), ids=lambda obj: obj["metadata"]["name"])
def test_an_example_file_set_survives_being_read_and_written(manifest: dict[str, Any]):
    assert_contains(FileSet.model_validate(manifest).to_dict(), manifest)


def assert_contains(whole: Any, part: Any) -> None:
    if isinstance(part, dict):
        for key, value in part.items():
            assert_contains(whole[key], value)
    elif isinstance(part, list):
        assert len(whole) == len(part)
        for pair in zip(whole, part, strict=True):
            assert_contains(*pair)
    else:
        assert whole == part


def test_unset_fields_are_absent_from_what_is_written():
    assert JobStatus().to_dict() == {}
    assert JobStatus(reward="0.80").to_dict() == {"reward": "0.80"}


def test_models_cannot_be_changed_after_they_were_read():
    status = JobStatus(attempt=1)
    with pytest.raises(ValueError, match="frozen"):
        status.attempt = 2


def test_an_aggregate_of_the_wire_is_an_aggregate_of_the_status():
    values = {name: 0.5 for name in ("value", "mean", "min", "max", "median", "std_dev", "sample_std_dev")}
    sent = Aggregate(name="gym_reward.reward", kind="range", unit="reward", count=10, **values)
    assert JobAggregate.model_validate(sent.model_dump()).model_dump() == sent.model_dump()


def test_no_two_models_of_the_api_share_a_name():
    def subclasses(model: type) -> list[type]:
        return [found for child in model.__subclasses__() for found in (child, *subclasses(child))]

    names = [model.__name__ for model in subclasses(ApiModel) if model.__module__.startswith("nhx_gym_operator.api")]
    assert len(names) == len(set(names))
