"""The cluster as all tests find it: operators installed, namespaces made, model servers up."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from e2e import bundled, installations, manifests
from e2e.installations import COLOCATED, GVISOR, INSTALLATIONS, OPEN_NETWORK, RUNC
from support import cluster
from support.cluster import Object
from support.job_watch import JobWatch

READY_SECONDS = 120
GONE_SECONDS = 180


@dataclass
class World:
    directory: Path
    """For what is downloaded."""
    model_key: str = field(default_factory=lambda: f"sk-e2e-{secrets.token_hex(12)}")
    session: str = field(default_factory=lambda: secrets.token_hex(4))
    _watch: JobWatch | None = None
    _before: dict[str, int | None] = field(default_factory=dict)

    def build(self) -> None:
        """Raises CommandError with the failed command's words."""
        self._remove_namespaces(*_own_namespaces())
        with ThreadPoolExecutor(len(INSTALLATIONS)) as pool:
            every = (*_own_namespaces(), GVISOR.namespace)
            cluster.apply(*(manifests.restricted_namespace(name) for name in every))
            models = pool.submit(self._serve_models)
            self._before[GVISOR.release] = installations.install(GVISOR, self.session)
            others = [pool.submit(installations.install, other, self.session) for other in (RUNC, COLOCATED)]
            for result in others:
                result.result()
            models.result()
        self._watch = JobWatch()

    @property
    def watch(self) -> JobWatch:
        if self._watch is None:
            raise RuntimeError("the world is not built")
        return self._watch

    def close(self) -> None:
        """Ends every wait; what is on the cluster stays."""
        if self._watch:
            self._watch.close()

    def remove(self) -> None:
        """Jobs go while their operators are there to see it."""
        self._remove_namespaces(*_job_namespaces())
        for installation in (RUNC, COLOCATED):
            installations.uninstall(installation)
        if GVISOR.release in self._before:
            installations.restore(GVISOR, self._before[GVISOR.release])
        self._remove_namespaces(*_own_namespaces())

    def _serve_models(self) -> None:
        keys = ((manifests.KEY_SECRET, self.model_key), (manifests.TOOL_SECRET, manifests.TOOL_TOKEN))
        secrets_ = [manifests.key_secret(place, key, name) for place in _job_namespaces() for name, key in keys]
        rows = "".join((folder / "rows.jsonl").read_text() for folder in (manifests.WORDCHECK, manifests.CAPITALS))
        servers = [*manifests.scripted_policy(rows, bundled.REPLAYED), *manifests.demo_model_server()]
        cluster.apply(*secrets_, *servers, _let_hosts_out())
        cluster.kubectl(
            "wait",
            "pod/scripted",
            "pod/demo-model",
            f"--namespace={manifests.MODELS_NAMESPACE}",
            "--for=condition=Ready",
            f"--timeout={READY_SECONDS}s",
            timeout=READY_SECONDS + 30,
        )

    def _remove_namespaces(self, *names: str) -> None:
        cluster.kubectl("delete", "namespace", *names, "--ignore-not-found", timeout=GONE_SECONDS)


def _own_namespaces() -> list[str]:
    return [*_job_namespaces(), *(i.namespace for i in INSTALLATIONS if i is not GVISOR)]


def _job_namespaces() -> list[str]:
    watched = [name for installation in INSTALLATIONS for name in installation.job_namespaces]
    return [manifests.MODELS_NAMESPACE, *watched]


def _let_hosts_out() -> Object:
    """Policies add up, so that this one alone undoes the operator's: what a cluster without enforcement looks like."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "let-hosts-out", "namespace": OPEN_NETWORK},
        "spec": {
            "podSelector": {"matchLabels": {"evals.nhx.io/role": "gym-host"}},
            "policyTypes": ["Egress"],
            "egress": [{}],
        },
    }
