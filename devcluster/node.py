"""kubelet, kube-proxy, policy controller, cluster DNS, volume provisioner: all plain processes of this machine."""

import json

from . import firewall, health, paths, pki
from .processes import Daemon
from .settings import (
    CGROUP,
    CLUSTER_DOMAIN,
    DNS_PORT,
    DNS_READY_PORT,
    DNS_SERVICE_IP,
    NODE_IP,
    NODE_NAME,
    NODE_PORTS,
    POD_CIDR,
    PROVISIONER,
    SERVICE_CIDR,
    WHOLE_RANGE,
)


def kubelet() -> Daemon:
    config = paths.etc_dir() / "kubelet.json"
    argv = (
        str(paths.bin_path("kubelet")),
        f"--config={config}",
        f"--kubeconfig={pki.kubeconfig('kubelet')}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={NODE_IP}",
        f"--root-dir={paths.kubelet_dir()}",
        f"--cert-dir={paths.kubelet_dir() / 'pki'}",
    )
    return Daemon("kubelet", argv, health.ok("http://127.0.0.1:10248/healthz"), {config: render_kubelet()})


def render_kubelet() -> str:
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_IP,
            "healthzBindAddress": "127.0.0.1",
            "authentication": {
                "x509": {"clientCAFile": str(pki.file("ca.crt"))},
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki.file("kubelet.crt")),
            "tlsPrivateKeyFile": str(pki.file("kubelet.key")),
            "containerRuntimeEndpoint": f"unix://{paths.containerd_socket()}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}",
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "podLogsDir": str(paths.log_dir() / "pods"),
            "clusterDomain": CLUSTER_DOMAIN,
            "clusterDNS": [DNS_SERVICE_IP],
            # The machine's own resolver cannot be reached from a pod, and its search domains are nobody's business.
            "resolvConf": "",
            "maxPods": 250,
            "podPidsLimit": 1024,
            "serializeImagePulls": False,
            # An image that a pod once pulled from a registry would else have to be pulled again under every other name,
            # also where it was loaded into the cluster under that name.
            "imagePullCredentialsVerificationPolicy": "NeverVerify",
            # A developer's disk is rather full, and an evicted pod or image is the last thing that helps.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "200Mi", "imagefs.available": "200Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        },
        indent=1,
    )


def kube_proxy() -> Daemon:
    argv = (
        str(paths.bin_path("kube-proxy")),
        f"--kubeconfig={pki.kubeconfig('kube-proxy')}",
        f"--hostname-override={NODE_NAME}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={POD_CIDR}",
        f"--nodeport-addresses={WHOLE_RANGE}",
        "--iptables-localhost-nodeports=false",
        "--conntrack-max-per-core=0",  # these sysctls may be read-only
        "--healthz-bind-address=127.0.0.1:10256",
        "--metrics-bind-address=127.0.0.1:10249",
    )
    return Daemon("kube-proxy", argv, health.ok("http://127.0.0.1:10256/livez"))


def kube_router() -> Daemon:
    """Its policy controller, which is all that modules/services/kube-router has of it."""
    argv = (
        str(paths.bin_path("kube-router")),
        f"--kubeconfig={pki.kubeconfig('kube-router')}",
        f"--hostname-override={NODE_NAME}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--service-node-port-range={NODE_PORTS}",
        "--iptables-sync-period=1m",
    )
    return Daemon("kube-router", argv, firewall.filters_pods)


def coredns() -> Daemon:
    corefile = paths.etc_dir() / "Corefile"
    argv = (str(paths.bin_path("coredns")), "-conf", str(corefile))
    return Daemon("coredns", argv, health.ok(f"http://127.0.0.1:{DNS_READY_PORT}/ready"), {corefile: render_corefile()})


def render_corefile() -> str:
    """Knows the cluster's names and denies all others: no query leaves the machine."""
    return f"""\
.:{DNS_PORT} {{
  bind {NODE_IP}
  errors
  ready 127.0.0.1:{DNS_READY_PORT}
  kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
    kubeconfig {pki.kubeconfig("coredns")}
    ttl 5
  }}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""


def volumes() -> Daemon:
    argv = (
        str(paths.bin_path("volumes")),
        f"-kubeconfig={pki.kubeconfig('volumes')}",
        f"-root={paths.volumes_dir()}",
        f"-node={NODE_NAME}",
        f"-provisioner={PROVISIONER}",
    )
    return Daemon("volumes", argv, lambda: True)
