"""A status that the cluster's definition does not take: told, reduced where that does no harm, and never a hot loop."""

import pytest
from prometheus_client import REGISTRY

from nhx_gym_operator.api.status import JobStatus
from nhx_gym_operator.controller.act import Actor
from nhx_gym_operator.controller.caches import Caches
from nhx_gym_operator.controller.kube import ApiError
from nhx_gym_operator.controller.status_writer import DISPENSABLE, StatusWriter
from support.controller_values import NOW, UID

JOB = {
    "apiVersion": "evals.nhx.io/v1alpha1",
    "kind": "AgentEvalJob",
    "metadata": {"name": "mcqa", "namespace": "team", "uid": UID, "resourceVersion": "7"},
}
STATUS = {"model": "org/m", "reward": "0.5", "conditions": []}


class Server:
    """Refuses these fields of a status, one at a time, as validation may."""

    def __init__(self, *refused):
        self.refused = refused
        self.patches, self.events = [], []

    async def patch_status(self, resource, namespace, name, patch):
        self.patches.append(sorted(patch["status"]))
        for field in self.refused:
            if field in patch["status"]:
                words = f"AgentEvalJob.evals.nhx.io {name!r} is invalid: status.{field}: Too long"
                raise ApiError(422, "Invalid", words, ("FieldValueTooLong",), (f"status.{field}[0].name",))
        return {**JOB, "status": patch["status"]}

    async def create(self, manifest):
        self.events.append(manifest)


def writing(*refused):
    server = Server(*refused)
    return StatusWriter(Actor(server, Caches(lambda *_: None)), server, lambda: NOW), server


def counted():
    return REGISTRY.get_sample_value("nhx_status_refused_total")


async def test_what_only_people_read_is_left_out_and_not_tried_again():
    writer, server = writing("model", "reward")
    before = counted()
    assert await writer.write(JOB, STATUS)
    assert await writer.write(JOB, STATUS)
    assert server.patches == [
        ["conditions", "model", "reward"],
        ["conditions", "reward"],
        ["conditions"],
        ["conditions"],
    ]
    assert counted() == before + 2
    first = server.events[0]
    assert (first["reason"], first["type"]) == ("StatusRefused", "Warning")
    assert "Too long; left out: status.model. Apply the CRDs" in first["message"]


async def test_a_status_that_can_do_without_nothing_that_was_refused_is_not_written_and_told():
    writer, server = writing("conditions")
    with pytest.raises(ApiError) as refused:
        await writer.write(JOB, STATUS)
    assert refused.value.invalid
    assert "nothing of it is written" in server.events[0]["message"]
    assert server.patches == [["conditions", "model", "reward"]]


async def test_a_job_that_is_gone_is_forgotten():
    writer, server = writing("model")
    await writer.write(JOB, STATUS)
    writer.forget(UID)
    await writer.write(JOB, STATUS)
    assert server.patches[-2:] == [["conditions", "model", "reward"], ["conditions", "reward"]]


def test_what_can_be_left_out_is_of_a_jobs_status():
    assert {field.alias or name for name, field in JobStatus.model_fields.items()} >= DISPENSABLE
