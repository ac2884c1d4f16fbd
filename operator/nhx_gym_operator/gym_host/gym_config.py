"""From a job's target to NeMo Gym's global configuration. Pure: reads YAML files, starts nothing.

Gym is configured by one nested dict. Its command line composes that dict from flags (`--config`,
`--resources-server`, `--model-type`, `++a.b=value`); here the same dict is composed directly, by the
same rules, so that a target means the same in a sandboxed host as under `gym env start`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from ..api.constants import Placement
from ..api.gym_config import deep_merge, nested
from ..api.gym_models import TOKEN_ENV, model_settings, search_path
from ..api.gym_ports import COMPONENT_TYPES, clash
from ..api.wire.mounts import ENVIRONMENT_DIR, WORK_DIR
from ..api.wire.plans import GymTarget, HostPlan

VENVS_DIR = f"{WORK_DIR}/venvs"
"""Where a job with a package gets its links; the image's own folder is read-only."""
SELECTION_KEY = "_nhx_environment_component_selection"
"""sandboxed_gym.runtime.gym_host_runtime reads it and picks config_paths from the package."""
_ENDPOINT_WAIT_S = 60
"""The gateway answered before Gym was started, so Gym's default of 600 s would only hide a fault."""


class ConfigError(ValueError):
    """The target cannot be composed into a configuration. Names the field to change."""


@dataclass(frozen=True)
class Composition:
    """A configuration, and the folders (`resources_servers/mcqa`) of the servers it will start."""

    config: dict[str, Any]
    components: frozenset[str]


def compose(plan: HostPlan, *, install_root: Path, environment: Path | None = None) -> Composition:
    """The value of NHX_GYM_GLOBAL_CONFIG for `plan`.

    `install_root` holds Gym's own `resources_servers/` and so on; `environment` is the root of a
    staged environment package, if the job has one. Raises `ConfigError`.
    """
    target = plan.target
    config: dict[str, Any] = {
        "skip_venv_if_present": True,
        "model_endpoint_readiness_timeout_seconds": _ENDPOINT_WAIT_S,
    }
    if environment is None:
        selection, declared = _builtin_selection(target, install_root)
    else:
        selection, declared = _package_selection(target, install_root, environment)
    config |= selection
    config = deep_merge(config, _binding(target, declared))
    params = nested(target.hydra_params)
    # The sandbox has no other way to a model, so the route is not the job's to change.
    config = deep_merge(config, params) | model_settings(plan.evaluator_url, plan.models)
    servers = deep_merge(declared, params)
    clashing = clash(servers, Placement.SANDBOXED)
    if clashing:
        raise ConfigError(f"{clashing}, or set another by spec.target.gym.hydraParams")
    return Composition(config, _components(servers))


def _components(declared: Mapping[str, Any]) -> frozenset[str]:
    """`<type>/<server>` of every server instance, by the shape that Gym itself goes by."""
    found = set()
    for instance in declared.values():
        for kind in COMPONENT_TYPES:
            servers = instance.get(kind) if isinstance(instance, Mapping) else None
            found |= {f"{kind}/{name}" for name in servers or {}}
    return frozenset(found)


def require_runnable(composition: Composition, venvs: Path, listing: Path) -> None:
    """Raise `ConfigError` for a server that has no virtual environment in `venvs`.

    Gym would try to install it from a package index, which a sandbox cannot reach, and a half-made
    environment passes its own check. `listing` is the image's list of what each bundled server lacks.
    """
    lacking = sorted(name for name in composition.components if not (venvs / name / ".venv/bin/python").exists())
    if not lacking:
        return
    try:
        known = json.loads(listing.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    details = [f"{name} ({', '.join(known.get(name, {}).get('missing', [])) or 'not linked'})" for name in lacking]
    raise ConfigError(
        "this image cannot start " + "; ".join(details) + ". Use a gym-host image that holds these dependencies, "
        "or a FileSet environment that brings its wheels"
    )


def asset_config(parent: str, value: str) -> str:
    """Config path that `--resources-server` or `--model-type` means by `name` or `name/flavor`.

    Source: `_asset_config_path` of nemo_gym.cli.main.
    """
    name, _, flavor = value.partition("/")
    return f"{parent}/{name}/configs/{flavor or name}.yaml"


def _builtin_selection(target: GymTarget, root: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config_paths for components of the image, and all they declare."""
    server = asset_config("resources_servers", target.resources_server)
    model = asset_config("responses_api_models", target.model_type)
    declared = _load(server, [root], f"spec.target.gym.resourcesServer {target.resources_server!r}")
    paths = [server, model]
    if target.agent_instance not in declared:
        agent = _agent_config(target, f"the resources server's own config {server}", declared)
        declared |= _load(agent, [root], "spec.target.gym.agentConfig")
        paths.insert(0, agent)
    declared |= _load(model, [root], f"spec.target.gym.modelType {target.model_type!r}")
    _require_agent(target, declared)
    return {"config_paths": list(dict.fromkeys(paths))}, declared


def _package_selection(target: GymTarget, root: Path, environment: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The selection that the stock runtime composes with the package's own configs, and what both declare."""
    roots = [environment, root]
    declared: dict[str, Any] = {}
    for path in _package_configs(environment):
        declared |= _load(path, roots, "config_paths of nemo-environment.yaml")
    agent_config = target.agent_config
    if target.agent_instance not in declared:
        agent_config = _agent_config(target, "the environment package", declared)
        declared |= _load(agent_config, roots, "spec.target.gym.agentConfig")
    model = asset_config("responses_api_models", target.model_type)
    declared |= _load(model, [root], f"spec.target.gym.modelType {target.model_type!r}")
    server, server_config = (
        target.resources_server.partition("/")[0],
        asset_config("resources_servers", target.resources_server),
    )
    if server not in declared:
        declared |= _load(server_config, roots, f"spec.target.gym.resourcesServer {target.resources_server!r}")
    _require_agent(target, declared)
    selection = {
        "agent_instance": target.agent_instance,
        "agent_config": agent_config,
        "resources_server_instance": server,
        "resources_server_config": server_config,
        "model_config": model,
    }
    return {SELECTION_KEY: selection}, declared


def _package_configs(environment: Path) -> list[str]:
    """What the package's manifest lists. The stock runtime validates the manifest; here it is only read."""
    manifest = environment / "nemo-environment.yaml"
    try:
        content = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            "the environment holds no nemo-environment.yaml at its root; check the paths of the FileSet's items"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"nemo-environment.yaml of the environment is not YAML: {error}") from error
    paths = content.get("config_paths") if isinstance(content, dict) else None
    return [path for path in paths or [] if isinstance(path, str)]


def _agent_config(target: GymTarget, place: str, declared: Mapping[str, Any]) -> str:
    if target.agent_config:
        return target.agent_config
    raise ConfigError(
        f"agent instance {target.agent_instance!r} is not declared by {place}: set spec.target.gym.agentConfig, or "
        f"spec.target.gym.agentRefName to one of {_agents(declared)}"
    )


def _require_agent(target: GymTarget, declared: Mapping[str, Any]) -> None:
    if target.agent_instance not in declared and target.agent_instance not in nested(target.hydra_params):
        raise ConfigError(
            f"agent instance {target.agent_instance!r} is declared by no config of this job: set "
            f"spec.target.gym.agentRefName to one of {_agents(declared)}"
        )


def _agents(declared: Mapping[str, Any]) -> str:
    names = [name for name, value in declared.items() if isinstance(value, Mapping) and "responses_api_agents" in value]
    return ", ".join(sorted(names)) or "(none declared)"


def _binding(target: GymTarget, declared: Mapping[str, Any]) -> dict[str, Any]:
    """The resources server put into a composable agent, as nhx_evals_sdk's `selection_args` does.

    Only for the agent's own instance: one that a resources server or a package declares under another
    name is bound where it is declared.
    """
    agents = declared.get(target.agent_instance, {}).get("responses_api_agents", {})
    if not target.bind_resources_server or target.agent_instance != target.agent or target.agent not in agents:
        return {}
    server = {"resources_server": {"name": target.resources_server}}
    return {target.agent: {"responses_api_agents": {target.agent: server}}}


def _load(path: str, roots: Sequence[Path], field: str) -> dict[str, Any]:
    """All top-level entries of a config and of those it includes. The first root that has it wins."""
    entries: dict[str, Any] = {}
    queue, seen = [path], set()
    while queue:
        current = queue.pop(0)
        if current in seen:
            continue
        seen.add(current)
        content = _read(current, roots, field)
        queue += [included for included in content.get("config_paths") or [] if isinstance(included, str)]
        entries = deep_merge(content, entries)
    entries.pop("config_paths", None)
    return entries


def _read(path: str, roots: Sequence[Path], field: str) -> dict[str, Any]:
    for root in roots:
        file = root / path
        if not file.is_file():
            continue
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{field}: {path} is not YAML: {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{field}: {path} holds no mapping")
        if root is not roots[-1]:
            _refuse_models(path, content)
        return content
    raise ConfigError(f"{field} means the config {path}, which this image and the environment do not have")


def _refuse_models(path: str, content: Mapping[str, Any]) -> None:
    """The stock validator looks into the configs that a manifest names, and not into those that they include."""
    for name, instance in content.items():
        if isinstance(instance, Mapping) and "responses_api_models" in instance:
            raise ConfigError(
                f"{path} of the environment configures the model server {name!r}: models are spec.models of the job"
            )


def environment_variables(
    plan: HostPlan, config_json: str, token: str, *, environment: bool, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Variables to set before Gym is started: Gym's own needs, then the job's, then the wiring.

    The job's `env_vars` may change a default of ours (as in nhx_evals_sdk's `gym_invocation_env`), not
    the wiring: its configuration, its directories and its token.
    """
    defaults = {
        # Ray otherwise tries to copy a `uv run` project to its workers; Gym's servers bring their own.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        # Ray starts a worker per CPU in advance; most environments never use one, and each is 80 MiB.
        "RAY_prestart_worker_first_driver": "0",
        # With this Ray keeps to loopback, as it does where it forms no clusters; else it listens on the pod's address.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # One bar per rollout would bury what the servers have to say.
        "TQDM_DISABLE": "1",
    }
    wiring = {
        "NHX_GYM_GLOBAL_CONFIG": config_json,
        "NHX_WORK_PATH": WORK_DIR,
        "NHX_JOB_ID": plan.uid,
        # Without a way out, asking a model hub would only take its time-outs.
        "NHX_ENVIRONMENT_OFFLINE": "false" if plan.egress else "true",
        TOKEN_ENV: token,
        "PYTHONPATH": search_path(inherited.get("PYTHONPATH", "")),
    }
    if plan.egress:
        wiring |= _proxies(plan.evaluator_url, token)
    if environment:
        wiring |= {
            "NHX_ENVIRONMENT_PATH": ENVIRONMENT_DIR,
            "NHX_ENVIRONMENT_PACKAGE_REQUIRED": "true",
            "NEMO_GYM_VENV_DIR": VENVS_DIR,
            # Wheels are installed for this interpreter, and nothing of them is kept a second time.
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_CACHE": "1",
            "UV_LINK_MODE": "copy",
        }
    else:
        wiring["NHX_ENVIRONMENT_PATH"] = ""
    kept = {name: value for name, value in defaults.items() if name not in inherited}
    return kept | plan.target.env_vars | wiring


def _proxies(evaluator_url: str, token: str) -> dict[str, str]:
    """The evaluator as the proxy of whatever heeds these variables. The token stands in them: environment code holds it
    anyway, and a forwarder in this container that adds it would hide nothing."""
    url = urlsplit(evaluator_url)
    proxy = f"{url.scheme}://nhx:{token}@{url.netloc}"
    values = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "NO_PROXY": f"localhost,127.0.0.1,::1,{url.hostname}"}
    # Some clients read the small letters only.
    return values | {name.lower(): value for name, value in values.items()}
