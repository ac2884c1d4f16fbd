"""Files of this machine as objects that a job can name: rows, and an environment of one's own."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from ..api.constants import API_VERSION, FILESET_KIND
from ..api.fileset import ConfigMapSource, Purpose
from ..api.rows import DatasetError, checked_row, read_lines
from ..client.creation import CONFIG_MAP_BYTES, config_map
from ..client.errors import UsageProblem
from ..client.jobs import Body

ROWS_KEY = "rows.jsonl"
_FILE_ENVELOPE_BYTES = 64
_DECLARATION = "nemo-environment.yaml"
_MOST_FILES = next(
    rule.max_length for rule in ConfigMapSource.model_fields["items"].metadata if hasattr(rule, "max_length")
)


def rows(file: Path, job: str) -> Body:
    """A ConfigMap with the row file, byte for byte. It holds nothing that the evaluator would refuse."""
    try:
        with file.open("rb") as stream:
            content = stream.read(CONFIG_MAP_BYTES + 1)
    except OSError as error:
        raise UsageProblem(
            f"--dataset: {file} cannot be read here: {error.strerror}. A file that is elsewhere is written "
            "bundled:PATH (ships with NeMo Gym), configmap:NAME/KEY, fileset:NAME/PATH or pvc:CLAIM/PATH."
        ) from None
    if len(content) > CONFIG_MAP_BYTES:
        raise UsageProblem(
            f"--dataset: {file} has more bytes than the {CONFIG_MAP_BYTES:,} of a ConfigMap, into which a file from "
            "this machine goes. Put it on a PersistentVolumeClaim and pass pvc:CLAIM/PATH."
        )
    try:
        for _ in read_lines(io.BytesIO(content), f"--dataset: {file}", checked_row):
            pass
    except DatasetError as error:
        raise UsageProblem(f"{error}.") from None
    return config_map(rows_name(job), data={ROWS_KEY: content.decode()})


def rows_name(job: str) -> str:
    """The ConfigMap with the rows that went along with that job."""
    return f"{job}-rows"


def environment(folder: Path, job: str) -> tuple[Body, Body]:
    """A ConfigMap with the folder's files and the FileSet that gives each its path again. Left out: what is hidden, and
    what Python leaves behind. A folder from elsewhere may hold links to what is this user's: none is followed to that,
    since the environment's own code reads what is sent."""
    if not (folder / _DECLARATION).is_file():
        raise UsageProblem(
            f"--environment: {folder} has no {_DECLARATION}, which an environment has at its root. The name of a "
            "FileSet is written without a slash."
        )
    found = [path for path in folder.rglob("*") if _belongs(path.relative_to(folder))]
    paths = sorted(path for path in found if path.is_file() or path.is_symlink())
    if len(paths) > _MOST_FILES:
        raise UsageProblem(
            f"--environment: {folder} has {len(paths)} files, and a FileSet of a ConfigMap {_MOST_FILES}."
        )
    items, texts, others = [], {}, {}
    for number, path in enumerate(paths):
        # A key may hold no slash.
        key = f"file-{number}"
        items.append({"key": key, "path": path.relative_to(folder).as_posix()})
        content = _behind(path, folder).read_bytes()
        try:
            texts[key] = content.decode()
        except UnicodeDecodeError:
            others[key] = base64.b64encode(content).decode()
    size = sum(len(value.encode()) for value in (*texts.values(), *others.values()))
    if size > CONFIG_MAP_BYTES - _FILE_ENVELOPE_BYTES * len(paths):
        raise UsageProblem(
            f"--environment: {folder} has {size:,} bytes, and files from this machine go into a ConfigMap of 1 MiB. "
            "Make a FileSet with another source (a claim, an archive, S3, an image) and pass its name."
        )
    name = f"{job}-environment"
    source = {"configMap": {"name": name, "items": items}}
    file_set = {
        "apiVersion": API_VERSION,
        "kind": FILESET_KIND,
        "metadata": {"name": name},
        "spec": {"purpose": Purpose.ENVIRONMENT.value, "source": source},
    }
    return config_map(name, data=texts, binaryData=others), file_set


def _behind(path: Path, folder: Path) -> Path:
    found, root = path.resolve(), folder.resolve()
    if not found.is_file() or not found.is_relative_to(root) or not _belongs(found.relative_to(root)):
        raise UsageProblem(
            f"--environment: {path} is a link to {found}, which is no file of that folder that would be sent. Put the "
            "file itself there, if environment code may read it."
        )
    return found


def _belongs(path: Path) -> bool:
    return not any(part.startswith(".") or part == "__pycache__" for part in path.parts) and path.suffix != ".pyc"
