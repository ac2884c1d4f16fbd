"""What keeps one of several gym hosts away, beside what is known of the others."""

from __future__ import annotations

from enum import StrEnum

from ...api.conditions import ConditionType, SandboxReason
from ..status_draft import StatusDraft


def show(draft: StatusDraft, reason: StrEnum, message: str) -> None:
    """It is the sandbox's state only where no host is ready."""
    sandbox = draft.condition(ConditionType.SANDBOX_READY)
    if sandbox is None or sandbox["status"] != "True":
        draft.set(ConditionType.SANDBOX_READY, False, reason, message)
        return
    draft.set(ConditionType.SANDBOX_READY, True, SandboxReason.SOME_HOSTS_READY, f"{sandbox['message']}; {message}")
