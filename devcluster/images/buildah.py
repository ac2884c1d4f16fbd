"""buildah with a storage of its own: what a user keeps in theirs is neither seen nor touched."""

import json
import subprocess
from pathlib import Path

from ..commands import run_logged
from ..report import DevclusterError


class Buildah:
    def __init__(self, root: Path, runroot: Path):
        self.root = root
        # overlay is a must: the vfs driver copies the whole image for each layer.
        self._command = ["buildah", "--root", str(root), "--runroot", str(runroot), "--storage-driver", "overlay"]

    def run(self, *arguments: str) -> str:
        result = subprocess.run([*self._command, *arguments], capture_output=True, text=True)
        if result.returncode:
            what = f"buildah {' '.join(arguments)} failed with exit code {result.returncode}"
            raise DevclusterError(f"{what}\n{result.stderr.strip()}")
        return result.stdout.strip()

    def run_long(self, log: Path, seconds: float, *arguments: str) -> None:
        run_logged([*self._command, *arguments], log, f"buildah {arguments[0]}", seconds)

    def inspect(self, image: str) -> dict | None:
        result = subprocess.run([*self._command, "inspect", "--type", "image", image], capture_output=True, text=True)
        return json.loads(result.stdout) if result.returncode == 0 else None

    def references(self) -> list[str]:
        """NAME:TAG of all images that have one."""
        return [name for image in json.loads(self.run("images", "--json") or "[]") for name in image.get("names") or []]

    def image_id(self, image: str) -> str | None:
        inspected = self.inspect(image)
        return inspected["FromImageID"] if inspected else None
