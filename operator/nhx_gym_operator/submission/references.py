"""What a spec file names elsewhere, `name` or `workspace/name`, as objects of one namespace.

A workspace is a namespace. A FileSet and a taskset have the name that stands there. A secret of the platform is one
value, so it is one key of a Secret: the Secret is called as the reference in lower case with `-` for `_` (the SDK's own
resolver takes both for the same), and the key is `value`, unless the submitter says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..api.resource import KeyRef, SecretValue
from .errors import SubmissionError

SECRET_KEY = "value"
"""Key of a Secret that a reference stands for. Ours: a reference has no room for one."""
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")


def namespace_of(references: Iterable[tuple[str, str]], asked: str | None) -> str | None:
    """The namespace of the job: the one asked for, else the workspace that references name, else None (the
    kubeconfig's own). `references` are pairs of a field and what stands there. As with kubectl, two that differ are an
    error: a job reads nothing of another namespace."""
    found = asked
    for field, reference in references:
        workspace, slash, _ = reference.rpartition("/")
        if not slash:
            continue
        if found is None:
            found = _checked(workspace, field, "a namespace")
        elif workspace != found:
            raise SubmissionError(
                f"{field} is in `{workspace}` and the job in `{found}`: a job reads only what its own namespace holds. "
                f"Write the name alone, or submit to namespace `{workspace}`"
            )
    return found


def object_name(field: str, reference: str, kind: str) -> str:
    return _checked(reference.rpartition("/")[2], field, kind)


def secret_of(field: str, reference: str, secrets: Mapping[str, KeyRef]) -> SecretValue:
    """`secrets` says for references, as they are written, which key of which Secret they are."""
    given = secrets.get(reference)
    if given is not None:
        return SecretValue(secret_key_ref=given)
    name = reference.rpartition("/")[2].lower().replace("_", "-")
    return SecretValue(secret_key_ref=KeyRef(name=_checked(name, field, "a Secret"), key=SECRET_KEY))


def _checked(name: str, field: str, kind: str) -> str:
    if not _OBJECT_NAME.match(name) or len(name) > 253:
        raise SubmissionError(
            f"{field}: {kind} can't be called `{name}` in Kubernetes: lower-case letters, digits and `-` only"
        )
    return name
