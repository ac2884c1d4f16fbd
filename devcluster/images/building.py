"""Build images from images/Containerfile, stage by stage: what did not change is not looked at again."""

import contextlib
import fcntl
from pathlib import Path

from .. import packages, paths, report
from ..settings import IMAGE_TAG, LOCAL_REGISTRY
from . import containerfile
from .base import BASE_IMAGE, ensure_base_image
from .buildah import Buildah

SOURCE = Path(__file__).resolve().parents[2]
CONTAINERFILE = SOURCE / "images/Containerfile"
LISTS = {"gym-environment": "servers", "gym-agents": "agents"}
"""What is bundled, by the stage that lists it: `bundled-servers.json` there, `bundled_servers.json` in the package."""
NAMES = ("nhx-gym-host", "nhx-gym-tasks", "nhx-tasks", "nhx-gym-operator", "demo-model")
# Seconds on two idle cores, for those stages that take long.
ESTIMATES = {
    "runtime": 15,
    "tools": 15,
    "gym-packages": 90,
    "gym-environment": 40,
    "nhx-environment": 15,
    "operator-environment": 15,
    "demo-model-environment": 10,
    "gym": 15,
}
BUILD_DEADLINE_SECONDS = 30 * 60

# A build reaches package registries through what this machine is set up with. Both files cover ones that the base image
# has, and neither stays in a layer.
_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_APT_CONFIGURATION = "/etc/apt/apt.conf.d/docker-no-languages"
_APT_OPTIONS = """\
Acquire::Languages "none";
// a mirror that is a snapshot outlives the validity of its release file
Acquire::Check-Valid-Until "false";
Acquire::Check-Date "false";
"""


def reference(name: str, tag: str = IMAGE_TAG) -> str:
    return f"{LOCAL_REGISTRY}/{name}:{tag}"


def storage() -> Buildah:
    return Buildah(paths.cache_dir() / "containers", paths.run_dir() / "containers")


def build(names: list[str], *, source: Path = SOURCE, beside: str | None = None, tag: str = IMAGE_TAG) -> None:
    """`source` is the tree to build from. `beside` names a further Containerfile in it, whose stages may stand on those
    of the project's: images of tests, which are in no list and which `push` therefore never ships."""
    with _alone():
        builder = Builder(source, beside)
        for name in names:
            image = builder.build_stage(name)
            builder.buildah.run("tag", image, reference(name, tag))
            report.say(f"image {name} is up to date")
        if source == SOURCE:
            builder.remove_replaced()  # what another tree needs is no successor of what this one does


def update_lists() -> None:
    """The lists come from stages below the images, since the images refuse to be built with an outdated copy."""
    for stage, name in LISTS.items():
        with _alone():
            builder = Builder()
            container = builder.buildah.run("from", "--pull=never", builder.build_stage(stage))
        copy = SOURCE / f"operator/nhx_gym_operator/api/bundled_{name}.json"
        try:
            built = Path(builder.buildah.run("mount", container)) / f"opt/bundle/bundled-{name}.json"
            copy.write_text(built.read_text())
        finally:
            builder.buildah.run("rm", container)
        report.say(f"wrote {copy.relative_to(SOURCE)}")


@contextlib.contextmanager
def _alone():
    """A second build waits for the first: it would only make the same stages once more."""
    paths.cache_dir().mkdir(parents=True, exist_ok=True)
    with (paths.cache_dir() / "images.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.say("images: waiting for another build to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Builder:
    def __init__(self, source: Path = SOURCE, beside: str | None = None):
        packages.install_missing()
        self._source = source
        self.buildah = storage()
        self._work = paths.cache_dir() / "images"
        self._work.mkdir(parents=True, exist_ok=True)
        ensure_base_image(self.buildah, self._work)
        self._base = self.buildah.image_id(BASE_IMAGE) or ""
        files = [str(CONTAINERFILE.relative_to(SOURCE)), *([beside] if beside else [])]
        self._stages = containerfile.parse("\n".join((source / file).read_text() for file in files))
        self._present = self.buildah.references()
        self._replaced: list[str] = []

    def build_stage(self, name: str) -> str:
        """The stage's image, whose tag is the stage's fingerprint."""
        image = f"localhost/{name}:{containerfile.fingerprint(self._stages, name, self._source, self._base)[:20]}"
        if image not in self._present:
            below = {needed: self.build_stage(needed) for needed in containerfile.below(self._stages, name)}
            with report.step(f"image stage {name}: building, about {ESTIMATES.get(name, 5)} s"):
                self._build(name, below, image)
            self._note_replaced(image)
        return image

    def remove_replaced(self) -> None:
        """Earlier builds of the stages built here. One that a container still uses stays until the next build."""
        if self._replaced:
            with contextlib.suppress(report.DevclusterError):
                self.buildah.run("rmi", *self._replaced)
            with contextlib.suppress(report.DevclusterError):
                self.buildah.run("rmi", "--prune")

    def _build(self, name: str, below: dict[str, str], image: str) -> None:
        own = self._work / f"Containerfile.{name}"
        own.write_text(self._stages[name].text(below))
        options = self._work / "apt.conf"
        options.write_text(_APT_OPTIONS)
        how = ["--pull=never", "--layers=false", "--isolation", "chroot", "--network", "host"]
        mounts = ["--volume", f"{options}:{_APT_CONFIGURATION}:ro", "--volume", f"{_CA_BUNDLE}:{_CA_BUNDLE}:ro"]
        what = ["--file", str(own), "--tag", image, str(self._source)]
        self.buildah.run_long(self._work / f"build-{name}.log", BUILD_DEADLINE_SECONDS, "build", *how, *mounts, *what)

    def _note_replaced(self, image: str) -> None:
        stage = image.rpartition(":")[0]
        self._replaced += [other for other in self._present if other.rpartition(":")[0] == stage]
        self._present.append(image)
