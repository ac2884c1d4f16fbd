"""What the API server's schema cannot see: whether the images hold what a job names."""

from __future__ import annotations

from ...api import bundled
from ...api.conditions import AcceptedReason
from ...api.job import JobSpec
from ...workloads.options import Images
from ..observation import Refused


def refuse(spec: JobSpec, images: Images) -> Refused | None:
    """Refuses a resources server that the images cannot run. An environment brings its own."""
    if not images.check_bundled or spec.target.gym.environment is not None:
        return None
    server = spec.target.gym.resources_server
    missing = bundled.missing_dependencies(server)
    if missing is None:
        return Refused(
            AcceptedReason.UNKNOWN_BUNDLED_SERVER,
            f"spec.target.gym.resourcesServer {server!r} is not among the servers in the images and no "
            f"environment supplies it; those that run are {', '.join(bundled.known_servers())}",
        )
    if missing:
        return Refused(
            AcceptedReason.BUNDLED_SERVER_LACKS_DEPENDENCIES,
            f"spec.target.gym.resourcesServer {server!r} needs packages that the image lacks: "
            f"{', '.join(missing)}; supply the server with them as an environment FileSet, or have an "
            f"administrator set images.gymHost to an image that holds them and images.checkBundled to false",
        )
    return None
