"""`python -m nhx_gym_operator.gym_host gate|serve`, as the operator starts the two containers of a host pod."""

from __future__ import annotations

import argparse
import os
import sys

from pydantic import ValidationError

from nhx_gym_operator.api.wire import HOST_PLAN_ENV, HostPlan


def read_plan() -> HostPlan:
    """The plan that the operator put into this container's environment."""
    raw = os.environ.get(HOST_PLAN_ENV)
    if not raw:
        sys.exit(f"{HOST_PLAN_ENV} is not set: this program is started by the operator, in a gym host pod")
    try:
        return HostPlan.model_validate_json(raw)
    except ValidationError as error:
        sys.exit(f"{HOST_PLAN_ENV} is not a host plan: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="nhx_gym_operator.gym_host", description=__doc__)
    parser.add_argument("command", choices=["gate", "serve"])
    command = parser.parse_args().command
    plan = read_plan()
    if command == "gate":
        from nhx_gym_operator.gym_host import gate

        sys.exit(gate.main(plan))

    from nhx_gym_operator.gym_host import launcher

    code = launcher.main(plan)
    # Gym leaves threads and exit hooks behind that wait for a cluster which is gone by now.
    os._exit(code)


if __name__ == "__main__":
    main()
