"""NeMo Gym's own environments that need no package, no download and no second model: what a job of each looks like.

A server's example rows are played against a model server that says what the model said in the rollouts that ship beside
them (`example_rollouts.jsonl`), so that rewards are as real as those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from e2e import manifests
from support.cluster import Object

_PATIENCE_SECONDS = 500


@dataclass(frozen=True)
class Bundled:
    server: str
    """As in `resourcesServer`, and the folder of its rows."""
    agent: str = "simple_agent"
    agent_ref: str = ""
    rows: int = 5
    """Distinct ones in its example data."""
    kind: str = ""
    """In the words of its users."""

    @property
    def agent_ref_name(self) -> str:
        return self.agent_ref or f"{self.server}_{self.agent}"

    def job(self, namespace: str, name: str = "", **gym: Any) -> Object:
        target = {
            "agent": self.agent,
            "agentConfig": f"responses_api_agents/{self.agent}/configs/{self.agent}.yaml",
            "agentRefName": self.agent_ref_name,
            "resourcesServer": self.server,
            "modelType": "vllm_model",
            "startupTimeoutSeconds": _PATIENCE_SECONDS,
        }
        rows = {"bundled": f"resources_servers/{self.server}/data/example.jsonl"}
        model = manifests.scripted_model(manifests.RECORDED_PORT)
        return manifests.job(namespace, name or self.server.replace("_", "-")[:40], rows, target | gym, model)


TOOL_USE = "single_step_tool_use_with_argument_comparison"
OFFLINE = (
    Bundled("mcqa", kind="multiple choice"),
    Bundled("example_single_tool_call", kind="one tool call"),
    Bundled("example_multi_step", kind="several tool calls"),
    Bundled("example_session_state_mgmt", kind="tool calls with state"),
    Bundled("xlam_fc", kind="function calling"),
    Bundled("calendar", kind="scheduling in a dialogue"),
    Bundled(TOOL_USE, "tool_simulation_agent", f"{TOOL_USE}_agent", kind="one tool call, compared"),
    Bundled("workplace_assistant", kind="tool calls over tables"),
    Bundled("gpqa_diamond", kind="multiple choice"),
    Bundled("arc_agi", kind="grid puzzles"),
    Bundled("blackjack", "gymnasium_agent", rows=1, kind="a game, turn by turn"),
)
MULTI_REWARD = Bundled("example_tool_call_multireward", kind="one tool call, several rewards")
"""Its records hold `correctness`, `schema_valid` and `format` beside their sum, the reward."""
REPLAYED = [bundled.server for bundled in (*OFFLINE, MULTI_REWARD)]
BY_NAME = {bundled.server: bundled for bundled in OFFLINE}
