"""Runs that many rows of docs/compatibility.md look at. Each is played once."""

from __future__ import annotations

import pytest
from nhx_evals_sdk.agent_eval.results import AgentEvalResult

from contract import runs
from contract.runs import Finished


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Five rows twice, one of them answered wrongly."""
    return runs.sandboxed(tmp_path_factory.mktemp("whole"), labels={"benchmark": "mcqa"})


@pytest.fixture(scope="session")
def partly(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """As `whole`, with a row whose verifier raises both times."""
    return runs.sandboxed(tmp_path_factory.mktemp("partly"), runs.break_one, min_coverage=0.5)


@pytest.fixture(scope="session")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """As `whole`, colocated."""
    return runs.colocated(tmp_path_factory.mktemp("beside"))


@pytest.fixture(scope="session")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> AgentEvalResult:
    """As `whole`, by the SDK alone."""
    return runs.sdk_alone(tmp_path_factory.mktemp("sdk"))
