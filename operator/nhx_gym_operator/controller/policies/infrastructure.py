"""What has to exist before a job's pods: address, policies, claim. Made again when it goes missing."""

from __future__ import annotations

from typing import Any

from ...api.constants import Placement
from ...workloads import network, storage
from ...workloads.workload import Workload
from ..differences import contains, equals
from ..observation import Apply, Observation
from . import hosts

Manifest = dict[str, Any]

_DEFAULTED = frozenset({"protocol"})
"""Of a NetworkPolicy's port, TCP unless it says otherwise."""


def missing(observation: Observation, workload: Workload) -> list[Apply]:
    """Applies for what is absent or was changed by hand; nothing for what is as it should be."""
    actions = []
    if workload.placement is Placement.SANDBOXED:
        actions += _service(observation, workload)
    present = {policy["metadata"]["name"]: policy for policy in observation.policies}
    for manifest in network.network_policies(workload):
        live = present.get(manifest["metadata"]["name"])
        if live is None or not (contains(live, manifest) and _fences_alike(live, manifest)):
            actions.append(Apply(manifest))
    claim = storage.own_claim(workload)
    if claim and observation.claim is None:
        actions.append(Apply(claim))
    return actions


def _fences_alike(live: Manifest, desired: Manifest) -> bool:
    """A policy opens by what is added to it: another label in its selector, and it binds no pod; an `endPort`, and one
    port is thousands."""
    return equals(live["spec"], desired["spec"], defaulted=_DEFAULTED)


def _service(observation: Observation, workload: Workload) -> list[Apply]:
    # Running hosts know one address. After a refusal (someone else has it by now) any will do: the
    # hosts are replaced then.
    known = None if observation.refusal else hosts.known_address(observation.pods)
    live = observation.service
    if live is None:
        return [Apply(network.evaluator_service(workload, known))]
    manifest = network.evaluator_service(workload)
    return [] if contains(live, manifest) else [Apply(manifest)]
