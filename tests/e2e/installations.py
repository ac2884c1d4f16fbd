"""Three installations of the chart, each with its own settings, operator and job namespaces.

A namespace's jobs have one operator. The installation that a demo leaves behind serves all namespaces, so the first of
the three is that very release: upgraded for the tests and rolled back after them, or else installed and removed. The
other two are what a team without rights on the whole cluster installs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from devcluster.images.building import reference
from e2e.manifests import INSTANT_PORT, MODELS_NAMESPACE
from support import cluster
from support.cluster import ROOT

CHART = ROOT / "charts/nhx-gym-operator"
INSTALL_SECONDS = 180
REGISTRY, _, _image = reference("nhx-tasks").rpartition("/")
TAG = _image.rpartition(":")[2]


@dataclass(frozen=True)
class Installation:
    release: str
    namespace: str
    job_namespaces: tuple[str, ...]
    sandbox: dict[str, Any] = field(default_factory=dict)

    @property
    def jobs(self) -> str:
        """The namespace that most tests put jobs into."""
        return self.job_namespaces[0]


OPEN_NETWORK = "nhx-e2e-open"
"""A namespace with a NetworkPolicy of its own that lets gym hosts out: the fence that a gate must find missing."""

ALLOWED = f"scripted.{MODELS_NAMESPACE}:{INSTANT_PORT}"
"""The one host that sandboxed jobs may ask for."""
_EGRESS = {"allow": [ALLOWED]}

GVISOR = Installation("nhx-gym-operator", "nhx-gym-operator", ("nhx-e2e-gvisor", OPEN_NETWORK), {"egress": _EGRESS})
RUNC = Installation(
    "nhx-e2e-runc", "nhx-e2e-runc-operator", ("nhx-e2e-runc",), {"isolation": "ContainerOnly", "egress": _EGRESS}
)
COLOCATED = Installation(
    "nhx-e2e-colocated", "nhx-e2e-colocated-operator", ("nhx-e2e-colocated",), {"mode": "Disabled"}
)
INSTALLATIONS = (GVISOR, RUNC, COLOCATED)


# Three jobs and the model servers have to find room on a node of two cores, beside a demo's.
SMALL = {"requests": {"cpu": "100m", "memory": "1Gi"}}
SESSION_ANNOTATION = "e2e.nhx.io/session"


def install(installation: Installation, session: str) -> int | None:
    """Returns the revision that stood there before, None if there was none.

    The annotation reaches the operator's pod and those of all jobs, and makes a new pod of an operator that was there
    before: its image may have changed under the same tag.
    """
    before = usable_revision(installation)
    values = {
        "image": {"registry": REGISTRY, "tag": TAG},
        "watchNamespaces": list(installation.job_namespaces),
        "sandbox": installation.sandbox,
        "resources": {"gymHost": SMALL, "gymTasks": SMALL},
        "pods": {"annotations": {SESSION_ANNOTATION: session}},
        "crds": {"install": installation is GVISOR},
        "rbac": {"runtimeClasses": installation is GVISOR},
    }
    cluster.helm(
        "upgrade",
        "--install",
        "--create-namespace",
        f"--namespace={installation.namespace}",
        "--reset-values",
        # A CRD that somebody applied with kubectl is ours again.
        "--force-conflicts",
        "--wait",
        f"--timeout={INSTALL_SECONDS}s",
        "--values=-",
        installation.release,
        str(CHART),
        stdin=json.dumps(values),
        timeout=INSTALL_SECONDS + 30,
    )
    return before


def restore(installation: Installation, revision: int | None) -> None:
    """Back to what was there before `install`."""
    if revision is None:
        uninstall(installation)
        return
    here = f"--namespace={installation.namespace}"
    cluster.helm("rollback", installation.release, str(revision), here, "--wait", timeout=INSTALL_SECONDS)


def uninstall(installation: Installation) -> None:
    here = f"--namespace={installation.namespace}"
    cluster.helm("uninstall", installation.release, here, "--ignore-not-found", "--wait", timeout=INSTALL_SECONDS)


def usable_revision(installation: Installation) -> int | None:
    """A release that a killed helm left half-way would refuse an upgrade: it is removed. One that killed tests left is
    nothing to go back to."""
    here = f"--namespace={installation.namespace}"
    releases = json.loads(cluster.helm("list", here, f"--filter=^{installation.release}$", "--output=json"))
    if not releases:
        return None
    if releases[0]["status"] != "deployed":
        uninstall(installation)
        return None
    values = json.loads(cluster.helm("get", "values", installation.release, here, "--output=json")) or {}
    if values.get("watchNamespaces") == list(installation.job_namespaces):
        return None
    return int(releases[0]["revision"])
