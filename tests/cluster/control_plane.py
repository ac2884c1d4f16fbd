"""A real API server of the tests' own: etcd, kube-apiserver and the controllers that delete and count.

It has no node, so that pods stay as they were asked for and a test can say for itself what the kubelet
would report. The programs are those that devcluster builds; ports are free ones, and everything goes
with the test session.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from devcluster import modules

TOKEN = "the-tests-own-administrator"
OPERATOR = "operator"
"""User name of the operator under test. It has no rights but those that `rights` gives it."""
OPERATOR_TOKEN = "the-operator-under-test"
USERS = ("alice", "bob")
"""They have no rights but those that a test gives them."""
START_SECONDS = 120.0
"""On two busy cores the API server alone takes ten."""
CONTROLLERS = ",".join(
    (
        "garbage-collector-controller",
        "namespace-controller",
        "resourcequota-controller",
        "persistentvolumeclaim-protection-controller",
    )
)


def operators_kubeconfig(kubeconfig: Path) -> Path:
    """Beside an administrator's."""
    return kubeconfig.with_name("operator.kubeconfig")


def user_token(name: str) -> str:
    return f"the-user-{name}"


def kubeconfig_of(kubeconfig: Path, name: str, token: str) -> Path:
    """One like it, for somebody else."""
    content = yaml.safe_load(kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    path = kubeconfig.with_name(f"{name}.kubeconfig")
    path.write_text(yaml.safe_dump(content))
    return path


def audit_log(kubeconfig: Path) -> Path:
    """A line of JSON for each of the operator's calls, with what the authorizer said."""
    return kubeconfig.with_name("audit.jsonl")


_AUDITED = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "users": [OPERATOR]}, {"level": "None"}],
}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [entry.getsockname()[1] for entry in sockets]
    for entry in sockets:
        entry.close()
    return ports


@contextmanager
def control_plane(folder: Path, *settings: str) -> Iterator[Path]:
    """Starts the programs in `folder`, the API server with these `settings` besides, and gives the path of an
    administrator's kubeconfig."""
    programs: list[subprocess.Popen[bytes]] = []
    client, peer, api = _free_ports(3)
    kubeconfig = _write_credentials(folder, api)

    def start(name: str, *arguments: str) -> None:
        program = modules.binary(name)
        if not program.is_file():
            raise FileNotFoundError(f"{program} is not built; run `make control-plane` first")
        log = (folder / f"{name}.log").open("wb")
        programs.append(subprocess.Popen([program, *arguments], stdout=log, stderr=log, cwd=folder))
        (folder / f"{name}.pid").write_text(str(programs[-1].pid))

    try:
        start(
            "etcd",
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
        )
        start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{client}",
            "--bind-address=127.0.0.1",
            f"--secure-port={api}",
            f"--cert-dir={folder / 'certificates'}",
            f"--service-account-key-file={folder / 'accounts.pub'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            f"--audit-policy-file={folder / 'audit-policy.yaml'}",
            f"--audit-log-path={audit_log(kubeconfig)}",
            "--service-cluster-ip-range=198.18.48.0/24",
            # Nobody makes the default accounts here.
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
            *settings,
        )
        _wait_until_ready(f"https://127.0.0.1:{api}/readyz", programs, folder)
        start(
            "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            f"--controllers={CONTROLLERS}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )
        yield kubeconfig
    finally:
        for program in reversed(programs):
            program.terminate()
        for program in programs:
            try:
                program.wait(10)
            except subprocess.TimeoutExpired:
                program.kill()


@contextmanager
def node_controllers(kubeconfig: Path) -> Iterator[None]:
    """Beside the others for as long as a test needs them: what becomes of pods whose node is silent, or gone. A node is
    silent after some seconds here, and not after the usual 50."""
    arguments = (
        f"--kubeconfig={kubeconfig}",
        "--controllers=node-lifecycle-controller,taint-eviction-controller,pod-garbage-collector-controller",
        "--leader-elect=false",
        "--secure-port=0",
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=5s",
        "--node-startup-grace-period=5s",
    )
    with (kubeconfig.parent / "node-controllers.log").open("wb") as log:
        program = subprocess.Popen(
            [modules.binary("kube-controller-manager"), *arguments], stdout=log, stderr=log, cwd=kubeconfig.parent
        )
    try:
        yield
    finally:
        program.terminate()
        program.wait(30)


def _write_credentials(folder: Path, port: int) -> Path:
    key, public = folder / "accounts.key", folder / "accounts.pub"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
    users = f"{TOKEN},admin,admin,system:masters\n{OPERATOR_TOKEN},{OPERATOR},{OPERATOR}\n"
    users += "".join(f"{user_token(name)},{name},{name}\n" for name in USERS)
    (folder / "tokens.csv").write_text(users)
    (folder / "audit-policy.yaml").write_text(yaml.safe_dump(_AUDITED))
    kubeconfig = folder / "kubeconfig"
    for path, token in ((kubeconfig, TOKEN), (operators_kubeconfig(kubeconfig), OPERATOR_TOKEN)):
        path.write_text(_kubeconfig(port, token))
    return kubeconfig


def _kubeconfig(port: int, token: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True},
                }
            ],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "user"}}],
            "current-context": "tests",
        }
    )


def _wait_until_ready(url: str, programs: list[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    unchecked = ssl._create_unverified_context()
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=unchecked)
    )
    while time.monotonic() < deadline:
        ended = [str(program.args[0]) for program in programs if program.poll() is not None]
        if ended:
            raise RuntimeError(f"{', '.join(ended)} ended at once; see the logs in {folder}")
        try:
            with opener.open(request, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise TimeoutError(f"the API server was not ready within {START_SECONDS:g} s; see the logs in {folder}")
