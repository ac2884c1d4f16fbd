"""What the API server's schema cannot see: what hydraParams hold, and whether the images hold what a job names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from ...api import bundled, egress
from ...api.conditions import AcceptedReason
from ...api.constants import Placement
from ...api.job import JobSpec
from ...api.limits import operators_setting, users_field
from ...api.target import NO_PROXIES, PROXY_VARIABLE
from ...api.wording import some_of
from ...workloads.options import Images, Limits
from ..observation import JobRefused
from ..settings import Settings
from ..trimming import LEFT_OUT, MAX_VALUES
from . import hydra_params

MAX_SPEC_BYTES = 112 * 1024
MAX_SHOWN = 10


def refuse(spec: JobSpec, placement: Placement, settings: Settings) -> JobRefused | None:
    """Why this job can never run in that placement, if so."""
    return (
        _refuse_hydra_params(spec, placement)
        or _refuse_proxies(spec)
        or _refuse_size(spec)
        or _refuse_limits(spec, settings.limits)
        or _refuse_egress(spec, settings.sandbox.egress.allow)
        or _refuse_server(spec, settings.images)
        or _refuse_agent(spec, settings.images)
    )


def _refuse_hydra_params(spec: JobSpec, placement: Placement) -> JobRefused | None:
    if LEFT_OUT in spec.target.gym.hydra_params:
        why = f"{hydra_params.FIELD} hold more than {MAX_VALUES} values; shorten them"
        return JobRefused(AcceptedReason.INVALID_SPEC, why)
    why = hydra_params.refusal(spec, placement)
    return JobRefused(AcceptedReason.INVALID_SPEC, why) if why else None


def _refuse_proxies(spec: JobSpec) -> JobRefused | None:
    """As the CRD's rule does, for a cluster whose CRD is older: in a colocated pod a proxy would answer in place of
    each address that the evaluator checks."""
    gym = spec.target.gym
    name = next((name for name in (*gym.env_vars, *gym.env_secrets) if re.search(PROXY_VARIABLE, name)), None)
    if name is None:
        return None
    field = "envVars" if name in gym.env_vars else "envSecrets"
    return JobRefused(AcceptedReason.INVALID_SPEC, f"spec.target.gym.{field}.{name}: {NO_PROXIES}")


def _refuse_size(spec: JobSpec) -> JobRefused | None:
    """Refuses a spec of which the plan would not fit, though no part of it is too large."""
    size = len(spec.model_dump_json(by_alias=True, exclude_none=True).encode())
    if size <= MAX_SPEC_BYTES:
        return None
    return JobRefused(
        AcceptedReason.INVALID_SPEC,
        f"the spec is {size} bytes as JSON, at most {MAX_SPEC_BYTES} are taken; shorten taskIds, labels, envVars or "
        f"hydraParams",
    )


def _refuse_limits(spec: JobSpec, limits: Limits) -> JobRefused | None:
    """Refuses a bound of the job's own that is above the operator's."""
    for what, asked in spec.limits:
        most = getattr(limits, f"max_{what}")
        if asked is not None and most is not None and asked > most:
            return JobRefused(
                AcceptedReason.LIMIT_TOO_HIGH,
                f"{users_field(what)} is {asked}, and the operator's setting {operators_setting(what)} allows {most}; "
                f"lower it or leave it out",
            )
    return None


def _refuse_egress(spec: JobSpec, ceiling: Sequence[str]) -> JobRefused | None:
    """Refuses hosts that the administrator does not allow, in either placement: what a job may ask for does not depend
    on where it happens to run."""
    beyond = egress.beyond(spec.egress.allow, ceiling)
    if not beyond:
        return None
    return JobRefused(
        AcceptedReason.EGRESS_NOT_ALLOWED,
        f"{egress.FIELD} asks for {_listed(beyond)}, and the operator's setting {egress.SETTING} allows "
        f"{_listed(ceiling)}; leave it out, or have an administrator add it there",
    )


def _listed(entries: Sequence[str]) -> str:
    return some_of(entries, MAX_SHOWN) or "nothing"


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else "none has a similar name"


def _refuse_server(spec: JobSpec, images: Images) -> JobRefused | None:
    """Refuses a resources server that the images cannot run. An environment brings its own."""
    if not images.check_bundled or spec.target.gym.environment is not None:
        return None
    server = spec.target.gym.resources_server
    missing = bundled.missing_dependencies(server)
    if missing is None:
        known = bundled.known_servers()
        return JobRefused(
            AcceptedReason.UNKNOWN_BUNDLED_SERVER,
            f"spec.target.gym.resourcesServer {server!r} is not among the servers in the images and no "
            f"environment supplies it; {_near(server.removeprefix(bundled.PREFIX), known)}\n"
            f"those that run are {', '.join(known)}",
        )
    if missing:
        return JobRefused(
            AcceptedReason.BUNDLED_SERVER_LACKS_DEPENDENCIES,
            f"spec.target.gym.resourcesServer {server!r} needs packages that the image lacks: "
            f"{', '.join(missing)}; supply the server with them as an environment FileSet, or have an "
            f"administrator set images.gymHost to an image that holds them and images.checkBundled to false",
        )
    return None


def _refuse_agent(spec: JobSpec, images: Images) -> JobRefused | None:
    """Refuses an agent that Gym would ignore since it goes by `agentRefName`: who wrote it meant another one. Where Gym
    goes by `agent`, it refuses an unknown one itself."""
    gym = spec.target.gym
    if not images.check_bundled or gym.environment is not None or gym.agent_ref_name in (None, gym.agent):
        return None
    known = bundled.known_agents()
    if gym.agent not in known:
        return JobRefused(
            AcceptedReason.UNKNOWN_BUNDLED_AGENT,
            f"spec.target.gym.agent {gym.agent!r} is not among the agents in the images, and Gym would ignore it, "
            f"since spec.target.gym.agentRefName names one; {_near(gym.agent, known)}\n"
            f"those in the images are {', '.join(known)}",
        )
    named = bundled.agent_of(gym.agent_ref_name)
    if named in (None, gym.agent):
        return None
    return JobRefused(
        AcceptedReason.OTHER_BUNDLED_AGENT,
        f"spec.target.gym.agent is {gym.agent!r}, but spec.target.gym.agentRefName {gym.agent_ref_name!r} is an "
        f"instance of {named!r}; correct one of them",
    )
