"""`kubectl nhx` against a kubectl that answers from a folder and copies with the real tar."""

import io
import json
import signal
import tarfile

import pytest

from nhx_gym_operator.api import constants
from nhx_gym_operator.api.results import ObjectStoreResults
from nhx_gym_operator.api.wire import mounts, plans
from nhx_gym_operator.cli.exits import ExitCode
from nhx_gym_operator.client import jobs, reader
from nhx_gym_operator.workloads import pods
from support import controller_values
from support.cli_values import CLAIM, UID, call, condition, evaluator, host, job, pod, start, wait_for
from support.controller_values import workload


def bundle(cluster):
    cluster.add_result("attempt-1/summary.json", b"{}")
    cluster.add_result("attempt-1/gym_run/rollouts.jsonl", b"x" * 200_000)
    cluster.add_result("journal.jsonl", b"not part of the bundle")


def test_a_download_copies_the_bundle_and_removes_the_reader(cluster, tmp_path):
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator()])
    bundle(cluster)

    result = call("download", "mcqa", tmp_path / "out", "--namespace", "evals")

    assert result.exit_code == 0, result.output
    copied = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert copied == ["gym_run/rollouts.jsonl", "summary.json"]
    assert (tmp_path / "out/gym_run/rollouts.jsonl").stat().st_size == 200_000
    assert [item["metadata"]["name"] for item in cluster.read("pods")] == ["mcqa-evaluator-1"]


def test_a_copy_that_nobody_watches_leaves_no_line_of_its_progress(cluster, tmp_path):
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator()])
    bundle(cluster)

    said = call("download", "mcqa", tmp_path / "out").stderr.splitlines()

    assert len(said) == 1 and said[0].startswith("starting the reader pod "), said


def test_a_reader_mounts_the_claim_read_only_and_ends_by_itself(cluster, tmp_path):
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator(tolerations=[{"key": "gpu"}], imagePullSecrets=[{"name": "pull"}])])
    bundle(cluster)

    assert call("download", "mcqa", tmp_path / "out", "--lifetime", "120").exit_code == 0

    created = json.loads((cluster.folder / "created.json").read_text())
    spec, container = created["spec"], created["spec"]["containers"][0]
    assert spec["volumes"] == [{"name": "results", "persistentVolumeClaim": {"claimName": "mcqa-results"}}]
    assert container["volumeMounts"] == [{"name": "results", "mountPath": "/job/results", "readOnly": True}]
    assert (container["image"], container["imagePullPolicy"]) == ("tasks:1", "Never")
    assert spec["activeDeadlineSeconds"] == 120
    assert spec["tolerations"] == [{"key": "gpu"}] and spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    owner = created["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("AgentEvalJob", "mcqa", UID)


def test_a_reader_keeps_the_rules_of_the_operators_own_pods():
    """Pod Security, no token, and no sidecar that would not let it end."""
    own = pods.evaluator_pod(workload(controller_values.job()))
    bucket = reader.of_bucket(ObjectStoreResults.model_validate(STORE), "path")
    made = reader.reader_pod(jobs.Job(job()), bucket, "image", None, 60)

    for field in ("securityContext", "automountServiceAccountToken", "enableServiceLinks", "restartPolicy"):
        assert made["spec"][field] == own["spec"][field], field
    for container in (*made["spec"]["initContainers"], *made["spec"]["containers"]):
        assert container["securityContext"] == own["spec"]["containers"][0]["securityContext"]
    for field in ("labels", "annotations"):
        injectors = {name: value for name, value in own["metadata"][field].items() if "inject" in name}
        assert injectors and injectors.items() <= made["metadata"][field].items()


def test_the_operator_does_not_take_a_reader_for_one_of_the_jobs_pods(cluster):
    labels = reader.reader_pod(jobs.Job(job()), reader.of_claim("claim"), "image", None, 60)["metadata"]["labels"]
    assert constants.JOB_UID_LABEL not in labels and labels[constants.MANAGED_BY_LABEL] != constants.MANAGED_BY


def test_a_long_job_name_still_gives_a_valid_reader_name():
    body = job()
    body["metadata"]["name"] = "a" * 39 + "-" + "b" * 80
    name = reader.reader_pod(jobs.Job(body), reader.of_claim("claim"), "image", None, 60)["metadata"]["name"]
    assert len(name) <= 63 and "--" not in name


def test_a_directory_with_files_in_it_is_refused_before_the_cluster_is_asked_for_a_pod(cluster, tmp_path):
    cluster.write("jobs", [job()])
    (tmp_path / "notes.txt").write_text("mine")

    result = call("download", "mcqa", tmp_path)

    assert result.exit_code == ExitCode.USAGE and "is not empty" in result.output
    assert cluster.calls("create") == []


def test_results_of_an_emptydir_are_said_to_be_gone(cluster, tmp_path):
    cluster.write("jobs", [job(results={"location": "emptyDir", "path": "attempt-1"})])
    cluster.write("pods", [evaluator()])

    result = call("download", "mcqa", tmp_path / "out")

    assert result.exit_code == ExitCode.NOT_FOUND
    assert "emptyDir" in result.output and "spec.results.persistentVolumeClaim" in result.output
    assert not (tmp_path / "out").exists()


def test_a_running_evaluator_is_copied_from_directly(cluster, tmp_path):
    cluster.write("jobs", [job(phase="Running", results={"location": "emptyDir", "path": "attempt-1"})])
    cluster.write("pods", [evaluator(states={"agent-evaluate": {"running": {}}})])
    cluster.add_result("attempt-1/gym_run/gym_input.jsonl", b"{}\n")
    cluster.add_result("journal.jsonl", b"two rollouts\n")

    result = call("download", "mcqa", tmp_path / "out")

    assert result.exit_code == 0, result.output
    assert cluster.calls("create") == []
    assert "summary.json is missing" in result.output and "2 files" in result.output
    assert (tmp_path / "out/gym_run/gym_input.jsonl").read_bytes() == b"{}\n"
    assert (tmp_path / "out/journal.jsonl").read_bytes() == b"two rollouts\n"


def test_a_job_whose_evaluator_pod_is_gone_needs_an_image(cluster, tmp_path):
    cluster.write("jobs", [job()])
    bundle(cluster)

    refused = call("download", "mcqa", tmp_path / "out")
    taken = call("download", "mcqa", tmp_path / "out", "--image", "mine/nhx-tasks:2")

    assert refused.exit_code == 1 and "--image" in refused.output
    assert taken.exit_code == 0, taken.output
    assert (
        json.loads((cluster.folder / "created.json").read_text())["spec"]["containers"][0]["image"]
        == "mine/nhx-tasks:2"
    )


@pytest.mark.parametrize("cut", [700, 60_000, 1024])
def test_a_copy_that_broke_off_leaves_nothing_behind(cluster, tmp_path, cut):
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator()])
    cluster.write("script", {"cut_stream_after": cut})
    bundle(cluster)

    result = call("download", "mcqa", tmp_path / "out")

    assert result.exit_code == 1
    assert "broke off" in result.output or "did not arrive whole" in result.output
    assert not (tmp_path / "out").exists()
    assert len(cluster.read("pods")) == 1


def test_a_download_from_a_pod_that_somebody_put_there_writes_nothing_outside(cluster, tmp_path):
    """The library that unpacks is deceived by a link whose way is longer than a path may be (CVE-2025-4517)."""
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator()])
    cluster.add_result("attempt-1/summary.json", b"{}")
    (tmp_path / "home").mkdir()
    sent, steps, way = tmp_path / "sent.tar", "abcdefghijklmnop", ""
    with tarfile.open(sent, "w") as archive:

        def add(name: str, content: bytes | None = None, link: str = "") -> None:
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.SYMTYPE if link else tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            entry.size, entry.linkname = len(content or b""), link
            archive.addfile(entry, io.BytesIO(content or b""))

        for step in steps:
            add(f"{way}{'d' * 240}")
            add(f"{way}{step}", link="d" * 240)
            way += f"{'d' * 240}/"
        add(f"{'/'.join(steps)}/{'l' * 254}", link="../" * len(steps))
        # Out of the folder that is moved at the end, and of the one that was asked for.
        add("escape", link=f"{'/'.join(steps)}/{'l' * 254}/../../home")
        add("escape/.profile", b"planted")
        add("other", link="summary.json")
        add("summary.json", b"{}")
    cluster.write("script", {"tar": str(sent)})

    result = call("download", "mcqa", tmp_path / "out")

    assert list((tmp_path / "home").iterdir()) == []
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out/summary.json").read_bytes() == b"{}"
    assert not [file for file in (tmp_path / "out").rglob("*") if file.is_symlink()]


def test_a_file_by_two_names_is_copied_by_both(cluster, tmp_path):
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator()])
    bundle(cluster)
    results = cluster.folder / "results" / "attempt-1"
    (results / "again.json").hardlink_to(results / "summary.json")

    assert call("download", "mcqa", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out/again.json").read_bytes() == (tmp_path / "out/summary.json").read_bytes() == b"{}"


def test_a_reader_that_cannot_pull_its_image_says_so_and_is_removed(cluster, tmp_path):
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "back-off pulling tasks:1"}}
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator()])
    cluster.write("script", {"reader_state": waiting})

    result = call("download", "mcqa", tmp_path / "out")

    assert result.exit_code == 1 and "ImagePullBackOff: back-off pulling tasks:1" in result.output
    assert len(cluster.read("pods")) == 1


def test_an_interrupted_download_removes_the_reader(cluster, tmp_path):
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator()])
    cluster.write("script", {"hang": ["exec"]})
    process = start("download", "mcqa", tmp_path / "out")
    wait_for(lambda: cluster.calls("exec"))
    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=30) == 130
    assert len(cluster.read("pods")) == 1 and len(cluster.calls("delete")) == 1


def test_the_users_flags_reach_every_kubectl_call(cluster, tmp_path):
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator()])
    bundle(cluster)

    call("download", "mcqa", tmp_path / "out", "--context", "lab", "--kubeconfig", "/k", "-n", "evals")

    assert cluster.calls()
    for arguments in cluster.calls():
        assert arguments[:3] == ["--kubeconfig=/k", "--context=lab", "--namespace=evals"]


def test_logs_show_every_container_under_a_header_in_the_order_of_a_run(cluster):
    cluster.write("jobs", [job(phase="Failed")])
    cluster.write(
        "pods", [host(states={"gym-host": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}), evaluator()]
    )
    for container in ("sandbox-gate", "gym-host"):
        cluster.add_log("mcqa-host-0-1", container, f"from {container}\n")
    cluster.add_log("mcqa-evaluator-1", "agent-evaluate", "from agent-evaluate\n")

    result = call("logs", "mcqa")

    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if line]
    assert lines == [
        "==> mcqa-evaluator-1/agent-evaluate (ended, exit code 0, Completed) <==",
        "from agent-evaluate",
        "==> mcqa-host-0-1/sandbox-gate (ended, exit code 0, Completed) <==",
        "from sandbox-gate",
        "==> mcqa-host-0-1/gym-host (ended, exit code 137, OOMKilled) <==",
        "from gym-host",
    ]


@pytest.mark.parametrize("how", [(), ("--output=json",), ("--follow",), ("--follow", "--output=json")])
def test_what_environment_code_printed_steers_nobodys_terminal(cluster, monkeypatch, how):
    monkeypatch.setattr("nhx_gym_operator.cli.logs.POLL_SECONDS", 0.01)
    printed = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe ü"
    cluster.write("jobs", [job(phase="Failed")])
    cluster.write("pods", [host(states={"gym-host": {"terminated": {"exitCode": 1}}})])
    cluster.add_log("mcqa-host-0-1", "gym-host", f"{printed}\n")
    output = call("logs", "mcqa", "--role=host", *how).output
    assert not set(output) & set("\x1b\x07\x9b\u202e") and "gnp.exe ü" in output
    if "--output=json" in how:
        assert json.loads(output.splitlines()[-1])["line"] == printed


def test_logs_of_one_role_are_those_alone(cluster):
    cluster.write("jobs", [job()])
    cluster.write("pods", [host(), evaluator()])
    cluster.add_log("mcqa-host-0-1", "sandbox-gate", "refused, as it must be\n")

    result = call("logs", "mcqa", "--role", "gate", "--tail", "5")

    assert result.exit_code == 0 and "refused, as it must be" in result.output
    assert cluster.calls("logs") == [
        ["--namespace=evals", "logs", "mcqa-host-0-1", "--container=sandbox-gate", "--tail=5"]
    ]


def test_a_container_that_never_started_is_shown_with_its_reason(cluster):
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    cluster.write("jobs", [job(phase="Failed")])
    cluster.write("pods", [evaluator(states={"agent-evaluate": waiting})])

    result = call("logs", "mcqa")

    assert result.exit_code == ExitCode.NOT_FOUND
    assert "not started, ErrImagePull: no such image" in result.output


def test_when_no_pod_is_left_the_logs_in_the_bundle_are_printed(cluster):
    cluster.write("jobs", [job(results={**CLAIM, "image": "reg/nhx-tasks:1"})])
    cluster.add_result("attempt-1/summary.json", b"{}")
    cluster.add_result("attempt-1/gym_run/gym_env.log", b"one\ntwo\n")
    cluster.add_result("evaluator.log", b"three\nfour\n")

    result = call("logs", "mcqa", "--tail", "1")

    assert result.exit_code == 0, result.output
    assert "==> results of mcqa/evaluator.log (kept with them) <==\nfour\n" in result.output
    assert "==> results of mcqa/gym_run/gym_env.log (kept with them) <==\ntwo\n" in result.output
    reader_image = json.loads((cluster.folder / "created.json").read_text())["spec"]["containers"][0]["image"]
    assert reader_image == "reg/nhx-tasks:1"
    assert cluster.read("pods") == []


@pytest.mark.parametrize(
    ("role", "placement", "printed"),
    [
        ("evaluator", "Sandboxed", {"evaluator.log"}),
        ("host", "Sandboxed", {"gym_run/gym_env.log"}),
        ("evaluator", "Colocated", {"evaluator.log", "gym_run/gym_env.log"}),
        ("host", "Colocated", {"gym_run/gym_env.log"}),
    ],
)
def test_a_role_selects_among_the_logs_in_the_bundle_too(cluster, role, placement, printed):
    cluster.write("jobs", [job(placement=placement, results={**CLAIM, "image": "reg/nhx-tasks:1"})])
    for path in ("attempt-1/gym_run/gym_env.log", "evaluator.log"):
        cluster.add_result(path, b"line\n")

    output = call("logs", "mcqa", "--role", role).output

    assert {line.split()[3].partition("/")[2] for line in output.splitlines() if line[:3] == "==>"} == printed, output


@pytest.mark.parametrize("role", ["stage", "gate"])
def test_a_log_that_went_with_its_pod_is_said_to_have(cluster, role):
    cluster.write("jobs", [job(results={**CLAIM, "image": "reg/nhx-tasks:1"})])

    result = call("logs", "mcqa", "--role", role)

    assert result.exit_code == ExitCode.NOT_FOUND and f"the log of `{role}`" in result.output
    assert not (cluster.folder / "created.json").exists(), "no reader is started for nothing"


def test_following_a_job_that_is_gone_prints_what_its_results_keep(deleted):
    result = call("logs", "mcqa", "--follow", "--image", "mine/nhx-tasks:2")

    assert result.exit_code == 0 and "it ended" in result.output


OPEN = {"sandbox-gate": {"terminated": {"exitCode": 3, "reason": "Error"}}, "gym-host": {"waiting": {}}}


def of_an_open_sandbox(cluster, **status):
    """A job whose gate failed: its evaluator was told to end, and went."""
    cluster.write("jobs", [job(phase="Failed", **status)])
    cluster.write("pods", [host(states=OPEN)])
    cluster.add_log("mcqa-host-0-1", "sandbox-gate", "still reached kubernetes-api\n")


@pytest.mark.parametrize("role", [(), ("--role", "evaluator")], ids=["all", "the evaluator"])
def test_the_log_of_an_evaluator_that_had_no_sandbox_is_read_from_the_results(cluster, role):
    of_an_open_sandbox(cluster, results={**CLAIM, "image": "reg/nhx-tasks:1"})
    cluster.add_result("evaluator.log", b"waiting for gym host 0\n")

    result = call("logs", "mcqa", *role)

    assert result.exit_code == 0, result.output
    assert ("still reached kubernetes-api" in result.output) == (not role)
    assert "==> results of mcqa/evaluator.log (kept with them) <==\nwaiting for gym host 0\n" in result.output


def test_where_no_results_keep_an_evaluators_log_that_is_said_beside_the_gates(cluster):
    of_an_open_sandbox(cluster, results={"location": "emptyDir"})

    result = call("logs", "mcqa")

    assert result.exit_code == 0 and "still reached kubernetes-api" in result.output
    assert "the evaluator's pod of job `mcqa` is gone" in result.stderr
    assert "spec.results.persistentVolumeClaim" in result.stderr
    assert call("logs", "mcqa", "--role", "evaluator").exit_code == ExitCode.NOT_FOUND
    assert call("logs", "mcqa", "--role", "gate").stderr == ""


def test_what_a_pod_says_of_a_log_that_cannot_be_read_steers_nobodys_terminal(cluster):
    of_an_open_sandbox(cluster, results={**CLAIM, "image": "reg/nhx-tasks:1"})
    cluster.write("script", {"fail": {"exec": "\x1b]0;owned\x07 no such file"}})

    said = call("logs", "mcqa").stderr

    assert "no such file" in said and not set(said) & set("\x1b\x07")


def test_a_job_between_two_attempts_has_no_pods_yet_and_its_volume_is_left_alone(cluster):
    cluster.write("jobs", [job(phase="Running")])

    result = call("logs", "mcqa")

    assert result.exit_code == ExitCode.NOT_FOUND and "has no pods yet" in result.output
    assert not (cluster.folder / "created.json").exists()


def test_when_no_pod_is_left_and_the_bundle_cannot_be_read_it_is_named(cluster):
    cluster.write("jobs", [job()])

    result = call("logs", "mcqa")

    assert result.exit_code == ExitCode.ERROR and "--image" in result.output
    assert "kubectl nhx download mcqa DIR --namespace evals" in result.output and "gym_run" in result.output


def test_a_bundle_without_logs_says_what_it_holds_instead(cluster):
    cluster.write("jobs", [job()])
    cluster.add_result("attempt-1/summary.json", b"{}")

    result = call("logs", "mcqa", "--image", "mine/nhx-tasks:2")

    assert result.exit_code == ExitCode.NOT_FOUND and "rollouts_failures.jsonl" in result.output


@pytest.fixture
def deleted(cluster):
    """A job that is gone; its claim was to stay, after two attempts."""
    for number, uid in enumerate(("old", "new"), 1):
        metadata = {
            "name": f"mcqa-results-{uid}",
            "namespace": "evals",
            "creationTimestamp": f"2026-01-0{number}T00:00:00Z",
            "annotations": {constants.JOB_ANNOTATION: "mcqa", constants.IMAGE_ANNOTATION: f"{uid}/nhx-tasks:1"},
        }
        claims = json.loads((cluster.folder / "claims.json").read_text()) if number > 1 else []
        cluster.write("claims", [*claims, {"metadata": metadata}])
    for path in ("attempt-1/report.html", "attempt-2/report.html", "attempt-2/summary.json", "journal.jsonl"):
        cluster.add_result(path, path.encode())
    cluster.add_result("evaluator.log", b"it ended\n")
    cluster.add_result("lost+found/#12", b"the file system's")
    return cluster


def test_the_results_of_a_deleted_job_are_found_by_its_name(deleted, tmp_path):
    result = call("download", "mcqa", tmp_path / "out")

    assert result.exit_code == 0, result.output
    copied = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert copied == [
        "attempt-1/report.html",
        "attempt-2/report.html",
        "attempt-2/summary.json",
        "evaluator.log",
        "journal.jsonl",
    ]
    created = json.loads((deleted.folder / "created.json").read_text())
    assert created["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "mcqa-results-new"
    assert created["spec"]["containers"][0]["image"] == "new/nhx-tasks:1"
    assert "ownerReferences" not in created["metadata"]


def test_the_logs_and_the_report_of_a_deleted_job_are_those_that_its_claim_kept(deleted, tmp_path):
    logs = call("logs", "mcqa", "--image", "mine/nhx-tasks:2")
    report = call("report", "mcqa", "--no-open", "--file", tmp_path / "r.html", "--image", "mine/nhx-tasks:2")

    assert "evaluator.log (kept with them) <==\nit ended" in logs.output
    assert report.exit_code == 0 and (tmp_path / "r.html").read_text() == "attempt-2/report.html"


def test_a_job_that_left_nothing_is_not_found(deleted, tmp_path):
    assert call("download", "other", tmp_path / "out").exit_code == ExitCode.NOT_FOUND


def test_the_host_role_of_a_colocated_job_points_at_the_evaluator(cluster):
    cluster.write("jobs", [job()])
    cluster.write("pods", [pod("mcqa-gym-tasks-1", "colocated", ["agent-evaluate"])])

    result = call("logs", "mcqa", "--role", "host")

    assert result.exit_code == ExitCode.NOT_FOUND and "--role evaluator" in result.output


def test_following_bears_with_a_cluster_that_is_away_for_a_while(cluster, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.cli.logs.POLL_SECONDS", 0.01)
    cluster.write("jobs", [job(phase="Running")])
    cluster.write("pods", [evaluator()])
    cluster.add_log("mcqa-evaluator-1", "agent-evaluate", "one\n")
    cluster.write("script", {"story": [{}, {}, "away", "away", {"phase": "Succeeded"}]})

    result = call("logs", "mcqa", "--follow")

    assert result.exit_code == 0, result.output
    assert "mcqa-evaluator-1/agent-evaluate | one" in result.output


def test_cancelling_bears_with_a_cluster_that_is_away_for_a_while(cluster, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.cli.cancel.POLL_SECONDS", 0.01)
    cluster.write("jobs", [job(phase="Running")])
    cluster.write("script", {"story": [{}, {}, "away", {"phase": "Cancelled"}]})

    result = call("cancel", "mcqa", "--wait")

    assert result.exit_code == 0 and "Cancelled" in result.output


def test_following_prints_each_line_with_its_container_and_ends_with_the_job(cluster):
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator(), host()])
    cluster.add_log("mcqa-evaluator-1", "agent-evaluate", "one\ntwo\n")
    cluster.add_log("mcqa-host-0-1", "sandbox-gate", "")
    cluster.add_log("mcqa-host-0-1", "gym-host", "ready\n")

    result = call("logs", "mcqa", "--follow")

    assert result.exit_code == 0
    assert "mcqa-evaluator-1/agent-evaluate | two" in result.output
    assert "mcqa-host-0-1/gym-host | ready" in result.output


def test_a_log_that_breaks_off_is_taken_up_again_and_no_line_is_lost_or_told_twice(cluster, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.cli.logs.POLL_SECONDS", 0.01)
    cluster.write("jobs", [job(phase="Running")])
    cluster.write("pods", [evaluator(states={"agent-evaluate": {"running": {}}})])
    written = [f"line {number}" for number in range(14)]
    cluster.add_log("mcqa-evaluator-1", "agent-evaluate", "\n".join(written) + "\n")
    monkeypatch.setattr("nhx_gym_operator.cli.logs.DRAIN_SECONDS", 3.0)
    cluster.write("cut_logs", [3, 11])
    cluster.write("script", {"story": [{}] * 8 + [{"phase": "Succeeded"}]})

    result = call("logs", "mcqa", "--follow")

    assert result.exit_code == 0, result.output
    assert [line.partition(" | ")[2] for line in result.stdout.splitlines()] == written
    assert "broke off, taking it up again: unexpected EOF" in result.stderr


AGGREGATES = [
    {
        "name": "gym_reward.reward",
        "value": 0.8,
        "unit": "reward",
        "kind": "range",
        "count": 10,
        "mean": 0.8,
        "stdDev": 0.4,
    },
    {"name": "runner.gym.pass@1[avg-of-2]/accuracy", "value": 80.0, "unit": "gym", "kind": "scalar"},
]


def test_results_are_a_table_that_a_pipe_does_not_fold(cluster):
    cluster.write("jobs", [job(aggregates=AGGREGATES, coverage=1.0)])

    result = call("results", "mcqa")

    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()]
    assert ["gym_reward.reward", "reward", "0.8", "10", "0.8", "0.4"] in rows
    assert ["runner.gym.pass@1[avg-of-2]/accuracy", "gym", "80.0"] in rows


def test_results_as_json_keep_the_names_of_the_status(cluster):
    cluster.write("jobs", [job(aggregates=AGGREGATES, coverage=1.0)])

    printed = json.loads(call("results", "mcqa", "--output", "json").output)

    assert printed["aggregates"] == AGGREGATES
    assert (printed["name"], printed["phase"], printed["coverage"]) == ("mcqa", "Succeeded", 1.0)


def test_a_job_without_a_score_says_why(cluster):
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "ModelUnavailable",
        "message": "the model refused every call",
    }
    cluster.write("jobs", [job(phase="Failed", conditions=[failed])])

    result = call("results", "mcqa")

    assert result.exit_code == ExitCode.NOT_FOUND and "the model refused every call" in result.output


def test_results_as_json_say_what_there_is_and_end_as_a_job_without_a_score_does(cluster):
    cluster.write("jobs", [job(phase="Running", progress={"summary": "3/10"})])

    result = call("results", "mcqa", "-o", "json")

    assert result.exit_code == ExitCode.NOT_FOUND and "3/10 rollouts are recorded" in result.stderr
    assert json.loads(result.stdout)["progress"] == {"summary": "3/10"}


def test_results_as_json_name_what_ended_a_job_as_the_list_of_jobs_does(cluster):
    ended = condition("Failed", True, "ModelUnavailable", "the model refused every call")
    cluster.write("jobs", [job(phase="Failed", conditions=[ended])])

    printed = json.loads(call("results", "mcqa", "-o", "json").stdout)
    (listed,) = json.loads(call("list", "-o", "json").stdout)

    why = {"phase": "Failed", "reason": "ModelUnavailable", "message": "the model refused every call"}
    assert {name: printed[name] for name in why} == {name: listed[name] for name in why} == why


FORBIDDEN = 'Error from server (Forbidden): pods "x" is forbidden: User "me" cannot get resource "pods/log"'


@pytest.mark.parametrize("flags", [(), ("--follow",), ("-o", "json")])
def test_logs_that_may_not_be_read_are_refused_and_no_line_of_them_is_made_up(cluster, flags):
    cluster.write("jobs", [job()])
    cluster.write("pods", [evaluator()])
    cluster.write("script", {"fail": {"logs": FORBIDDEN}})

    result = call("logs", "mcqa", *flags)

    assert result.exit_code == ExitCode.REFUSED and FORBIDDEN in result.stderr, result.output
    assert "Forbidden" not in result.stdout


def test_a_cluster_that_does_not_answer_is_told_in_one_line(cluster):
    log = "E1130 04:46:03.123456   12345 memcache.go:265] couldn't get current server API group list: dial tcp"
    said = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
    cluster.write("script", {"fail": {"get": f"{log}\n{log}\n{said}"}})

    result = call("results", "mcqa")

    assert result.exit_code == ExitCode.ERROR
    assert result.stderr == f"error: kubectl get agentevaljobs.evals.nhx.io mcqa failed: {said}\n"


def test_a_kubectl_that_is_none_is_said_to_be(cluster, tmp_path, monkeypatch):
    program = tmp_path / "other"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(program))

    result = call("results", "mcqa")

    assert result.exit_code == ExitCode.ERROR and "Is " + str(program) + " a kubectl?" in result.stderr


def test_a_report_that_could_not_be_brought_leaves_no_folder_behind(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    cluster.write("jobs", [job()])

    assert call("report", "mcqa").exit_code == ExitCode.ERROR
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_job_that_does_not_exist_is_named_with_its_namespace(cluster):
    result = call("results", "other", "-n", "evals")

    assert result.exit_code == ExitCode.NOT_FOUND
    assert "no AgentEvalJob `other` in namespace `evals`" in result.output


def test_a_cluster_without_the_chart_is_told_apart_from_a_missing_job(cluster):
    cluster.write("script", {"fail": {"get": 'error: the server doesn\'t have a resource type "agentevaljobs"'}})

    result = call("results", "mcqa")

    assert result.exit_code == ExitCode.NOT_FOUND and "chart nhx-gym-operator is not installed" in result.output


def test_a_missing_kubectl_names_the_variable_to_set(monkeypatch):
    monkeypatch.setenv("KUBECTL", "/nowhere/kubectl")

    result = call("results", "mcqa")

    assert result.exit_code == 1 and "KUBECTL" in result.output


def test_the_readers_user_may_read_what_the_evaluators_user_wrote():
    security = reader.reader_pod(jobs.Job(job()), reader.of_claim("claim"), "image", None, 60)["spec"][
        "securityContext"
    ]
    assert (security["runAsUser"], security["fsGroup"]) == (1000, 1000)


STORE = {
    "endpoint": "https://minio:9000",
    "bucket": "results",
    "prefix": "evals",
    "credentials": {
        "accessKeyId": {"secretKeyRef": {"name": "s3", "key": "id"}},
        "secretAccessKey": {"secretKeyRef": {"name": "s3", "key": "secret"}},
    },
}
IN_BUCKET = {"location": "s3://results/evals", "path": "evals-ns/mcqa-4f2c/attempt-1"}


def uploaded():
    return {**job(results=IN_BUCKET), "spec": {"results": {"objectStore": STORE}}}


def test_a_bundle_in_a_bucket_is_fetched_by_a_pod_that_has_the_jobs_keys_and_this_machine_has_none(cluster, tmp_path):
    cluster.write("jobs", [uploaded()])
    cluster.write("pods", [evaluator()])
    cluster.add_result(f"{IN_BUCKET['path']}/summary.json", b"{}")

    result = call("download", "mcqa", tmp_path / "out")

    assert result.exit_code == 0, result.output
    assert (tmp_path / "out/summary.json").read_bytes() == b"{}"
    spec = json.loads((cluster.folder / "created.json").read_text())["spec"]
    (fetch,), (shown,) = spec["initContainers"], spec["containers"]
    plan = plans.FetchPlan.model_validate_json(fetch["env"][0]["value"].replace("$$", "$"))
    assert (plan.address.bucket, plan.address.prefix, plan.path) == ("results", "evals", IN_BUCKET["path"])
    assert plan.target == f"/job/results/{IN_BUCKET['path']}"
    assert fetch["args"] == ["python", "-m", "nhx_gym_operator.evaluator", "fetch"]
    keys = {mount["mountPath"] for mount in fetch["volumeMounts"]} - {"/job/results"}
    assert keys == {f"{mounts.OBJECT_STORE_DIR}/access-key-id", f"{mounts.OBJECT_STORE_DIR}/secret-access-key"}
    assert [mount["mountPath"] for mount in shown["volumeMounts"]] == ["/job/results"]
    assert [item["metadata"]["name"] for item in cluster.read("pods")] == ["mcqa-evaluator-1"]


def test_a_bundle_that_cannot_be_fetched_is_answered_in_the_servers_words(cluster, tmp_path):
    cluster.write("jobs", [uploaded()])
    cluster.write("pods", [evaluator()])
    ended = {"terminated": {"exitCode": 1, "message": "bucket 'results': the server refuses these credentials"}}
    cluster.write("script", {"fetch_state": ended, "reader_state": {"waiting": {"reason": "PodInitializing"}}})

    result = call("download", "mcqa", tmp_path / "out")

    assert result.exit_code == 1 and "the server refuses these credentials" in result.output
    assert len(cluster.read("pods")) == 1


def test_a_fetching_image_that_cannot_be_pulled_is_named(cluster, tmp_path):
    cluster.write("jobs", [uploaded()])
    cluster.write("pods", [evaluator()])
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "back-off pulling tasks:1"}}
    cluster.write("script", {"fetch_state": waiting, "reader_state": {"waiting": {"reason": "PodInitializing"}}})

    result = call("download", "mcqa", tmp_path / "out")

    assert result.exit_code == 1 and "ImagePullBackOff: back-off pulling tasks:1" in result.output
