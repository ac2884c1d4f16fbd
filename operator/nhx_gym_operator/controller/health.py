"""What the kubelet's probes are answered.

`/healthz` is whether this operator sees the cluster: red while it is blind, and then it is not "ready". `/livez` is
answered by every process whose loop runs: an API server that is away comes back no sooner for a restart, and a process
that waits for it goes on at once when it does.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

HEALTH_PORT = 8088
SEES_PATH = "/healthz"
LIVES_PATH = "/livez"


async def serve(port: int, trouble: Callable[[], str]) -> web.AppRunner:
    """`trouble` says why the operator is blind; empty: it is not. `cleanup()` of what is returned ends the serving."""

    async def sees(_request: web.Request) -> web.Response:
        words = trouble()
        return web.Response(text=words or "ok", status=503 if words else 200)

    async def lives(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application()
    app.add_routes([web.get(SEES_PATH, sees), web.get(LIVES_PATH, lives)])
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
