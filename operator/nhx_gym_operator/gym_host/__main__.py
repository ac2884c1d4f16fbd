"""`python -m nhx_gym_operator.gym_host gate|serve`, as the operator starts the two containers of a host pod; and
`canary-listen|canary-reach|canary-refused`, as it starts those of a measurement."""

from __future__ import annotations

import argparse
import os
import sys

from pydantic import ValidationError

from ..api.wire.plans import CANARY_PLAN_ENV, HOST_PLAN_ENV, CanaryPlan, GatePlan, HostPlan

_CANARY = ("canary-listen", "canary-reach", "canary-refused")


def read_plan[Plan: GatePlan](variable: str, kind: type[Plan]) -> Plan:
    """The plan that the operator put into this container's environment."""
    raw = os.environ.get(variable)
    if not raw:
        sys.exit(f"{variable} is not set: this program is started by the operator, in a gym host pod")
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        sys.exit(f"{variable} is not a {kind.__name__}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="nhx_gym_operator.gym_host", description=__doc__)
    parser.add_argument("command", choices=["gate", "serve", *_CANARY])
    command = parser.parse_args().command
    if command in _CANARY:
        from . import canary

        if command == "canary-listen":
            sys.exit(canary.listen())
        run = canary.reach if command == "canary-reach" else canary.refused
        sys.exit(run(read_plan(CANARY_PLAN_ENV, CanaryPlan)))

    plan = read_plan(HOST_PLAN_ENV, HostPlan)
    if command == "gate":
        from . import gate

        sys.exit(gate.main(plan))

    from . import launcher

    code = launcher.main(plan)
    # Gym leaves threads and exit hooks behind that wait for a cluster which is gone by now.
    os._exit(code)


if __name__ == "__main__":
    main()
