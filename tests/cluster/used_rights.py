"""Each right that the chart gives the operator is used in the tests of this folder; one that is not is one too many.

`--every-right-is-used` is for a run of all of them: if they pass, it fails where a right is left. Each process of xdist
has an API server of its own, and hands over what was used there.
"""

from __future__ import annotations

import pytest

from cluster.rights import Right, given

OPTION = "--every-right-is-used"
_OUTPUT = "used rights"


class UsedRights:
    """A pytest plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._used: set[Right] = set()
        self._left: list[Right] = []

    def note(self, used: set[Right]) -> None:
        """Of one API server, once all its tests are through."""
        self._used |= used
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_OUTPUT] = [list(right) for right in self._used]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._used |= {Right(*right) for right in getattr(node, "workeroutput", {}).get(_OUTPUT, ())}

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        is_whole = self._config.getoption(OPTION) and not hasattr(self._config, "workeroutput")
        if is_whole and exitstatus == pytest.ExitCode.OK:
            self._left = sorted(given() - self._used)
            if self._left:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for role, resource, verb in self._left:
            where = f"the chart's rules for {role} (templates/_helpers.tpl)"
            terminalreporter.line(f"FAILED {where} give a right that no test uses: {verb} {resource}", red=True)
