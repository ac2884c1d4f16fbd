"""What the operator keeps of objects: whoever makes many large ones does not fill its memory."""

from __future__ import annotations

import copy
import json
import tracemalloc
from typing import Any

import pytest

from nhx_gym_operator.api import deep_json
from nhx_gym_operator.api.conditions import AcceptedReason
from nhx_gym_operator.api.constants import JOB_UID_LABEL, MANAGED_BY_LABEL, Placement
from nhx_gym_operator.controller.kube import PODS, KubeClient
from nhx_gym_operator.controller.observe import parse_job
from nhx_gym_operator.controller.policies.validation import refuse
from nhx_gym_operator.controller.trimming import LEFT_OUT, MAX_MARKS, MAX_VALUES, trimmed
from support.controller_values import settings, spec

MEBIBYTE = 1 << 20
MANY = [[]] * 330_000
"""A MiB of JSON."""
NAMES = {f"n{number}": "" for number in range(40_000)}


def read(*objects: dict[str, Any]) -> Any:
    return deep_json.loads(json.dumps({"items": objects}, separators=(",", ":")), trimmed)["items"]


def a_job(params: Any) -> dict[str, Any]:
    return {"metadata": {"name": "fat", "namespace": "team", "uid": "u"}, "spec": spec(gym={"hydraParams": params})}


@pytest.mark.parametrize(
    "fat",
    [
        a_job({"x": MANY}),
        a_job({"metadata": {"resourceVersion": "1"}, "spec": {"x": MANY}}),
        a_job({"items": [{"metadata": {}} for _ in range(60_000)]}),
        {"metadata": {"name": "p"}, "spec": {"podSelector": {}, "ingress": [{}] * 330_000}},
        {"metadata": {"name": "p", "managedFields": [{"fieldsV1": NAMES}]}, "spec": {}},
        {"metadata": {"name": "p", "annotations": NAMES}, "spec": {}},
        {"metadata": {"name": "p", "labels": NAMES, "finalizers": list(NAMES)}, "spec": {}},
    ],
    ids=["params", "like an object", "like a list", "policy", "managed fields", "annotations", "labels"],
)
def test_of_many_large_objects_little_is_kept(fat: dict[str, Any]) -> None:
    text = json.dumps({"items": [fat] * 5}, separators=(",", ":"))
    tracemalloc.start()
    items = deep_json.loads(text, trimmed)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(items["items"]) == 5 and held < MEBIBYTE


def test_a_job_of_which_something_was_left_out_is_refused_by_the_field() -> None:
    (raw,) = read(a_job({"x": MANY}))
    job, invalid = parse_job(raw)
    refused = refuse(job.spec, Placement.SANDBOXED, settings())
    assert not invalid and refused is not None and refused.reason is AcceptedReason.INVALID_SPEC
    assert f"hydraParams hold more than {MAX_VALUES} values" in refused.message


def test_what_is_made_to_be_used_is_kept_whole() -> None:
    params = {"a": list(range(MAX_VALUES // 2)), "b": {"metadata": {}, "spec": {"c": [{}] * 100}}}
    labels = {f"l{number}": "" for number in range(MAX_MARKS)}
    whole = a_job(params) | {"metadata": {"name": "a", "labels": labels}}
    assert read(whole) == [whole]


def test_labels_that_tie_an_object_to_its_job_are_kept_among_too_many() -> None:
    ours = {JOB_UID_LABEL: "u", MANAGED_BY_LABEL: "nhx-gym-operator"}
    (pod,) = read({"metadata": {"labels": NAMES | ours}, "spec": {"nodeName": "n", "containers": [{}] * 20_000}})
    assert pod == {"metadata": {"labels": ours}, "spec": {LEFT_OUT: True, "nodeName": "n", "containers": []}}


async def test_a_list_is_read_page_by_page_and_whole() -> None:
    asked = []

    class Pages(KubeClient):
        def __init__(self) -> None:
            pass

        async def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
            asked.append((options["query"]["limit"], options["query"].get("continue")))
            more = {"continue": "next"} if len(asked) == 1 else {}
            return {"metadata": {"resourceVersion": "7"} | more, "items": [len(asked)]}

    answer = await Pages().list(PODS, "team", labels="a=b")
    assert (answer["items"], asked) == ([1, 2], [("100", None), ("100", "next")])


def test_values_too_deep_for_kopf_to_copy_are_left_out_and_what_lies_above_them_stays() -> None:
    deep: dict[str, Any] = {"a": 1}
    for _ in range(900):
        deep = {"a": deep, "b": [2]}
    (found,) = read(a_job({"x": deep}))
    assert copy.deepcopy(found) == found
    assert found["spec"]["target"]["gym"]["hydraParams"]["x"]["a"]["b"] == [2]
    job, invalid = parse_job(found)
    refused = refuse(job.spec, Placement.SANDBOXED, settings())
    assert "nested more than 64 levels deep" in (invalid or (refused.message if refused else ""))
