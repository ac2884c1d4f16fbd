"""A kubectl for tests: answers from a folder, runs `exec` on this machine, and writes down how it was called.

The folder (`FAKE_KUBECTL_DIR`) holds `jobs.json`, `pods.json`, `events.json` and `claims.json` (lists),
`logs/POD/CONTAINER`, `results/` (stands for the results volume) and `calls.jsonl`; what was applied or created is
appended to `sent.json`. `script.json` may set `reader_state` and `fetch_state` (the states of a created pod's container
and of its init container), `fail` (verb to stderr), `fail_kind` (resource to stderr), `fail_create` (kind to the stderr
of each further create, in order), `slow_create` (kind to the seconds that its create takes), `hang` (verbs that never
end), `cut_stream_after` (bytes of a tar that arrive), `tar` (a file that is sent in place of one), `story` (what the
job's status becomes with each further look at it). `cut_logs.json` may list the lines after which each further reading
of a log breaks off.
"""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

RESULTS = "/job/results"

_PROGRAM = """\
#!{python} -S
import sys
sys.path.insert(0, {folder!r})
import fake_kubectl
fake_kubectl.main()
"""


class FakeKubectl:
    """The test's side: what the cluster holds and what was asked of it."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "results").mkdir(parents=True)
        self.program = folder / "kubectl"
        self.program.write_text(_PROGRAM.format(python=sys.executable, folder=str(Path(__file__).parent)))
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.write("jobs", [])
        self.write("pods", [])

    @property
    def environment(self) -> dict[str, str]:
        return {"KUBECTL": str(self.program), "FAKE_KUBECTL_DIR": str(self.folder)}

    def write(self, name: str, value: object) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(value))

    def read(self, name: str) -> list:
        return json.loads((self.folder / f"{name}.json").read_text())

    def add_log(self, pod: str, container: str, text: str) -> None:
        path = self.folder / "logs" / pod / container
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def add_result(self, path: str, content: bytes) -> None:
        file = self.folder / "results" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def calls(self, verb: str | None = None) -> list[list[str]]:
        path = self.folder / "calls.jsonl"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [call for call in calls if verb is None or _verb(call) == verb]


def main() -> None:
    folder = Path(os.environ["FAKE_KUBECTL_DIR"])
    arguments = sys.argv[1:]
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    verb = _verb(arguments)
    script = _load(folder, "script", {})
    if verb in script.get("fail", {}):
        sys.exit(script["fail"][verb])
    if verb in script.get("hang", []):
        time.sleep(300)
    rest = arguments[arguments.index(verb) + 1 :]
    verbs = {"get": _get, "create": _create, "apply": _apply, "patch": _patch, "delete": _delete}
    (verbs | {"exec": _exec, "logs": _logs})[verb](folder, rest)


def _verb(arguments: list[str]) -> str:
    return next(argument for argument in arguments if not argument.startswith("-"))


def _load(folder: Path, name: str, default):
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else default


def _get(folder: Path, rest: list[str]) -> None:
    kind, names = rest[0], [name for name in rest[1:] if not name.startswith("-")]
    if kind == "pods":
        selector = next(a.partition("=")[2] for a in rest if a.startswith("--selector="))
        label, _, value = selector.partition("=")
        pods = [pod for pod in _load(folder, "pods", []) if pod["metadata"].get("labels", {}).get(label) == value]
        print(json.dumps({"items": pods}))
        return
    failure = _load(folder, "script", {}).get("fail_kind", {}).get(kind)
    if failure:
        sys.exit(failure)
    if "--output=jsonpath={.items[*].metadata.name}" in rest:
        print(" ".join(job["metadata"]["name"] for job in _load(folder, "jobs", [])))
        return
    if not names:
        file = {"events": "events", "persistentvolumeclaims": "claims"}.get(kind, "jobs")
        print(json.dumps({"items": _load(folder, file, [])}))
        return
    objects = _load(folder, "pods" if kind == "pod" else "jobs", [])
    if kind != "pod":
        objects = _next_of_the_story(folder, objects)
    found = [item for item in objects if item["metadata"]["name"] == names[0]]
    if not found:
        sys.exit(f'Error from server (NotFound): {kind} "{names[0]}" not found')
    print(json.dumps(found[0]))


def _next_of_the_story(folder: Path, jobs: list) -> list:
    script = _load(folder, "script", {})
    story = script.get("story")
    if not story:
        return jobs
    step, *later = story
    if step == "gone":
        jobs = []
    elif step == "away":
        (folder / "script.json").write_text(json.dumps(script | {"story": later or [{}]}))
        sys.exit("The connection to the server was refused - did you specify the right host or port?")
    else:
        jobs = [job | {"status": job["status"] | step} for job in jobs]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    (folder / "script.json").write_text(json.dumps(script | {"story": later}))
    return jobs


def _patch(folder: Path, rest: list[str]) -> None:
    change = json.loads(next(a.partition("=")[2] for a in rest if a.startswith("--patch=")))
    jobs = _load(folder, "jobs", [])
    for job in jobs:
        if job["metadata"]["name"] == rest[1]:
            job.setdefault("spec", {}).update(change["spec"])
            (folder / "jobs.json").write_text(json.dumps(jobs))
            print(json.dumps(job))


def _apply(folder: Path, rest: list[str]) -> None:
    _note_sent(folder, json.load(sys.stdin))


def _note_sent(folder: Path, sent: dict) -> None:
    (folder / "sent.json").write_text(json.dumps([*_load(folder, "sent", []), sent]))


def _create_job(folder: Path, job: dict) -> None:
    jobs = _load(folder, "jobs", [])
    name = job["metadata"]["name"]
    if any(other["metadata"]["name"] == name for other in jobs):
        sys.exit(f'Error from server (AlreadyExists): agentevaljobs.evals.nhx.io "{name}" already exists')
    job["metadata"] |= {"namespace": "evals", "uid": "4f2c", "creationTimestamp": "2026-01-01T00:00:00Z"}
    (folder / "jobs.json").write_text(json.dumps([*jobs, job | {"status": {}}]))
    print(json.dumps(job))


def _create(folder: Path, rest: list[str]) -> None:
    pod = json.load(sys.stdin)
    script = _load(folder, "script", {})
    time.sleep(script.get("slow_create", {}).get(pod["kind"], 0))
    failures = script.get("fail_create", {}).get(pod["kind"])
    if failures:
        words = failures.pop(0)
        (folder / "script.json").write_text(json.dumps(script))
        sys.exit(words)
    if pod["kind"] != "Pod":
        _note_sent(folder, pod)
        if pod["kind"] == "AgentEvalJob":
            _create_job(folder, pod)
        return
    state = _load(folder, "script", {}).get("reader_state", {"running": {}})
    pod["status"] = {"containerStatuses": [{"name": pod["spec"]["containers"][0]["name"], "state": state}]}
    fetching = _load(folder, "script", {}).get("fetch_state")
    if fetching:
        pod["status"]["initContainerStatuses"] = [{"name": pod["spec"]["initContainers"][0]["name"], "state": fetching}]
    (folder / "created.json").write_text(json.dumps(pod))
    (folder / "pods.json").write_text(json.dumps([*_load(folder, "pods", []), pod]))


def _delete(folder: Path, rest: list[str]) -> None:
    file = "pods" if rest[0] == "pod" else "jobs"
    left = [entry for entry in _load(folder, file, []) if entry["metadata"]["name"] != rest[1]]
    (folder / f"{file}.json").write_text(json.dumps(left))


def _exec(folder: Path, rest: list[str]) -> None:
    command = rest[rest.index("--") + 1 :]
    local = [argument.replace(RESULTS, str(folder / "results")) for argument in command]
    script = _load(folder, "script", {})
    if command[0] == "tar" and "tar" in script:
        sys.stdout.buffer.write(Path(script["tar"]).read_bytes())
        return
    cut = script.get("cut_stream_after")
    if cut is not None and command[0] == "tar":
        sys.stdout.buffer.write(subprocess.run(local, check=True, capture_output=True).stdout[:cut])
        return
    sys.exit(subprocess.run(local).returncode)


def _logs(folder: Path, rest: list[str]) -> None:
    container = next(a.partition("=")[2] for a in rest if a.startswith("--container="))
    path = folder / "logs" / rest[0] / container
    if not path.exists():
        sys.exit(f'Error from server (BadRequest): container "{container}" has no log')
    cuts = _load(folder, "cut_logs", [])
    cut = cuts.pop(0) if cuts else None
    (folder / "cut_logs.json").write_text(json.dumps(cuts))
    lines = path.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines[:cut] if cut else lines):
        # As a node stamps them, with as many digits as it takes.
        stamp = f"2026-01-01T00:00:00.{number:03d}".rstrip("0").rstrip(".") + "Z "
        sys.stdout.write(stamp + line if "--timestamps" in rest else line)
    if cut:
        sys.exit("error: unexpected EOF")
