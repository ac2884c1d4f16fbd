"""containerd with runc and gVisor, and what it needs to know about pod networking."""

import json
import shutil
import subprocess
from pathlib import Path

from . import commands, packages, paths, pause
from .processes import Daemon
from .settings import PAUSE_IMAGE, POD_BRIDGE, POD_CIDR, POD_GATEWAY, POD_NETWORK


def root() -> Path:
    return paths.state_dir() / "containerd"


def state() -> Path:
    """Mounts of containers and network namespaces are all below this folder."""
    return paths.run_dir() / "containerd"


def leases() -> Path:
    return paths.run_dir() / "cni"


def runsc_root() -> Path:
    return paths.run_dir() / "runsc"


def daemon() -> Daemon:
    etc = paths.etc_dir()
    files = {
        etc / "containerd.toml": render_config(),
        etc / "runsc.toml": render_runsc(),
        etc / "cni" / "10-pods.conflist": render_network(),
    }
    argv = (str(paths.bin_path("containerd")), f"--config={etc / 'containerd.toml'}")
    path = (paths.bin_path("containerd-shim-runc-v2").parent, paths.bin_path("containerd-shim-runsc-v1").parent)
    return Daemon("containerd", argv, answers, files, path)


def render_config() -> str:
    runc = shutil.which("runc", path=packages.SYSTEM_PATH) or "runc"
    return f"""\
version = 3
root = "{root()}"
state = "{state()}"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "{paths.containerd_socket()}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{paths.state_dir() / "opt"}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  # Without CAP_SYS_RESOURCE nobody may lower a process's OOM score.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  enable_unprivileged_ports = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{packages.CNI_PLUGINS}"]
    conf_dir = "{paths.etc_dir() / "cni"}"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runsc]
      runtime_type = "io.containerd.runsc.v1"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runsc.options]
        TypeUrl = "io.containerd.runsc.v1.options"
        ConfigPath = "{paths.etc_dir() / "runsc.toml"}"
"""


def render_runsc() -> str:
    return f"""\
binary_name = "{paths.bin_path("runsc")}"
root = "{runsc_root()}"
[runsc_config]
"""


def render_network() -> str:
    """A bridge without masquerade: an address of this range means nothing outside, and no packet should try."""
    ranges = [[{"subnet": POD_CIDR, "gateway": POD_GATEWAY}]]
    bridge = {
        "type": "bridge",
        "bridge": POD_BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": str(leases())},
    }
    return json.dumps({"cniVersion": "1.0.0", "name": POD_NETWORK, "plugins": [bridge]}, indent=1)


def ctr_command(*arguments: str) -> list[str]:
    """ctr on what the kubelet sees: its namespace of this containerd."""
    address = [f"--address={paths.containerd_socket()}", f"--namespace={paths.RUNTIME_NAMESPACE}"]
    return [str(paths.bin_path("ctr")), *address, *arguments]


def ctr(*arguments: str, seconds: float = 60) -> subprocess.CompletedProcess:
    return commands.answer(ctr_command("--timeout=5s", *arguments), seconds)


def answers() -> bool:
    # `plugins` lists what failed to load too; the CRI plugin is the one that matters.
    done = ctr("plugins", "ls", "id==cri")
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("io.containerd.grpc.v1")]
    return done.returncode == 0 and any(line[-1] == "ok" for line in lines)


def names(*arguments: str) -> list[str]:
    return ctr(*arguments).stdout.split()


def remove_containers() -> bool:
    """Whether there were any: the CRI plugin, which has read them, has to start again then."""
    containers = names("containers", "ls", "--quiet")
    sandboxes = [line.split()[0] for line in ctr("sandboxes", "ls").stdout.splitlines()[1:]]
    rows = [line.split() for line in ctr("snapshots", "ls").stdout.splitlines()[1:]]
    if containers:
        ctr("containers", "rm", *containers)
    for sandbox in sandboxes:
        ctr("sandboxes", "rm", "--force", sandbox)
    # Images are made of committed snapshots; every other one belongs to a container or to an image mounted as a volume.
    for row in rows:
        if row[-1] != "Committed":
            ctr("snapshots", "rm", row[0])
    return bool(containers or sandboxes)


def import_pause_image() -> None:
    if PAUSE_IMAGE not in names("images", "ls", "--quiet"):
        ctr("images", "import", str(pause.archive()))
