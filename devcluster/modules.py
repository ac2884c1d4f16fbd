"""The programs of the cluster, built from the Go modules below modules/.

A build is found again by the hash of all that goes into it, so an interrupted `up` continues where it stopped and a
changed version is built anew. Each folder has a go.mod of its own because their dependencies disagree on versions.
"""

import dataclasses
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from . import commands, paths, report
from .settings import KUBERNETES_VERSION

SOURCES = Path(__file__).parent / "modules"
# Static binaries: gVisor executes itself again inside an empty root folder, where no shared library is.
BUILD_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GOOS": "", "GOARCH": "", "GO111MODULE": "on"}
# The compiler collects garbage when it has to, not all the time: an eighth of a cold build, for a gigabyte of memory.
BUILD_ENV |= {"GOGC": "off", "GOMEMLIMIT": "1500MiB"}
# The same flags for every module: they then share what is compiled. Debugging tables, which stripping throws away
# again, are a sixth of the work.
BUILD_FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-gcflags=all=-dwarf=false")
STRIP = "-s -w"
BUILD_DEADLINE_SECONDS = 60 * 60


@dataclasses.dataclass(frozen=True)
class Module:
    name: str
    estimate: str  # measured on two cores, nothing in Go's build cache, images being built beside the first three
    packages: tuple[str, ...]
    ldflags: str = STRIP
    tags: str = ""
    rename: tuple[tuple[str, str], ...] = ()
    on_request: bool = False  # the cluster does without it

    @property
    def folder(self) -> Path:
        return SOURCES / self.name

    @property
    def binaries(self) -> tuple[str, ...]:
        names = dict(self.rename)
        built = [package.rsplit("/", 1)[1] for package in self.packages]
        return tuple(names.get(name, name) for name in built)

    def arguments(self) -> list[str]:
        tags = ["-tags", self.tags] if self.tags else []
        return [*BUILD_FLAGS, "-ldflags", self.ldflags, *tags]

    def key(self) -> str:
        return build_key(self.folder, [*self.arguments(), *self.packages, *map(str, self.rename)])

    def output(self) -> Path:
        return paths.cache_dir() / "bin" / f"{self.name}-{self.key()}"

    def is_built(self) -> bool:
        return all((self.output() / name).is_file() for name in self.binaries)


def _commands(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names.split())


MODULES = (
    Module("etcd", "2 min", ("go.etcd.io/etcd/server/v3",), rename=(("server", "etcd"), ("v3", "etcd"))),
    Module(
        "containerd",
        "3 min",
        _commands("github.com/containerd/containerd/v2/cmd/", "containerd containerd-shim-runc-v2 ctr"),
        tags="no_btrfs no_devmapper no_zfs",
    ),
    Module(
        "kubernetes",
        "11 min",
        _commands("k8s.io/kubernetes/cmd/", "kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy"),
        # Without it the server calls itself v0.0.0-master, which clients cannot compare.
        ldflags=f"{STRIP} -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
    ),
    Module(
        "gvisor",
        "2 min",
        ("gvisor.dev/gvisor/runsc", "gvisor.dev/gvisor/shim"),
        rename=(("shim", "containerd-shim-runsc-v1"),),  # containerd derives this name from the runtime's type
    ),
    Module("helm", "1 min", ("helm.sh/helm/v4/cmd/helm",)),
    # For the chart's tests: the chart is for both of Helm's majors.
    Module("helm3", "2 min", ("helm.sh/helm/v3/cmd/helm",), rename=(("helm", "helm3"),), on_request=True),
    # One module, so that Kubernetes' client is compiled once.
    Module("services", "30 s", ("./coredns", "./kube-router", "./volumes")),
    # What the tests keep files in: a real S3 server over a folder.
    Module("s3", "2 min", ("github.com/versity/versitygw/cmd/versitygw",), on_request=True),
    # Static checks of what the chart and the operator make.
    Module("kube-score", "1 min", ("github.com/zegl/kube-score/cmd/kube-score",), on_request=True),
)
OWNER = {name: module for module in MODULES for name in module.binaries}


def build_key(folder: Path, flags: list[str]) -> str:
    """Changes with any file of the folder and with the flags, never with the folder's place."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    digest.update("\0".join(flags).encode())
    return digest.hexdigest()[:12]


def binary(name: str) -> Path:
    return OWNER[name].output() / name


def build_missing(names: list[str] | None = None) -> None:
    """Those named, or all that the cluster is made of."""
    wanted = [module for module in MODULES if (not module.on_request if names is None else module.name in names)]
    missing = [module for module in wanted if not module.is_built()]
    if missing and not shutil.which("go"):
        raise report.DevclusterError(
            "cannot build the cluster's programs: no `go` on PATH. Install Go 1.26 or newer (1.21 is enough if it may "
            "download toolchains) and run again."
        )
    for module in missing:
        build(module)


def build(module: Module) -> None:
    names = module.binaries
    title = f"{module.name}: building {', '.join(names)}, about {module.estimate} on 2 cores"
    unfinished = module.output().with_name(module.output().name + ".unfinished")
    for abandoned in unfinished.parent.glob(f"{module.name}-*.unfinished"):
        shutil.rmtree(abandoned)
    unfinished.mkdir(parents=True)
    log = paths.cache_dir() / "log" / f"build-{module.name}.log"
    with report.step(title):
        commands.run_logged(
            ["go", "build", *module.arguments(), "-o", f"{unfinished}/", *module.packages],
            log,
            f"building {module.name} in {module.folder}",
            BUILD_DEADLINE_SECONDS,
            cwd=module.folder,
            env={**os.environ, **BUILD_ENV},
        )
        for built, wanted in module.rename:
            if (unfinished / built).exists():
                (unfinished / built).rename(unfinished / wanted)
        absent = [name for name in names if not (unfinished / name).is_file()]
        if absent:
            raise report.failure(f"building {module.name} left no {', '.join(absent)} in {unfinished}", log)
        shutil.rmtree(module.output(), ignore_errors=True)
        unfinished.rename(module.output())


def go_build_cache() -> Path | None:
    try:
        return Path(subprocess.check_output(["go", "env", "GOCACHE"], text=True).strip())
    except (OSError, subprocess.CalledProcessError):
        return None
