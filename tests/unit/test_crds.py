"""The generated CustomResourceDefinitions: up to date, structural, bounded, explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from nhx_gym_operator.api import crds
from nhx_gym_operator.api.resource import ApiModel

ROOT = Path(__file__).resolve().parents[2]
BAD_MANIFESTS = sorted((ROOT / "tests/cluster/bad_manifests").glob("*.yaml"))

DEFINITIONS = crds.definitions()
NAMES = sorted(DEFINITIONS)


def schema_of(name: str) -> dict[str, Any]:
    return DEFINITIONS[name]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below `schema`, with the path of the value that it describes."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for keyword, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if keyword in schema:
            yield from nodes(schema[keyword], path + suffix)


@pytest.mark.parametrize("directory", ["crds", "charts/nhx-gym-operator/files/crds"])
def test_the_files_are_what_the_models_say(directory: str):
    files = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / directory).iterdir()}
    expected = {name: crds.render(definition) for name, definition in DEFINITIONS.items()}
    assert files == expected, "run: make crds"


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_structural(name: str):
    for path, schema in nodes(schema_of(name)):
        assert "type" in schema, path
        assert not schema.keys() & {"$ref", "anyOf", "oneOf", "allOf", "title", "const"}, path
        assert not (schema.keys() >= {"properties", "additionalProperties"}), path


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_explained(name: str):
    for path, schema in nodes(schema_of(name)):
        if not path.endswith(("[]", "{}")):
            assert schema.get("description"), path


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_rule_may_look_at_is_bounded(name: str):
    for path, schema in nodes(schema_of(name)["properties"]["spec"], "spec"):
        match schema["type"]:
            case "string":
                assert "maxLength" in schema or "enum" in schema, path
            case "array":
                assert "maxItems" in schema, path
            case "object" if "additionalProperties" in schema or "x-kubernetes-preserve-unknown-fields" in schema:
                assert "maxProperties" in schema, path


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_says_what_to_change(name: str):
    rules = [rule for _, schema in nodes(schema_of(name)) for rule in schema.get("x-kubernetes-validations", [])]
    assert rules
    for rule in rules:
        assert len(rule["message"]) > 20, rule


@pytest.mark.parametrize("name", NAMES)
def test_a_status_is_never_made_up_by_the_api_server(name: str):
    assert "default" not in schema_of(name)["properties"]["status"]


def test_a_spec_without_defaults_and_a_default_of_240_seconds():
    gym = schema_of("evals.nhx.io_agentevaljobs.yaml")["properties"]["spec"]["properties"]["target"]["properties"][
        "gym"
    ]
    timeout = gym["properties"]["startupTimeoutSeconds"]
    assert timeout["default"] == 240 and timeout["exclusiveMinimum"] is True and timeout["minimum"] == 0
    assert gym["properties"]["collectionTimeoutSeconds"]["nullable"] is True
    assert gym["properties"]["hydraParams"]["x-kubernetes-preserve-unknown-fields"] is True
    assert gym["required"] == ["agent", "resourcesServer"]


def test_the_table_shows_what_people_look_for():
    columns = DEFINITIONS["evals.nhx.io_agentevaljobs.yaml"]["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in columns if "priority" not in column] == [
        "Phase",
        "Placement",
        "Progress",
        "Reward",
        "Age",
    ]
    assert [column["name"] for column in columns if "priority" in column] == [
        "Reason",
        "Hosts",
        "Attempt",
        "Model",
        "Results",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_column_shows_a_field_that_exists(name: str):
    known = {path for path, _ in nodes(schema_of(name))}
    for column in DEFINITIONS[name]["spec"]["versions"][0]["additionalPrinterColumns"]:
        path = column["jsonPath"].partition("[?")[0]
        assert path in known or path == ".metadata.creationTimestamp", column


class Either(ApiModel):
    value: int | str


class Choice(ApiModel):
    spec: Literal["a", 1]


@pytest.mark.parametrize("model", [Either, Choice])
def test_what_a_structural_schema_cannot_say_is_refused(model: type[ApiModel]):
    with pytest.raises(ValueError, match=rf"{model.__name__}\.\w+ .*structural schema"):
        crds._convert(model.model_json_schema(), {}, model.__name__)


@pytest.mark.parametrize("file", BAD_MANIFESTS, ids=lambda file: file.stem)
def test_a_bad_manifest_says_which_refusal_it_expects(file: Path):
    first, _, rest = file.read_text(encoding="utf-8").partition("\n")
    assert first.startswith("# expect: ") and len(first) > 20
    assert yaml.safe_load(rest)["metadata"]["name"] == file.stem


def test_the_generator_writes_into_every_directory_it_is_given(tmp_path: Path):
    assert crds.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert sorted(file.name for file in (tmp_path / "b").iterdir()) == NAMES
    assert crds.main([]) == 2


REFERENCES = {"name", "claimName"}
"""Fields by which a spec names an object of the cluster, wherever they stand below a reference."""
HOLDERS = ("secretKeyRef", "configMapKeyRef", "configMap", "fileSet", "persistentVolumeClaim")


def references(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, schema in nodes(schema_of(name)["properties"]["spec"], "spec"):
        holder, _, field = path.rpartition(".")
        if field in REFERENCES and holder.endswith(HOLDERS):
            yield path, schema


@pytest.mark.parametrize("name", NAMES)
def test_no_field_of_a_spec_names_a_namespace(name: str):
    """What a job or FileSet names lies in its own namespace, since nothing in it can say otherwise."""
    fields = [path for path, _ in nodes(schema_of(name)["properties"]["spec"], "spec")]
    assert len(fields) > 20
    assert [path for path in fields if "namespace" in path.lower()] == []
    # Where any field may stand is nothing that the operator follows: it is Gym's configuration.
    free = [
        path
        for path, schema in nodes(schema_of(name)["properties"]["spec"], "spec")
        if "x-kubernetes-preserve-unknown-fields" in schema
    ]
    assert free in ([], ["spec.target.gym.hydraParams"])


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_another_object_can_be_a_path_into_another_namespace(name: str):
    found = dict(references(name))
    assert len(found) >= 5, "the walk saw nothing"
    for path, schema in found.items():
        assert not re.match(schema.get("pattern", ""), "../../other/configmaps/rows"), path
        for bad in ("..", "a/b", "a%2fb", "a?b", "a#b", "A", ""):
            assert not re.fullmatch(schema["pattern"], bad), path
        for good in ("a", "rows-1", "kube-root-ca.crt"):
            assert re.fullmatch(schema["pattern"], good), path


@pytest.mark.parametrize("name", NAMES)
def test_a_default_of_the_spec_is_said_where_kubectl_explain_shows_it(name: str):
    fields = dict(nodes(schema_of(name)["properties"]["spec"], "spec"))
    unsaid = [path for path, field in fields.items() if "default" in field and "Default: " not in field["description"]]
    assert unsaid == []


def test_a_default_is_said_as_people_write_it():
    fields = dict(nodes(schema_of("evals.nhx.io_agentevaljobs.yaml")["properties"]["spec"], "spec"))
    said = {
        path: field["description"].rpartition(" Default: ")[2] for path, field in fields.items() if "default" in field
    }
    assert said["spec.target.gym.modelType"] == "inference_provider."
    assert said["spec.suspend"] == "false." and said["spec.minCoverage"] == "1."
    assert said["spec.results"] == "{emptyDir: {}}." and said["spec.tasks.taskIds"] == "empty."
