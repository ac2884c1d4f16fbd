"""What a measurement found, as the ConfigMap holds it, and what that means for a job that needs a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from ..clock import format_time, parse_time

LASTS_INTERVALS = 3
"""A verdict stands for so many intervals while newer measurements come to none, e.g. on a node that is full."""
RETRY_SECONDS = 60.0
"""Between measurements while something does not hold or is not known, so that a mended cluster is soon used again."""


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


class Findings(BaseModel):
    """The outcome of measurements. Each field is a key of the ConfigMap."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    subject: str
    """Digest of the settings that were measured."""
    tried_at: str
    """RFC 3339, of the last measurement, whatever came of it."""
    trouble: str = ""
    """Why the last one came to no verdict; empty if it did."""
    kernel: Verdict
    kernel_message: str
    kernel_measured_at: str
    network: Verdict
    network_message: str
    network_measured_at: str
    runtime_class_name: str = ""
    namespace: str = ""
    node: str = ""
    """Where the client ran: what was found holds for this node and namespace, and for others only as far as they are
    set up alike."""
    pids_limit: str = ""
    """`pids.max` as the client saw it; empty where it is not to be seen from inside."""
    not_checked: str = ""
    """What could not be compared, and for lack of which right."""

    @property
    def checks(self) -> tuple[Check, Check]:
        """Of the kernel and of the network."""
        return (
            Check(self.kernel, self.kernel_message, self.kernel_measured_at),
            Check(self.network, self.network_message, self.network_measured_at),
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
    """None for what was found before a job found its sandbox open."""
    if suspected and findings and parse_time(findings.tried_at) < suspected.replace(microsecond=0):
        return None
    return findings


def merged(before: Findings | None, new: Findings, interval: float) -> Findings:
    """`new`, in which a check that came to no verdict keeps a good one that still stands. A bad one is not kept: what
    has failed and is not known now lets nobody in, and refuses nobody for good."""
    if before is None or before.subject != new.subject or new.verdict is not Verdict.UNKNOWN:
        return new
    now = parse_time(new.tried_at)
    kept: dict[str, object] = {}
    for name, old, check in zip(("kernel", "network"), before.checks, new.checks, strict=True):
        good = old.verdict in (Verdict.HOLDS, Verdict.NOT_NEEDED)
        if check.verdict is Verdict.UNKNOWN and good and _stands(old, interval, now):
            kept |= {name: old.verdict, f"{name}_message": old.message, f"{name}_measured_at": old.at}
    return new.model_copy(update=kept)


def _stands(check: Check, interval: float, now: datetime) -> bool:
    return check.verdict is not Verdict.UNKNOWN and now - parse_time(check.at) < LASTS_INTERVALS * timedelta(
        seconds=interval
    )


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


@dataclass(frozen=True)
class Standing:
    """What a job that needs a sandbox is told now. `message` says what was found, where and when; for a job that is
    refused it names the setting to change."""

    state: State
    message: str


def standing(findings: Findings | None, subject: str, interval: float, since: datetime, now: datetime) -> Standing:
    """From what was found last. A failure refuses jobs for good, so that only a fresh one counts: while it is being
    measured again they wait."""
    if findings is None or findings.subject != subject:
        return Standing(State.NOT_KNOWN, "canary pods are about to show whether a sandbox of this cluster holds")
    where = f"measured at {findings.tried_at} on node {findings.node!r} in namespace {findings.namespace!r}"
    failed = [check.message for check in findings.checks if check.verdict is Verdict.FAILS]
    if failed:
        if now >= due_at(findings, subject, interval, since):
            return Standing(State.NOT_KNOWN, f"it is measured again whether a sandbox holds; last: {'; '.join(failed)}")
        return Standing(State.FAILS, f"{'; '.join(failed)} ({where})")
    unknown = [check.message for check in findings.checks if not _stands(check, interval, now)]
    if unknown:
        words = findings.trouble or "; ".join(unknown)
        return Standing(
            State.NOT_KNOWN,
            f"it is not known whether a sandbox of this cluster holds: {words}. It is tried again every "
            f"{min(RETRY_SECONDS, interval):g} s; an administrator can mend this, or set the chart's canary.enabled to "
            f"false, which admits jobs unmeasured",
        )
    return Standing(State.HOLDS, f"{findings.message} ({where})")


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
