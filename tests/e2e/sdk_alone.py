"""The same rows by NVIDIA's SDK alone, in a plain pod: no operator, no gateway, no journal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.images.building import reference
from e2e import manifests
from e2e.installations import COLOCATED
from support import cluster

SCRIPT = Path(__file__).parent / "sdk_reference.py"
EXAMPLE = cluster.ROOT / "examples/submit"
ANY_USER = 54321
"""As clusters that give each namespace user ids of its own run a pod: no image knows the user, whose group is 0."""


@dataclass(frozen=True)
class SdkRun:
    summary: dict[str, Any]
    """The SDK's RunSummary as JSON."""
    files: dict[str, list[str]]
    """What it left in `gym_run`, by name with the keys of each file's first row."""
    seconds: float
    """What `gym eval run` took, its own start included."""
    user: str
    """Ids of the user and the group that it ran under, by a colon."""


def run(name: str, repeats: int, *, seconds: float) -> SdkRun:
    """Plays mcqa's rows `repeats` times against the scripted server, in a pod of this name, within `seconds`."""
    namespace = COLOCATED.jobs
    arguments = [manifests.MCQA_ROWS, manifests.scripted_model()["baseUrl"], str(repeats)]
    container = manifests.container(
        "sdk", reference("nhx-gym-tasks"), args=["python", f"/script/{SCRIPT.name}", *arguments], memory="4Gi"
    )
    container["env"] = [manifests.key_variable("POLICY_KEY")]
    container["volumeMounts"].append({"name": "script", "mountPath": "/script", "readOnly": True})
    volume = {"name": "script", "configMap": {"name": name}}
    pod = manifests.restricted_pod(namespace, name, [container], [volume])
    pod["spec"]["securityContext"] |= {"runAsUser": ANY_USER, "runAsGroup": 0}
    cluster.apply(manifests.config_map(namespace, name, {SCRIPT.name: SCRIPT.read_text()}), pod)
    log = cluster.log_when_done(name, namespace, seconds=seconds)
    summary, files = (json.loads(_behind(word, log)) for word in ("SUMMARY ", "FILES "))
    return SdkRun(summary, files, float(_behind("SECONDS ", log)), _behind("USER ", log))


def _behind(word: str, log: str) -> str:
    line = next((line for line in log.splitlines() if line.startswith(word)), None)
    if line is None:
        raise AssertionError(f"the SDK's own runner printed no {word.strip()}:\n{log[-4000:]}")
    return line.removeprefix(word)


def run_example(name: str, *, seconds: float) -> str:
    """What `examples/submit/run_locally.py` prints in the nhx-gym-tasks image: a local run, offline as pods are.

    Gym's own start has a second try: Ray gives its first process half a minute, which is short beside other Gyms.
    """
    namespace = COLOCATED.jobs
    model = manifests.scripted_model()
    rows = f"/opt/nhx/datasets/{manifests.MCQA_ROWS}"
    script = (
        "cd /tmp; printf 'skip_venv_if_present: true\\nuv_venv_dir: %s\\n' \"$NEMO_GYM_VENV_DIR\" > env.yaml; "
        f"run() {{ python /script/run_locally.py {rows} --base-url {model['baseUrl']} --model {model['model']}; }}; "
        "run || { cat /tmp/gym_run_*/gym_env.log; run; }"
    )
    container = manifests.container("sdk", reference("nhx-gym-tasks"), args=["sh", "-ec", script], memory="4Gi")
    container["env"] = [manifests.key_variable("POLICY_KEY")]
    container["volumeMounts"].append({"name": "script", "mountPath": "/script", "readOnly": True})
    files = {path.name: path.read_text() for path in EXAMPLE.glob("*.py")}
    cluster.apply(
        manifests.config_map(namespace, name, files),
        manifests.restricted_pod(namespace, name, [container], [{"name": "script", "configMap": {"name": name}}]),
    )
    return cluster.log_when_done(name, namespace, seconds=seconds)
