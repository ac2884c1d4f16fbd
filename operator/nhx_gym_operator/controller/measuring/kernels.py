"""Whether the kernel inside a RuntimeClass is the node's, from what both say. No name is trusted for it."""

from __future__ import annotations

from dataclasses import dataclass

from ...api.wire.reports import Kernel
from .findings import Verdict

_GVISOR = "Starting gVisor"
"""How the kernel's log begins that gVisor makes up. It names the kernel for people and decides nothing."""


@dataclass(frozen=True)
class NodeKernel:
    """What the kubelet says of the node, in `status.nodeInfo`."""

    boot_id: str
    release: str


@dataclass(frozen=True)
class Comparison:
    verdict: Verdict
    message: str
    not_checked: str = ""


def compare(
    inside: Kernel, runtime_class: str, node: NodeKernel | None, beside: Kernel | None, unreadable: str = ""
) -> Comparison:
    """The kernel under the RuntimeClass against the node's own, as the kubelet reports it; where the operator may not
    read nodes (`unreadable` says why), against that of a pod `beside` it on the same node without the RuntimeClass."""
    shown = f"the kernel inside RuntimeClass {runtime_class!r} ({_named(inside)})"
    if node is not None:
        return _against(inside, shown, node.boot_id, node.release, "the node's")
    if beside is not None:
        found = _against(inside, shown, beside.boot_id, beside.release, "that of a pod beside it without one")
        return Comparison(found.verdict, found.message, unreadable)
    return Comparison(
        Verdict.UNKNOWN,
        f"{shown} could not be compared with the node's: {unreadable}, and the two canaries ran on different nodes",
        unreadable,
    )


def _against(inside: Kernel, shown: str, boot_id: str, release: str, whose: str) -> Comparison:
    """By the boot id, which two kernels never share though they may be of one version; by the version where one of
    them shows no boot id."""
    if inside.boot_id and boot_id:
        same, by = inside.boot_id == boot_id, "boot id"
    elif inside.release and release:
        same, by = inside.release == release, "version"
    else:
        return Comparison(Verdict.UNKNOWN, f"{shown} tells neither its boot id nor its version")
    if not same:
        return Comparison(Verdict.HOLDS, f"{shown} is not {whose} ({release}), by its {by}")
    return Comparison(
        Verdict.FAILS,
        f"{shown} is {whose}, by its {by}: the RuntimeClass gives no kernel of its own. An administrator can mend it, "
        f"name another in the operator's setting sandbox.runtimeClassName, or set sandbox.isolation to ContainerOnly",
    )


def _named(kernel: Kernel) -> str:
    return f"gVisor {kernel.release}" if _GVISOR in kernel.words else kernel.release or "unnamed"
