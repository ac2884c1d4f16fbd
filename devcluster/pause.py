"""The image that every pod's sandbox runs: one static program, packed here without a registry or an engine."""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path

from . import paths, report
from .settings import PAUSE_IMAGE

SOURCE = Path(__file__).with_name("pause.c")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def archive() -> Path:
    key = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return paths.cache_dir() / f"pause-{key}.tar"


def build_missing() -> None:
    if archive().is_file():
        return
    archive().parent.mkdir(parents=True, exist_ok=True)
    with report.step("pause image: compiling"), tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "pause"
        compile_ = ["gcc", "-Os", "-static", "-s", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(SOURCE)]
        done = subprocess.run(compile_, capture_output=True, text=True)
        if done.returncode:
            raise report.DevclusterError(f"{' '.join(compile_)} failed:\n{done.stderr}")
        fresh = archive().with_suffix(".new")
        fresh.write_bytes(pack(program.read_bytes()))
        fresh.replace(archive())


def pack(program: bytes) -> bytes:
    """A docker archive with one layer that holds /pause."""
    layer = _tar({"pause": program}, mode=0o755)
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    return _tar({"manifest.json": json.dumps(manifest).encode(), config_name: config, "layer.tar": layer})


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
