"""Push built images to a registry, for a cluster that pulls."""

from .. import report
from .building import reference, storage


def push(names: list[str], registry: str, tag: str) -> None:
    buildah = storage()
    for name in names:
        target = f"{registry.rstrip('/')}/{name}:{tag}"
        with report.step(f"image {name}: pushing it as {target}"):
            buildah.run("push", "--quiet", reference(name), f"docker://{target}")
