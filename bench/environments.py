"""NeMo Gym's own environments on their own example rows, one job after the other: `make environments`.

    python bench/environments.py [SERVER ...] [--write]

Each is played without a kernel of its own (runc) and with one (gVisor). Prints the table of docs/environments.md, and
with --write puts its lines there. Ends with 1 if a job did not succeed, or earned otherwise in the other sandbox.
What is measured is everything but the model, which repeats the rollouts that ship with each server.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from e2e import runs
from e2e.bundled import BY_NAME, OFFLINE, Bundled
from e2e.installations import GVISOR, RUNC, Installation
from e2e.world import World
from support import cluster
from support.cluster import ROOT
from support.job_watch import condition, is_true, phase
from support.report import describe

RUN_SECONDS = 600
PAGE = ROOT / "docs/environments.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
HEAD = (
    "| `resourcesServer` | what it is | `agent` | `agentRefName` | rows | calls | reward "
    "| seconds: runc | gVisor | MiB: runc | gVisor |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class Played:
    """One job, from apply to its end."""

    succeeded: bool
    rollouts: str
    calls: int
    reward: str
    seconds: float
    memory: int


@dataclass(frozen=True)
class Measured:
    bundled: Bundled
    runc: Played
    gvisor: Played

    @property
    def succeeded(self) -> bool:
        return self.runc.succeeded and self.gvisor.succeeded and self.runc.reward == self.gvisor.reward

    def line(self) -> str:
        b, both = self.bundled, (self.runc, self.gvisor)
        cells = [f"`{b.server}`", b.kind, f"`{b.agent}`", f"`{b.agent_ref_name}`", self.runc.rollouts]
        cells += [str(self.runc.calls), self.runc.reward]
        cells += [f"{played.seconds:.0f}" for played in both]
        cells += [f"{played.memory / 2**20:.0f}" for played in both]
        return f"| {' | '.join(cells)} |\n"


def main(arguments: list[str]) -> int:
    chosen = [BY_NAME[name] for name in arguments if name != "--write"] or list(OFFLINE)
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            world.build()
            for bundled in chosen:
                measured.append(Measured(bundled, play(bundled, RUNC), play(bundled, GVISOR)))
                if "--write" in arguments and measured[-1].succeeded:
                    write(measured[-1:])
        finally:
            world.close()
            world.remove()
    table = HEAD + "".join(entry.line() for entry in measured)
    print(table)
    failed = [entry.bundled.server for entry in measured if not entry.succeeded]
    if failed:
        print(f"did not succeed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def write(measured: list[Measured]) -> None:
    """Puts the lines into the page; those of servers that were not measured now stay, whatever columns they have."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    lines = {line.split("`")[1]: f"{line}\n" for line in old.splitlines() if line.startswith("| `")}
    lines |= {entry.bundled.server: entry.line() for entry in measured}
    table = "".join(lines[bundled.server] for bundled in OFFLINE if bundled.server in lines)
    PAGE.write_text(f"{before}{BEGIN}{HEAD}{table}{END}{after}")


def play(bundled: Bundled, installation: Installation) -> Played:
    job = bundled.job(installation.jobs)
    namespace, name = runs.key_of(job)
    print(f"{bundled.server} in {namespace} ...", end=" ", file=sys.stderr, flush=True)
    start = time.monotonic()
    cluster.apply(job)
    memory = 0
    while True:
        state = cluster.get("aej", name, namespace)
        seconds = time.monotonic() - start
        if is_true(state, "Complete") or is_true(state, "Failed") or seconds > RUN_SECONDS:
            break
        memory = max(memory, cluster.working_sets(namespace).get("gym-host", 0))
        time.sleep(1)
    status = state.get("status", {})
    print(f"{phase(state)} after {seconds:.0f} s", file=sys.stderr)
    if phase(state) != "Succeeded":
        print(condition(state, "Failed").get("message") or describe(namespace, name), file=sys.stderr)
    aggregates = {entry["name"]: entry for entry in status.get("aggregates") or []}
    reward = aggregates.get("gym_reward.reward", {})
    low, high = reward.get("min"), reward.get("max")
    shown = "" if low is None or high is None else f"{low:g}" if low == high else f"{low:g} to {high:g}"
    cluster.delete("aej", name, namespace)
    return Played(
        phase(state) == "Succeeded",
        status.get("progress", {}).get("summary", "").partition("/")[2],
        status.get("usage", {}).get("policy", {}).get("calls", 0),
        shown,
        seconds,
        memory,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
