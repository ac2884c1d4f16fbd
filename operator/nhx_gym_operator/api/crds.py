"""Writes the CustomResourceDefinitions: `python -m nhx_gym_operator.api.crds DIRECTORY...`

pydantic's JSON schema goes in; the structural schema of the Kubernetes API comes out. That dialect
has no references, no unions for what may be absent, and its own spelling of exclusive bounds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from .constants import (
    CATEGORY,
    FILESET_KIND,
    FILESET_PLURAL,
    GROUP,
    JOB_KIND,
    JOB_PLURAL,
    JOB_SHORT_NAME,
    VERSION,
)
from .fileset import FileSet
from .job import AgentEvalJob
from .resource import ApiModel

Schema = dict[str, Any]

HEADER = (
    "# Generated from operator/nhx_gym_operator/api by `python -m nhx_gym_operator.api.crds`.\n"
    "# Change the models there, not this file.\n"
)
_ORDER = (
    "description",
    "type",
    "format",
    "nullable",
    "default",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
    "required",
    "properties",
    "items",
    "additionalProperties",
)
"""Keywords that a structural schema may hold, in the order in which they are written."""
_NESTED = frozenset({"default", "properties", "items", "additionalProperties"})


def structural_schema(model: type[ApiModel]) -> Schema:
    """The structural schema of `spec` and `status` of a resource model.

    Raises ValueError for a construct that a structural schema cannot express.
    """
    schema = model.model_json_schema(by_alias=True)
    converted = _convert(schema, schema.get("$defs", {}), model.__name__)
    properties = converted["properties"]
    return {
        "type": "object",
        "description": converted["description"],
        "required": ["spec"],
        "properties": {
            "spec": _with_said_defaults(properties["spec"]),
            "status": _without_default(properties["status"]),
        },
    }


def _convert(node: Schema, definitions: dict[str, Schema], where: str) -> Schema:
    node = _without_null(_inlined(node, definitions), definitions, where)
    if "type" not in node:
        raise ValueError(f"{where} has no single type; a structural schema needs one")
    out = {key: value for key, value in node.items() if key in _ORDER and key not in _NESTED}
    if node.get("default") is not None:
        out["default"] = _plain(node["default"])
    if "description" in node:
        out["description"] = " ".join(node["description"].split())
    for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if strict in node:
            out |= {bound: node[strict], strict: True}
    if "properties" in node:
        out["properties"] = {
            name: _convert(value, definitions, f"{where}.{name}") for name, value in node["properties"].items()
        }
    if "items" in node:
        out["items"] = _convert(node["items"], definitions, f"{where}[]")
    if isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = _convert(node["additionalProperties"], definitions, f"{where}{{}}")
    return {key: out[key] for key in _ORDER if key in out}


def _inlined(node: Schema, definitions: dict[str, Schema]) -> Schema:
    if "$ref" not in node:
        return node
    target = definitions[node["$ref"].removeprefix("#/$defs/")]
    return target | {key: value for key, value in node.items() if key != "$ref"}


def _without_null(node: Schema, definitions: dict[str, Schema], where: str) -> Schema:
    """`X or null` is how pydantic says that a field may be absent."""
    if "anyOf" not in node:
        return node
    kinds = [kind for kind in node["anyOf"] if kind.get("type") != "null"]
    if len(kinds) != 1:
        raise ValueError(f"{where} may be one of several types; a structural schema allows one")
    own = {key: value for key, value in node.items() if key != "anyOf"}
    return _inlined(kinds[0], definitions) | own


def _plain(value: Any) -> Any:
    """A default as people write it: nothing for null, 240 for 240.0."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _with_said_defaults(node: Schema) -> Schema:
    """`kubectl explain` shows no default but what the description says."""
    out = dict(node)
    if "default" in out:
        out["description"] = f"{out.get('description', '')} Default: {_said(out['default'])}.".lstrip()
    for keyword in ("items", "additionalProperties"):
        if keyword in out:
            out[keyword] = _with_said_defaults(out[keyword])
    if "properties" in out:
        out["properties"] = {name: _with_said_defaults(field) for name, field in out["properties"].items()}
    return out


def _said(default: Any) -> str:
    """As it stands in a manifest."""
    if default in ("", [], {}):
        return "empty"
    if isinstance(default, dict | list):
        return yaml.safe_dump(default, default_flow_style=True, sort_keys=False).strip()
    return json.dumps(default) if isinstance(default, bool) else str(default)


def _without_default(schema: Schema) -> Schema:
    """A default status would be stored before anyone has looked at the object."""
    return {key: value for key, value in schema.items() if key != "default"}


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> Schema:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return column | ({"priority": 1} if wide else {})


_AGE = _column("Age", "date", ".metadata.creationTimestamp", "Time since it was created.")

JOB_COLUMNS = [
    _column("Phase", "string", ".status.phase", "Where the job stands."),
    _column("Placement", "string", ".status.placement", "Where Gym runs."),
    _column("Progress", "string", ".status.progress.summary", "Finished rollouts of all."),
    _column("Reward", "string", ".status.reward", "Mean reward, 0 to 1."),
    _column("Reason", "string", ".status.reason", "What explains the phase.", wide=True),
    _column("Hosts", "string", ".status.hosts.summary", "Gym hosts ready of all.", wide=True),
    _column("Attempt", "integer", ".status.attempt", "Number of the attempt.", wide=True),
    _column("Model", "string", ".status.model", "The model under evaluation.", wide=True),
    _column("Results", "string", ".status.results.location", "Where the bundle is.", wide=True),
    _AGE,
]
FILESET_COLUMNS = [
    _column(
        "Resolved",
        "string",
        '.status.conditions[?(@.type=="Resolved")].status',
        "Whether every file can be read.",
    ),
    _column("Files", "integer", ".status.files", "Files found."),
    _AGE,
]


def _definition(model: type[ApiModel], kind: str, plural: str, columns: list[Schema], short_names: list[str]) -> Schema:
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "categories": [CATEGORY],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": names | ({"shortNames": short_names} if short_names else {}),
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": structural_schema(model)},
                }
            ],
        },
    }


def definitions() -> dict[str, Schema]:
    """Each CustomResourceDefinition by the name of its file."""
    return {
        f"{GROUP}_{JOB_PLURAL}.yaml": _definition(AgentEvalJob, JOB_KIND, JOB_PLURAL, JOB_COLUMNS, [JOB_SHORT_NAME]),
        f"{GROUP}_{FILESET_PLURAL}.yaml": _definition(FileSet, FILESET_KIND, FILESET_PLURAL, FILESET_COLUMNS, []),
    }


def render(definition: Schema) -> str:
    return HEADER + yaml.dump(definition, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    """Writes repeated values out: no file that people read has anchors in it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(directories: list[str]) -> int:
    if not directories:
        print("usage: python -m nhx_gym_operator.api.crds DIRECTORY...", file=sys.stderr)
        return 2
    for directory in map(Path, directories):
        directory.mkdir(parents=True, exist_ok=True)
        for name, definition in definitions().items():
            (directory / name).write_text(render(definition), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
