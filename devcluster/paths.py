"""Where devcluster keeps things: nothing it writes lies inside the source tree."""

import os
from pathlib import Path

RUNTIME_NAMESPACE = "k8s.io"  # the containerd namespace in which the kubelet looks for images


def cache_dir() -> Path:
    """Built binaries and images: safe to keep between machines, safe to delete."""
    own = os.environ.get("NHX_DEVCLUSTER_CACHE")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "nhx-devcluster"


def state_dir() -> Path:
    """etcd's data, containerd's root (the imported images), certificates, logs, volumes."""
    return Path(os.environ.get("NHX_DEVCLUSTER_STATE") or "/var/lib/nhx-devcluster")


def run_dir() -> Path:
    """Sockets, process records and mounts: worthless after a reboot."""
    return Path("/run/nhx-devcluster")


def log_dir() -> Path:
    return state_dir() / "log"


def etc_dir() -> Path:
    return state_dir() / "etc"


def pki_dir() -> Path:
    return state_dir() / "pki"


def kubelet_dir() -> Path:
    return state_dir() / "kubelet"


def volumes_dir() -> Path:
    return state_dir() / "volumes"


def tools_dir() -> Path:
    """Links to the commands a person or a test calls; `env` puts it on PATH."""
    return cache_dir() / "tools"


def kubeconfig() -> Path:
    return pki_dir() / "admin.kubeconfig"


def containerd_socket() -> Path:
    return run_dir() / "containerd.sock"


def bin_path(name: str) -> Path:
    """The cached binary of that name, whether it is built yet or not."""
    from . import modules  # modules itself needs this file

    return modules.binary(name)
