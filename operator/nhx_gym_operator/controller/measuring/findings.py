"""What a measurement found, as the ConfigMap holds it, and what that means for a job that needs a sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_serializer, field_validator
from pydantic.alias_generators import to_camel

from ...api.wording import some_of
from ...workloads.canary import Turn
from ..clock import format_time, parse_time

LASTS_INTERVALS = 3
"""A verdict stands for so many intervals while newer measurements come to none, e.g. on a node that is full."""
RETRY_SECONDS = 60.0
"""Between measurements while something does not hold or is not known, so that a mended cluster is soon used again."""
NODES_KEPT = 100
"""Nodes whose last measurement is remembered: each is a line of the ConfigMap, and a condition of a canary's place."""
NODES_NAMED = 5
"""Nodes named in a sentence."""


class Verdict(StrEnum):
    HOLDS = "Holds"
    FAILS = "Fails"
    UNKNOWN = "Unknown"
    NOT_NEEDED = "NotNeeded"
    """`sandbox.isolation` is ContainerOnly: no kernel of its own is promised."""


@dataclass(frozen=True)
class Check:
    """One thing that a sandbox relies on. `message` is for people."""

    verdict: Verdict
    message: str
    at: str = ""
    """RFC 3339, when this was found."""
    node: str = ""
    """Where; empty if no pod was needed for it."""


class _Stored(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class NodeFindings(_Stored):
    """What the last measurement on one node found."""

    node: str
    at: str
    kernel: Verdict
    network: Verdict
    kernel_message: str = ""
    network_message: str = ""
    """Of a check that failed."""

    @property
    def checks(self) -> tuple[Check, Check]:
        return (
            Check(self.kernel, self.kernel_message, self.at, self.node),
            Check(self.network, self.network_message, self.at, self.node),
        )


class Findings(_Stored):
    """The outcome of measurements. Each field is a key of the ConfigMap."""

    subject: str
    """Digest of the settings that were measured."""
    tried_at: str
    """RFC 3339, of the last measurement, whatever came of it."""
    trouble: str = ""
    """Why the last one came to no verdict; empty if it did."""
    kernel: Verdict
    kernel_message: str
    kernel_measured_at: str
    kernel_node: str = ""
    network: Verdict
    network_message: str
    network_measured_at: str
    network_node: str = ""
    runtime_class_name: str = ""
    namespace: str = ""
    nodes: tuple[NodeFindings, ...] = ()
    """One line of JSON for each node, the one that was measured last first. What was found holds for these and for the
    namespace, and for others only as far as they are set up alike."""
    not_measured: str = ""
    """Nodes of the cluster for which no measurement stands, a few of them by name; empty if there are none, or if
    `not_checked` says that they are not known."""
    pids_limit: str = ""
    """`pids.max` as the client saw it; empty where it is not to be seen from inside."""
    not_checked: str = ""
    """What could not be compared, and for lack of which right."""

    @field_validator("nodes", mode="before")
    @classmethod
    def _from_lines(cls, value: Any) -> Any:
        return [NodeFindings.model_validate_json(line) for line in value.splitlines()] if type(value) is str else value

    @field_serializer("nodes")
    def _to_lines(self, nodes: tuple[NodeFindings, ...]) -> str:
        return "\n".join(node.model_dump_json(by_alias=True, exclude_defaults=True) for node in nodes)

    @property
    def checks(self) -> tuple[Check, Check]:
        """Of the kernel and of the network."""
        return (
            Check(self.kernel, self.kernel_message, self.kernel_measured_at, self.kernel_node),
            Check(self.network, self.network_message, self.network_measured_at, self.network_node),
        )

    @property
    def verdict(self) -> Verdict:
        verdicts = [check.verdict for check in self.checks]
        if Verdict.FAILS in verdicts:
            return Verdict.FAILS
        return Verdict.UNKNOWN if Verdict.UNKNOWN in verdicts else Verdict.HOLDS

    @property
    def message(self) -> str:
        return "; ".join(filter(None, (self.kernel_message, self.network_message, self.trouble)))

    @property
    def failing_nodes(self) -> tuple[str, ...]:
        nodes = [check.node for check in self.checks if check.verdict is Verdict.FAILS and check.node]
        return tuple(dict.fromkeys(nodes))

    def turn(self, subject: str) -> Turn:
        """Which node should be measured next: one where something fails, else the one that waits for it longest."""
        if self.subject != subject:
            return Turn()
        return Turn(first=self.failing_nodes, known=tuple(entry.node for entry in self.nodes))

    def to_data(self) -> dict[str, str]:
        """`data` of the ConfigMap, with the verdict over all beside the fields."""
        return {"verdict": self.verdict.value} | self.model_dump(by_alias=True, mode="json")


def from_data(data: Mapping[str, str] | None) -> Findings | None:
    """None where nothing was measured yet, or something else stands there."""
    try:
        return Findings.model_validate(data or {})
    except ValidationError:
        return None


def unless_withdrawn(findings: Findings | None, suspected: datetime | None) -> Findings | None:
    """None for what was found before a job found its sandbox open. That a measurement takes seconds decides a tie: one
    that ended in the same second had begun before."""
    if suspected and findings and parse_time(findings.tried_at) <= suspected:
        return None
    return findings


def merged(before: Findings | None, new: Findings, interval: float, gone: frozenset[str] = frozenset()) -> Findings:
    """`new` with what still stands of `before`. `gone`: nodes that are known to be there no more.

    A check that came to no verdict keeps a good one. A bad one it does not keep: what has failed and is not known now
    lets nobody in, and refuses nobody for good. A check that is good on one node does not outweigh that it failed on
    another: that stands until it is measured there again, the node is gone, or its time is over.
    """
    known = before.nodes if before and before.subject == new.subject else ()
    entry = _entry(new)
    remeasured = {measured.node for measured in entry} | gone
    others = [old for old in known if old.node not in remeasured]
    changes: dict[str, object] = {"nodes": (*entry, *others)[:NODES_KEPT]}
    if before is None or before.subject != new.subject:
        return new.model_copy(update=changes)
    now = parse_time(new.tried_at)
    for index, (name, last, check) in enumerate(zip(_NAMES, before.checks, new.checks, strict=True)):
        if check.verdict is Verdict.UNKNOWN:
            keeps = last if last.verdict in _GOOD and _stands(last, interval, now) else None
        elif check.verdict in _GOOD:
            failed = [other.checks[index] for other in others if other.checks[index].verdict is Verdict.FAILS]
            keeps = next((check for check in failed if _stands(check, interval, now)), None)
        else:
            keeps = None
        if keeps is not None:
            changes |= {name: keeps.verdict, f"{name}_message": keeps.message}
            changes |= {f"{name}_measured_at": keeps.at, f"{name}_node": keeps.node}
    return new.model_copy(update=changes)


_NAMES = ("kernel", "network")
_GOOD = (Verdict.HOLDS, Verdict.NOT_NEEDED)


def _node_of(new: Findings) -> str:
    """Of one measurement, both checks of which are of one node."""
    return new.network_node


def _entry(new: Findings) -> tuple[NodeFindings, ...]:
    """Empty for a measurement that came to nothing anywhere."""
    if not _node_of(new) or new.kernel is new.network is Verdict.UNKNOWN:
        return ()
    kernel, network = (check.message if check.verdict is Verdict.FAILS else "" for check in new.checks)
    return (
        NodeFindings(
            node=_node_of(new),
            at=new.tried_at,
            kernel=new.kernel,
            network=new.network,
            kernel_message=kernel,
            network_message=network,
        ),
    )


def _stands(check: Check, interval: float, now: datetime) -> bool:
    return check.verdict is not Verdict.UNKNOWN and now - parse_time(check.at) < LASTS_INTERVALS * timedelta(
        seconds=interval
    )


def standing_verdicts(
    findings: Findings | None, subject: str, interval: float, now: datetime
) -> tuple[Verdict, Verdict]:
    """Of the kernel and of the network, as they stand now. What was never measured, withdrawn, or found too long ago,
    is not known."""
    if findings is None or findings.subject != subject:
        return Verdict.UNKNOWN, Verdict.UNKNOWN
    kernel, network = (c.verdict if _stands(c, interval, now) else Verdict.UNKNOWN for c in findings.checks)
    return kernel, network


def due_at(findings: Findings | None, subject: str, interval: float, since: datetime) -> datetime:
    """When to measure next. `since`: the operator's start, or when a job found its sandbox open; an older measurement
    does not count."""
    if findings is None or findings.subject != subject or parse_time(findings.tried_at) < since.replace(microsecond=0):
        return since
    pause = interval if findings.verdict is Verdict.HOLDS and not findings.trouble else min(RETRY_SECONDS, interval)
    return parse_time(findings.tried_at) + timedelta(seconds=pause)


class State(StrEnum):
    HOLDS = "Holds"
    FAILS = "Fails"
    NOT_KNOWN = "NotKnown"
    """To be waited for: nobody is refused, nor let in, for what was not measured."""
    IN_DOUBT = "InDoubt"
    """It was seen to fail, and not seen to hold since: nobody is let in, nor given pods that was let in before, and
    nobody is refused for good."""


@dataclass(frozen=True)
class Standing:
    """What a job that needs a sandbox is told now. `message` says what was found, where and when; for a job that is
    refused it names the setting to change."""

    state: State
    message: str


def standing(
    findings: Findings | None, subject: str, interval: float, since: datetime, now: datetime, trouble: str = ""
) -> Standing:
    """From what was found last. A failure refuses jobs for good, so that only a fresh one counts: while it is being
    measured again they wait. `trouble` is what keeps the operator from measuring at all, now."""
    if findings is None or findings.subject != subject:
        words = f"whether a sandbox of this cluster holds cannot be measured: {trouble}" if trouble else _ABOUT_TO
        return Standing(State.NOT_KNOWN, words)
    failed = [check for check in findings.checks if check.verdict is Verdict.FAILS]
    if failed:
        words = "; ".join(f"{check.message} ({_where(check, findings.namespace)})" for check in failed)
        fresh = any(check.at == findings.tried_at for check in failed)
        if not fresh or now >= due_at(findings, subject, interval, since):
            return Standing(State.IN_DOUBT, f"it is measured again whether a sandbox holds; last: {words}")
        return Standing(State.FAILS, words)
    unknown = [check.message for check in findings.checks if not _stands(check, interval, now)]
    if unknown:
        words = trouble or findings.trouble or "; ".join(unknown)
        failing = [c for entry in findings.nodes for c in entry.checks if c.verdict is Verdict.FAILS]
        return Standing(
            State.IN_DOUBT if any(_stands(check, interval, now) for check in failing) else State.NOT_KNOWN,
            f"it is not known whether a sandbox of this cluster holds: {words}. It is tried again every "
            f"{min(RETRY_SECONDS, interval):g} s; an administrator can mend this, or set the chart's canary.enabled to "
            f"false, which admits jobs unmeasured",
        )
    where = dict.fromkeys(_where(check, findings.namespace) for check in findings.checks)
    lacking = [f"no measurement stands for {findings.not_measured}"] if findings.not_measured else []
    words = f"{findings.message} ({'; '.join([*where, *_elsewhere(findings, interval, now), *lacking])})"
    return Standing(State.HOLDS, f"{words}; it cannot be measured again now: {trouble}" if trouble else words)


_ABOUT_TO = "canary pods are about to show whether a sandbox of this cluster holds"


def _where(check: Check, namespace: str) -> str:
    node = f" on node {check.node!r}" if check.node else ""
    return f"measured at {check.at}{node} in namespace {namespace!r}"


def _elsewhere(findings: Findings, interval: float, now: datetime) -> list[str]:
    """On which other nodes the same was found, as long as it stands."""
    shown = {check.node for check in findings.checks}
    nodes = [
        repr(entry.node)
        for entry in findings.nodes
        if entry.node not in shown and all(c.verdict in _GOOD and _stands(c, interval, now) for c in entry.checks)
    ]
    return [f"before that on {some_of(nodes, NODES_NAMED)}"] if nodes else []


def among(findings: Findings, nodes: Iterable[str], interval: float, now: datetime) -> Findings:
    """With those of the cluster's nodes for which nothing stands: never measured, or too long ago."""
    stands = {entry.node for entry in findings.nodes if all(_stands(check, interval, now) for check in entry.checks)}
    others = [repr(name) for name in sorted(set(nodes) - stands)]
    return findings.model_copy(update={"not_measured": some_of(others, NODES_NAMED)})


def among_unknown(findings: Findings, why: str) -> Findings:
    """Where the cluster's nodes are not to be known."""
    words = f"which nodes were never measured: {why}"
    # An outcome that is written once more has it already.
    parts = [part for part in findings.not_checked.split("; ") if part and part != words]
    return findings.model_copy(update={"not_measured": "", "not_checked": "; ".join([*parts, words])})


def unmeasured(subject: str, now: datetime, why: str) -> Findings:
    """Findings of a measurement that came to nothing."""
    moment = format_time(now)
    return Findings(
        subject=subject,
        tried_at=moment,
        trouble=why,
        kernel=Verdict.UNKNOWN,
        kernel_message=why,
        kernel_measured_at=moment,
        network=Verdict.UNKNOWN,
        network_message=why,
        network_measured_at=moment,
    )
