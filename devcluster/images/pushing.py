"""Push built images to a registry, for a cluster that pulls."""

from .. import paths, report
from .building import reference, storage

PUSH_DEADLINE_SECONDS = 60 * 60


def push(names: list[str], registry: str, tag: str) -> None:
    """Raises DevclusterError with buildah's last words."""
    buildah = storage()
    for name in names:
        target = f"{registry.rstrip('/')}/{name}:{tag}"
        log = paths.cache_dir() / "images" / f"push-{name}.log"
        try:
            with report.step(f"image {name}: pushing it as {target}"):
                buildah.run_long(log, PUSH_DEADLINE_SECONDS, "push", reference(name), f"docker://{target}")
        except report.DevclusterError as error:
            raise report.DevclusterError(
                f"{error}\nA registry that asks who you are: `buildah login {target.partition('/')[0]}`. "
                "One without TLS: name it as insecure in /etc/containers/registries.conf."
            ) from None
