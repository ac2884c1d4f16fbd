"""What runs, since when, which versions, and where to look."""

import subprocess
import time
from collections.abc import Collection
from pathlib import Path

from . import addons, cluster, containerd, control_plane, modules, node, paths, processes, report, settings

# Versions stand in the go.mod files, so that they are written down once.
MAIN_MODULES = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "containerd": ("containerd", "github.com/containerd/containerd/v2"),
    "gvisor": ("gvisor", "gvisor.dev/gvisor"),
    "kube-router": ("services", "github.com/cloudnativelabs/kube-router/v2"),
    "coredns": ("services", "github.com/coredns/coredns"),
    "helm": ("helm", "helm.sh/helm/v4"),
}


def daemons() -> list[processes.Daemon]:
    plane = [
        control_plane.etcd(),
        control_plane.api_server(),
        control_plane.controller_manager(),
        control_plane.scheduler(),
    ]
    rest = [node.kubelet(), node.kube_proxy(), node.kube_router(), node.coredns(), node.volumes()]
    return [*plane, containerd.daemon(), *rest]


def show() -> bool:
    """Whether the cluster is ready."""
    healthy = [_show_daemon(daemon) for daemon in daemons()]
    ready = all(healthy) and addons.node_is_ready()
    report.say("")
    report.say(f"the node is {'Ready' if ready else 'NOT ready'}: {settings.NODE_NAME}, {settings.NODE_IP}")
    report.say(f"pods {settings.POD_CIDR}  services {settings.SERVICE_CIDR}  DNS {settings.DNS_SERVICE_IP}")
    report.say(f"versions   kubernetes {settings.KUBERNETES_VERSION}  {'  '.join(_versions())}")
    report.say(f"kubeconfig {paths.kubeconfig()}")
    report.say(f"logs       {paths.log_dir()}")
    report.say(f"state      {paths.state_dir()} ({_size(paths.state_dir())})")
    report.say(f"cache      {paths.cache_dir()} ({_size(paths.cache_dir())})")
    if (build_cache := modules.go_build_cache()) and build_cache.is_dir():
        report.say(f"Go's own   {build_cache} ({_size(build_cache)}; `go clean -cache` frees it, binaries stay)")
    report.say(f"\n{_next(ready)}")
    return ready


def _show_daemon(daemon: processes.Daemon) -> bool:
    who = processes.identity(daemon.name)
    healthy = bool(who) and who.is_alive() and daemon.is_healthy()
    state = "not running"
    if who:
        since = time.strftime("%F %T", time.localtime(processes.recorded(daemon.name)["since"]))
        word = "healthy" if healthy else "NO ANSWER" if who.is_alive() else "GONE"
        state = f"{word:10} pid {who.pid:<8} started {since}"
    report.say(f"{daemon.name:24} {state:48} {daemon.log}")
    return healthy


def _next(ready: bool) -> str:
    names = [daemon.name for daemon in daemons()]
    known = [name for name in names if processes.recorded(name)]
    return next_step(
        ready,
        busy=cluster.is_busy(),
        gone=[name for name in known if not processes.is_alive(name)],
        started=known,
        keeps_objects=cluster.can_continue(),
    )


def next_step(ready: bool, *, busy: bool, gone: Collection[str], started: Collection[str], keeps_objects: bool) -> str:
    """What a person does now. `started` are the daemons that nobody stopped, `gone` those of them that ended."""
    if busy:
        return "Another devcluster command is at work, so this changes: look again when it has ended."
    if ready:
        return 'It runs. Use it: eval "$(python3 -m devcluster env)"'
    if not started:
        return "It is stopped. `make cluster` starts it."
    what = f"These ended by themselves or were killed: {', '.join(gone)}." if gone else "Not all of it answers."
    repair = (
        "`make cluster` repairs it; API objects, volumes and pods stay."
        if keeps_objects
        else "`make cluster` starts an empty cluster: API objects and volumes went with etcd, images stay."
    )
    return f"{what}\n{repair}"


def _versions() -> list[str]:
    return [
        f"{name} {version_in((modules.SOURCES / folder / 'go.mod').read_text(), path)}"
        for name, (folder, path) in MAIN_MODULES.items()
    ]


def version_in(go_mod: str, path: str) -> str:
    for line in go_mod.splitlines():
        fields = line.removeprefix("require").split()
        if fields[:1] == [path] and len(fields) > 1:
            return fields[1]
    return "?"


def _size(folder: Path) -> str:
    done = subprocess.run(["du", "-sh", "--one-file-system", str(folder)], capture_output=True, text=True)
    return done.stdout.split()[0] if done.stdout else "absent"


def environment() -> list[str]:
    """Lines for `eval`: they change the shell that asks for them and nothing else."""
    lines = [f'export PATH="{paths.tools_dir()}:$PATH"', f'export KUBECONFIG="{paths.kubeconfig()}"']
    # A proxy has no way to these addresses.
    lines += [f'export {name}="{settings.WHOLE_RANGE}${{{name}:+,${name}}}"' for name in ("NO_PROXY", "no_proxy")]
    return lines
