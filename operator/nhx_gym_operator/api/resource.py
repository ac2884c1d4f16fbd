"""What both resources share: the model base, references, metadata, conditions, and CEL rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from .origins import kubernetes

Schema = dict[str, Any]

OBJECT_NAME_LENGTH = 253
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
"""Of a name in the resource's own namespace, as the API server takes one: a path into another namespace is none."""
CONFIG_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
WEEK_SECONDS = 7 * 24 * 3600
"""No time-out of a job may be longer. Ours."""

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""RFC 3339 in UTC with seconds, as the API server writes it: `2026-11-29T18:55:00Z`."""
ObjectName = Annotated[str, Field(min_length=1, max_length=OBJECT_NAME_LENGTH, pattern=OBJECT_NAME_PATTERN)]
ConfigKey = Annotated[str, Field(min_length=1, max_length=OBJECT_NAME_LENGTH, pattern=CONFIG_KEY_PATTERN)]


def rule(expression: str, message: str, *, field: str | None = None, reason: str | None = None) -> Schema:
    """One entry of `x-kubernetes-validations`; `field` is relative to the value that holds it."""
    entry = {"rule": expression, "message": message}
    if field:
        entry["fieldPath"] = field
    if reason:
        entry["reason"] = reason
    return entry


def validated(*rules: Schema) -> Schema:
    return {"x-kubernetes-validations": list(rules)}


def fixed_but(*changeable: str, rules: Sequence[Schema] = ()) -> Callable[[Schema], None]:
    """What a spec's schema needs so that no field but `changeable` can change. A rule for each field, those that are
    added later included, so that a refusal names the field. `rules` are further ones."""

    def add(schema: Schema) -> None:
        always = {name for name, field in schema["properties"].items() if field.get("default") is not None}
        always |= set(schema.get("required", ()))
        fields = sorted(schema["properties"].keys() - set(changeable))
        schema |= validated(*(_fixed(field, always_there=field in always) for field in fields), *rules)

    return add


def _fixed(field: str, *, always_there: bool) -> Schema:
    # Not `self.?x == oldSelf.?x`: the API server reckons the cost of an optional value as without bound.
    same = f"self.{field} == oldSelf.{field}"
    both = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same})"
    return rule(
        same if always_there else both,
        f"{field} of a job cannot change; delete the job and apply it again, or apply it under another name",
        field=f".{field}",
    )


def exactly_one_of(*fields: str) -> Schema:
    """The rule that one of these fields, as a manifest names them, is set and no other."""
    count = " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in fields)
    return rule(f"{count} == 1", f"exactly one of {', '.join(fields[:-1])} and {fields[-1]} must be set")


ATOMIC: Schema = {"x-kubernetes-map-type": "atomic"}
"""A reference is replaced as a whole: half of an old one and half of a new one point nowhere."""


def relative_path(what: str) -> Schema:
    return validated(
        rule(
            "!self.startsWith('/') && !self.split('/').exists(s, s == '' || s == '.' || s == '..')",
            f"{what} must be a relative path without empty, '.' or '..' parts",
        )
    )


class ApiModel(BaseModel):
    """Base of everything in the API: snake_case here, camelCase on the wire, immutable.

    Unknown fields are ignored: the API server prunes or refuses them before anything is stored, and
    an older operator must be able to read what a newer CRD allows.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    def to_dict(self) -> dict[str, Any]:
        """As the API server takes it: camelCase keys, JSON values, unset fields absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class KeyRef(ApiModel):
    """One key of a Secret or ConfigMap in the job's namespace."""

    model_config = ConfigDict(json_schema_extra=ATOMIC)

    name: Annotated[ObjectName, kubernetes("SecretKeySelector.name")] = Field(
        description="Name of the object, in the namespace of the resource that refers to it."
    )
    key: Annotated[ConfigKey, kubernetes("SecretKeySelector.key")] = Field(description="The key in it.")


class SecretValue(ApiModel):
    """A value that stands in a Secret and is never copied into the resource."""

    secret_key_ref: Annotated[KeyRef, kubernetes("EnvVarSource.secretKeyRef")] = Field(
        description="The Secret and the key in it. The operator itself never reads it: the kubelet "
        "gives it to the one container that needs it."
    )


class FileSetName(ApiModel):
    """A FileSet of the job's namespace."""

    model_config = ConfigDict(json_schema_extra=ATOMIC)

    name: Annotated[ObjectName, kubernetes("LocalObjectReference.name")] = Field(
        description="Name of the FileSet, in the job's namespace."
    )


class Condition(ApiModel):
    """A condition in the shape that all of Kubernetes uses (metav1.Condition)."""

    type: str = Field(max_length=316, description="What the condition is about.")
    status: str = Field(description="Whether it holds.", json_schema_extra={"enum": ["True", "False", "Unknown"]})
    reason: str = Field(min_length=1, max_length=1024, description="One word for programs: why it has this status.")
    message: str = Field(max_length=32768, description="The particulars for people: what, where, and what to change.")
    last_transition_time: Timestamp = Field(description="When `status` last changed.")
    observed_generation: int | None = Field(
        default=None,
        ge=0,
        description="`metadata.generation` of the spec that the condition speaks of.",
    )


class ObjectMeta(ApiModel):
    """The part of an object's metadata that this project reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


CONDITION_LIST: Schema = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}


def first_problem(error: ValidationError) -> str:
    """The first of a model's complaints as `field.path: words`, without the value, which may be a secret."""
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
