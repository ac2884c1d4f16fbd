"""etcd, the API server, the controller manager and the scheduler."""

import json

from . import health, kubectl, paths, pki
from .processes import Daemon
from .settings import (
    API_PORT,
    ETCD_PEER_URL,
    ETCD_URL,
    NODE_IP,
    NODE_PORTS,
    SERVICE_CIDR,
)

# The controllers' default of 20 requests a second makes garbage collection and Jobs crawl.
QPS, BURST = 500, 1000


def etcd() -> Daemon:
    argv = (
        str(paths.bin_path("etcd")),
        f"--data-dir={paths.state_dir() / 'etcd'}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        f"--listen-peer-urls={ETCD_PEER_URL}",
        f"--initial-advertise-peer-urls={ETCD_PEER_URL}",
        f"--initial-cluster=default={ETCD_PEER_URL}",
        "--unsafe-no-fsync",  # its data does not outlive its process anyway
        "--log-level=warn",
    )
    return Daemon("etcd", argv, health.ok(f"{ETCD_URL}/health"))


def api_server() -> Daemon:
    argv = (
        str(paths.bin_path("kube-apiserver")),
        f"--etcd-servers={ETCD_URL}",
        f"--advertise-address={NODE_IP}",
        f"--bind-address={NODE_IP}",  # not reachable from outside the machine
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={pki.file('apiserver.crt')}",
        f"--tls-private-key-file={pki.file('apiserver.key')}",
        f"--client-ca-file={pki.file('ca.crt')}",
        f"--service-account-key-file={pki.file('service-accounts.pub')}",
        f"--service-account-signing-key-file={pki.file('service-accounts.key')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--service-node-port-range={NODE_PORTS}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--kubelet-certificate-authority={pki.file('ca.crt')}",
        f"--kubelet-client-certificate={pki.file('apiserver-kubelet.crt')}",
        f"--kubelet-client-key={pki.file('apiserver-kubelet.key')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki.file('ca.crt')}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki.file('front-proxy.crt')}",
        f"--proxy-client-key-file={pki.file('front-proxy.key')}",
    )
    return Daemon("kube-apiserver", argv, _api_is_ready, deadline=120)


def _api_is_ready() -> bool:
    return kubectl.call("get", "--raw=/readyz", seconds=5).returncode == 0


def controller_manager() -> Daemon:
    kubeconfig = pki.kubeconfig("kube-controller-manager")
    argv = (
        str(paths.bin_path("kube-controller-manager")),
        f"--kubeconfig={kubeconfig}",
        f"--service-account-private-key-file={pki.file('service-accounts.key')}",
        f"--root-ca-file={pki.file('ca.crt')}",
        f"--cluster-signing-cert-file={pki.file('ca.crt')}",
        f"--cluster-signing-key-file={pki.file('ca.key')}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--kube-api-qps={QPS}",
        f"--kube-api-burst={BURST}",
    )
    return Daemon("kube-controller-manager", argv, health.ok("https://127.0.0.1:10257/healthz"))


def scheduler() -> Daemon:
    config = paths.etc_dir() / "kube-scheduler.json"
    argv = (
        str(paths.bin_path("kube-scheduler")),
        f"--config={config}",
        "--bind-address=127.0.0.1",
    )
    text = json.dumps(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": pki.kubeconfig("kube-scheduler"), "qps": QPS, "burst": BURST},
            "leaderElection": {"leaderElect": False},
        },
        indent=1,
    )
    return Daemon("kube-scheduler", argv, health.ok("https://127.0.0.1:10259/healthz"), {config: text})
