"""`python -m nhx_gym_operator.controller`: the operator's process."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from .app import Operator
from .kube import load_configuration
from .settings import SettingsError, load_installation

LOG_LEVEL_ENV = "NHX_LOG_LEVEL"


async def run() -> None:
    installation = load_installation()
    await Operator(installation, await load_configuration()).run()


def main() -> int:
    level = os.environ.get(LOG_LEVEL_ENV, "INFO").upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level != "DEBUG":
        # kopf tells of every event, and its health endpoint of every probe.
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    try:
        asyncio.run(run())
    except SettingsError as error:
        print(f"The operator cannot start: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
