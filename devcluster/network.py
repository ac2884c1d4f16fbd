"""The node's and the pods' interfaces, and the routes that keep every packet of the cluster inside this machine."""

import json
import subprocess
from pathlib import Path

from . import firewall, paths, processes, report
from .settings import NODE_BRIDGE, NODE_IP, POD_BRIDGE, POD_CIDR, ROUTING_TABLE, SERVICE_CIDR, WHOLE_RANGE

LAST_RESORT = ["unreachable", WHOLE_RANGE, "metric", "4294967295"]
BRIDGES = {NODE_BRIDGE: "0a:58:c6:12:00:01", POD_BRIDGE: "0a:58:c6:12:40:01"}  # fixed: else they change with the ports
SYSCTL = Path("/proc/sys/net")
SETTINGS = {
    "ipv4/ip_forward": "1",
    # Without these, packets between two pods of the bridge would pass by the firewall.
    "bridge/bridge-nf-call-iptables": "1",
    "bridge/bridge-nf-call-ip6tables": "1",
}


def _ip(*arguments: str, may_fail: bool = False) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise report.DevclusterError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout if done.returncode == 0 else ""


def _before() -> Path:
    return paths.run_dir() / "sysctl-before.json"


def ensure() -> None:
    _set_sysctls()
    for bridge, hardware in BRIDGES.items():
        # An empty bridge stands in for the `dummy` device, which not every kernel has.
        if not Path("/sys/class/net", bridge).exists():
            _ip("link", "add", bridge, "address", hardware, "type", "bridge")
        (SYSCTL / "ipv6/conf" / bridge / "disable_ipv6").write_text("1")
        _ip("link", "set", bridge, "up")
    _ip("address", "replace", f"{NODE_IP}/32", "dev", NODE_BRIDGE)
    _ip("route", "replace", SERVICE_CIDR, "dev", NODE_BRIDGE)
    _ip("route", "replace", *LAST_RESORT)
    _ip("route", "replace", "throw", WHOLE_RANGE, "table", ROUTING_TABLE)
    _ip("route", "replace", "unreachable", "default", "table", ROUTING_TABLE)
    if not _ip("rule", "show", "pref", ROUTING_TABLE):
        # What a pod sends to an address outside the range is refused here.
        _ip("rule", "add", "pref", ROUTING_TABLE, "from", POD_CIDR, "table", ROUTING_TABLE)
    firewall.drop_ipv6_of_pods()


def _set_sysctls() -> None:
    if not (SYSCTL / "bridge").exists():
        subprocess.run(["modprobe", "br_netfilter"], capture_output=True)
    if not (SYSCTL / "bridge").exists():
        raise report.DevclusterError(
            "the kernel has no br_netfilter (/proc/sys/net/bridge is missing), so NetworkPolicy could not be enforced "
            "between pods: load the module"
        )
    found = {name: (SYSCTL / name).read_text().strip() for name in SETTINGS}
    if not _before().exists():
        processes.write(_before(), json.dumps(found))
    for name, value in SETTINGS.items():
        if found[name] != value:
            (SYSCTL / name).write_text(value)


def remove_pods() -> None:
    """The ends of pods' cables: those whose namespace has not gone yet."""
    for port in Path("/sys/class/net", POD_BRIDGE, "brif").glob("*"):
        _ip("link", "delete", port.name, may_fail=True)


def remove() -> None:
    remove_pods()
    firewall.remove()
    while _ip("rule", "show", "pref", ROUTING_TABLE):
        _ip("rule", "delete", "pref", ROUTING_TABLE)
    _ip("route", "flush", "table", ROUTING_TABLE, may_fail=True)
    for bridge in BRIDGES:
        _ip("link", "delete", bridge, may_fail=True)
    _ip("route", "delete", *LAST_RESORT, may_fail=True)
    if _before().exists():
        for name, value in json.loads(_before().read_text()).items():
            (SYSCTL / name).write_text(value)
        _before().unlink()
