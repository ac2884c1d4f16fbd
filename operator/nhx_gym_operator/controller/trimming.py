"""Objects are trimmed while the operator reads them: an object takes memory by how many values it holds, some
twenty times its size where they are small, and whoever may make objects of a namespace decides on both.

So each is cut before the next one is read: nothing that is made to be used has as many values. A job that was cut is
refused; what else was cut is none of ours as it was built, which its spec says by `LEFT_OUT`.
"""

from __future__ import annotations

from typing import Any

from ..api.constants import GROUP, MANAGED_BY_LABEL
from ..api.deep_json import cut_levels

MAX_VALUES = 10_000
"""Of a spec. That of a job has a few hundred."""
MAX_MARKS = 200
"""Labels, annotations, owners and the like."""
LEFT_OUT = "nhx.too-many-values"
"""The key of what stands in the place of values that were left out."""

Manifest = dict[str, Any]


def trimmed(obj: Manifest) -> Manifest:
    """For `json.loads`: called with each JSON object when all of it has been read."""
    metadata = obj.get("metadata")
    if isinstance(metadata, dict):
        _cut_marks(metadata)
    spec = obj.get("spec")
    if isinstance(metadata, dict) and isinstance(spec, dict) and has_more_values(spec, MAX_VALUES):
        obj["spec"] = _cut(spec)
    params = obj.get("hydraParams")
    if isinstance(params, dict):
        if has_more_values(params, MAX_VALUES):
            obj["hydraParams"] = {LEFT_OUT: True}
        else:
            cut_levels(params)
    return obj


def has_more_values(value: Any, most: int) -> bool:
    """Whether there are more than `most` values in it, at any depth."""
    level, seen = [value], 0
    while level:
        seen += len(level)
        if seen > most:
            return True
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict | list):
                if len(each) > most:
                    return True
                inner += each.values() if isinstance(each, dict) else each
        level = inner
    return False


def _cut(spec: Manifest) -> Manifest:
    """Without the fields that hold much. What a pod must have, it has."""
    small = {name: value for name, value in spec.items() if not has_more_values(value, MAX_VALUES // 10)}
    return {LEFT_OUT: True} | ({"containers": []} if "containers" in spec else {}) | small


def _cut_marks(metadata: Manifest) -> None:
    # Who wrote which field is nothing that the operator asks.
    metadata.pop("managedFields", None)
    for field in ("labels", "annotations"):
        marks = metadata.get(field)
        if isinstance(marks, dict) and len(marks) > MAX_MARKS:
            metadata[field] = {name: text for name, text in marks.items() if name in _OURS or name.startswith(_PREFIX)}
    for field in ("ownerReferences", "finalizers"):
        if isinstance(metadata.get(field), list):
            del metadata[field][MAX_MARKS:]


_OURS = frozenset({MANAGED_BY_LABEL})
_PREFIX = f"{GROUP}/"
