"""How one job's rollouts spread over several gym hosts: `make bench-hosts`. Prints a table.

    python bench/hosts.py [ROLLOUTS]

The hosts speak a gym host's protocol without Gym, each `AT_ONCE` rollouts at a time, and the model takes 1 to 3 s
for each, so that neither processor nor model is the limit: what is measured is the distribution by the evaluator, with
its gateway and its journal. Ends with 1 if several hosts get less than `LEAST` of what as many times one host would.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from nhx_gym_operator.api.wire.endpoints import HostState
from unit.evaluator_fakes import MODEL, FakeHost, FakeModel, chat, evaluator_url, prompt_of, row, serving, target, world

ROLLOUTS = 400
AT_ONCE = 8
"""What one host stands, like a Gym with memory for so many agents."""
FEWEST_S, MOST_S = 1.0, 3.0
MEAN_S = (FEWEST_S + MOST_S) / 2
LEAST = 0.85
"""Not all: at the end some places are empty while others finish what they have."""


class NarrowHost(FakeHost):
    """Runs `AT_ONCE` rollouts at a time; more than that wait in it."""

    def app(self) -> web.Application:
        self.places = asyncio.Semaphore(AT_ONCE)
        return super().app()

    async def _body(self, example: dict[str, Any]) -> bytes:
        async with self.places:
            return await super()._body(example)


async def answer(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    number = prompt_of(body).split()[-1]
    await asyncio.sleep(random.Random(number).uniform(FEWEST_S, MOST_S))
    return web.json_response(chat(number))


async def measured(folder: Path, count: int, rollouts: int, *, lose_one: bool = False) -> float:
    """Rollouts a second with so many hosts, from the first request to the last record."""
    async with world(folder, hosts=0, model=FakeModel(answer=answer)) as w:
        plan = w.plan(
            [row(number) for number in range(rollouts)],
            hosts=count,
            target=target(num_repeats=1, concurrency=AT_ONCE * count),
        )
        evaluation = w.evaluation(plan)
        work = asyncio.create_task(evaluation.run())
        url = await evaluator_url(evaluation)
        hosts = [NarrowHost(ordinal, evaluator=url) for ordinal in range(count)]
        servers = [serving(host.app()) for host in hosts]
        for host, server in zip(hosts, servers, strict=True):
            host.url = await server.__aenter__()
            await host.register(HostState.STARTING)
            await host.register()
        progress, began = evaluation.progress, time.monotonic()
        while progress.done + progress.failed < rollouts and not work.done():
            if lose_one and progress.done >= rollouts // 2:
                lose_one, hosts[0].healthy = False, False
                for transport in hosts[0].transports:
                    transport.abort()
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - began
        outcome = await work
        for server in servers:
            await server.__aexit__(None, None, None)
        if (outcome.state, outcome.progress.done) != ("Complete", rollouts):
            raise SystemExit(
                f"{count} hosts: {outcome.state}, {outcome.progress.done} of {rollouts}: {outcome.message}"
            )
        return rollouts / seconds


def main(rollouts: int = ROLLOUTS) -> int:
    # The fakes tell of each connection that a lost host leaves.
    logging.disable(logging.CRITICAL)
    rates: dict[str, float] = {}
    print(f"\n{rollouts} rollouts of {MODEL}, {AT_ONCE} at once in each host, {MEAN_S:g} s each\n")
    print("| hosts | rollouts/s | of as many times one host | of what the hosts stand |")
    print("|---|---|---|---|")
    for name, count, lose_one in (("1", 1, False), ("2", 2, False), ("4", 4, False), ("4, one lost midway", 4, True)):
        with tempfile.TemporaryDirectory() as folder:
            rates[name] = rate = asyncio.run(measured(Path(folder), count, rollouts, lose_one=lose_one))
        print(f"| {name} | {rate:.1f} | {rate / rates['1'] / count:.0%} | {rate * MEAN_S / AT_ONCE / count:.0%} |")
    if all(rates[str(count)] >= LEAST * count * rates["1"] for count in (2, 4)):
        return 0
    print(f"bound: {LEAST:.0%} of as many times one host", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
