"""`kubectl nhx submit`: what is sent for a manifest and for flags, and what is refused before anything is."""

import base64
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from nhx_gym_operator.api.fileset import FileSet
from nhx_gym_operator.api.job import AgentEvalJob
from nhx_gym_operator.api.rows import DatasetError
from nhx_gym_operator.cli.exits import ExitCode
from nhx_gym_operator.client.creation import create_job
from nhx_gym_operator.client.kubectl import Kubectl
from nhx_gym_operator.evaluator.dataset import Subset, load_dataset
from support.cli_values import call, condition, start, wait_for

FLAGS = (
    "--resources-server=mcqa", "--agent=simple_agent", "--agent-config=responses_api_agents/simple_agent/a.yaml",
    "--base-url=https://models.example.org/v1", "--model=org/name", "--api-key=my-model/api-key",
)  # fmt: skip
SPEC_FILE = Path(__file__).resolve().parents[2] / "examples/submit/gym_agent_eval.json"
ROW = '{"responses_create_params": {}}\n'
BUNDLED = "--dataset=bundled:resources_servers/mcqa/data/example.jsonl"


def sent(cluster):
    return {entry["kind"]: entry for entry in cluster.read("sent")}


def nothing_was_sent(cluster):
    return not (cluster.folder / "sent.json").exists()


def test_flags_make_a_job_that_holds_what_they_say_and_nothing_else(cluster):
    more = (
        "--num-repeats=2",
        "--hosts=2",
        "--hydra-param=judge.temperature=0.5",
        "--label=benchmark=mcqa",
        "--limit=3",
    )
    result = call("submit", *FLAGS, BUNDLED, "--name=mine", *more)

    assert result.exit_code == ExitCode.DONE, result.output
    assert "job mine was submitted to namespace evals" in result.output
    job = sent(cluster)["AgentEvalJob"]
    assert AgentEvalJob.model_validate(job)
    assert job["metadata"]["name"] == "mine"
    assert job["spec"] == {
        "tasks": {"dataset": {"bundled": "resources_servers/mcqa/data/example.jsonl"}, "limit": 3},
        "target": {
            "gym": {
                "agent": "simple_agent",
                "agentConfig": "responses_api_agents/simple_agent/a.yaml",
                "resourcesServer": "mcqa",
                "numRepeats": 2,
                "hydraParams": {"judge": {"temperature": 0.5}},
            }
        },
        "models": [
            {
                "name": "policy",
                "baseUrl": "https://models.example.org/v1",
                "model": "org/name",
                "apiKey": {"secretKeyRef": {"name": "my-model", "key": "api-key"}},
            }
        ],
        "results": {"persistentVolumeClaim": {"size": "1Gi"}},
        "hosts": 2,
        "labels": {"benchmark": "mcqa"},
    }


LIFE = (
    ("--min-coverage=0.5", {"minCoverage": 0.5}),
    ("--retry-failed=2", {"retryFailed": 2}),
    ("--backoff-limit=0", {"backoffLimit": 0}),
    ("--failure-rule=FailJob=model,context", {"failurePolicy": {"rules": [
        {"action": "FailJob", "onRollout": {"classes": ["model", "context"]}}]}}),
    ("--failure-rule=Ignore=Evicted", {"failurePolicy": {"rules": [
        {"action": "Ignore", "onLostAttempt": {"causes": ["Evicted"]}}]}}),
    ("--active-deadline=6h", {"activeDeadlineSeconds": 21600}),
    ("--starting-deadline=90.2s", {"startingDeadlineSeconds": 91}),
    ("--idle-timeout=1h", {"idleTimeoutSeconds": 3600.0}),
    ("--ttl-after-finished=0", {"ttlSecondsAfterFinished": 0}),
    ("--suspend", {"suspend": True}),
    ("--cost-limit=modelSeconds=600", {"limits": {"modelSeconds": 600}}),
)  # fmt: skip


@pytest.mark.parametrize(("flag", "field"), LIFE, ids=[flag for flag, _ in LIFE])
def test_how_a_job_runs_and_what_ends_it_is_said_by_a_flag_with_a_spec_file_too(cluster, flag, field):
    call("submit", *FLAGS, BUNDLED, flag)
    of_flags = sent(cluster)["AgentEvalJob"]
    call("submit", SPEC_FILE, BUNDLED, "--base-url=https://m/v1", "--model=m", flag)
    of_file = sent(cluster)["AgentEvalJob"]
    for job in (of_flags, of_file):
        assert AgentEvalJob.model_validate(job)
        assert {name: job["spec"].get(name) for name in field} == field


def test_rules_about_failures_keep_their_order_and_each_limit_counts(cluster):
    flags = (
        "--failure-rule=FailJob=model",
        "--failure-rule=Count=model",
        "--cost-limit=tokens=9",
        "--cost-limit=calls=8",
    )
    call("submit", *FLAGS, BUNDLED, *flags)
    spec = sent(cluster)["AgentEvalJob"]["spec"]
    assert [rule["action"] for rule in spec["failurePolicy"]["rules"]] == ["FailJob", "Count"]
    assert spec["limits"] == {"tokens": 9, "calls": 8}


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("configmap:rows/a.jsonl", {"configMap": {"name": "rows", "key": "a.jsonl"}}),
        ("fileset:rows/sub/a.jsonl", {"fileSet": {"name": "rows", "path": "sub/a.jsonl"}}),
    ],
)
def test_rows_that_lie_on_the_cluster_are_named(cluster, said, field):
    assert call("submit", *FLAGS, f"--dataset={said}").exit_code == ExitCode.DONE
    assert sent(cluster)["AgentEvalJob"]["spec"]["tasks"]["dataset"] == field


def test_a_local_row_file_becomes_a_config_map_that_goes_with_the_job(cluster, tmp_path):
    rows = '\ufeff{"responses_create_params": {"input": "ä"}}\r\n\n' + ROW.strip()
    (tmp_path / "rows.jsonl").write_text(rows, newline="")

    result = call("submit", *FLAGS, f"--dataset={tmp_path / 'rows.jsonl'}", "--name=mine")

    assert result.exit_code == ExitCode.DONE, result.output
    config_map = sent(cluster)["ConfigMap"]
    source = sent(cluster)["AgentEvalJob"]["spec"]["tasks"]["dataset"]["configMap"]
    assert source == {"name": config_map["metadata"]["name"], "key": "rows.jsonl"}
    assert config_map["data"] == {"rows.jsonl": rows}
    (owner,) = config_map["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("AgentEvalJob", "mine", "4f2c")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x" * 1024 * 1024, "pvc:CLAIM/PATH"),
        (b" \n", "is empty"),
        (None, "bundled:PATH"),
    ],
    ids=["too large", "empty", "absent"],
)
def test_a_row_file_that_cannot_be_sent_is_refused_and_nothing_is_made(cluster, tmp_path, content, words):
    file = tmp_path / "rows.jsonl"
    if content is not None:
        file.write_bytes(content)

    result = call("submit", *FLAGS, f"--dataset={file}")

    assert result.exit_code == ExitCode.USAGE
    assert words in result.output and str(file) in result.output
    assert nothing_was_sent(cluster)


@pytest.mark.parametrize(
    "bad",
    [
        b'{"question": "x"}',
        b'{"responses_create_params": {}',
        b"[1, 2]",
        b'{"responses_create_params": {}, "x": NaN}',
        b'{"responses_create_params": {"input": "\xff"}}',
        b'{"responses_create_params": {}, "agent_ref": "x"}',
    ],
    ids=["no parameters", "cut off", "no object", "not a number", "not utf-8", "another agent"],
)
def test_a_bad_row_is_named_before_anything_is_made_in_the_words_in_which_a_job_would_have_failed(
    cluster, tmp_path, bad
):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(ROW.encode() + b"\n" + bad + b"\n")
    with pytest.raises(DatasetError, match=", line 3: ") as of_a_job:
        load_dataset(file, str(file), Subset(), copy=tmp_path / "copy")

    result = call("submit", *FLAGS, f"--dataset={file}")

    assert result.exit_code == ExitCode.USAGE
    assert result.stderr == f"error: --dataset: {of_a_job.value}.\n"
    assert nothing_was_sent(cluster)


def test_of_a_file_that_no_config_map_holds_no_more_is_read_than_shows_that(cluster, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.touch()
    os.truncate(file, 2**40)

    result = call("submit", *FLAGS, f"--dataset={file}")

    assert result.exit_code == ExitCode.USAGE and "pvc:CLAIM/PATH" in result.stderr
    assert nothing_was_sent(cluster)


@pytest.fixture
def folder(tmp_path):
    """An environment as it lies on a developer's disk."""
    mine = tmp_path / "mine"
    (mine / "resources_servers/mine/__pycache__").mkdir(parents=True)
    (mine / ".git").mkdir()
    (mine / "nemo-environment.yaml").write_text("format: native-v1")
    (mine / "resources_servers/mine/app.py").write_text("print('ä')")
    (mine / "resources_servers/mine/table.bin").write_bytes(b"\xff\x00")
    (mine / "resources_servers/mine/__pycache__/app.pyc").write_bytes(b"x")
    (mine / ".git/config").write_text("x")
    return mine


def test_a_local_environment_becomes_a_file_set_that_goes_with_the_job(cluster, folder):
    result = call("submit", *FLAGS, BUNDLED, f"--environment={folder}", "--name=mine")

    assert result.exit_code == ExitCode.DONE, result.output
    made = sent(cluster)
    assert [entry["kind"] for entry in cluster.read("sent")] == ["AgentEvalJob", "ConfigMap", "FileSet"]
    file_set = FileSet.model_validate(made["FileSet"])
    named = made["AgentEvalJob"]["spec"]["target"]["gym"]["environment"]["fileSet"]["name"]
    source = file_set.spec.source.config_map
    assert (named, source.name) == (file_set.metadata.name, made["ConfigMap"]["metadata"]["name"])
    texts, others = made["ConfigMap"]["data"], made["ConfigMap"]["binaryData"]
    found = {item.path: texts.get(item.key) or base64.b64decode(others[item.key]) for item in source.items}
    assert found == {
        "nemo-environment.yaml": "format: native-v1",
        "resources_servers/mine/app.py": "print('ä')",
        "resources_servers/mine/table.bin": b"\xff\x00",
    }
    assert {
        owner["uid"] for kind in ("ConfigMap", "FileSet") for owner in made[kind]["metadata"]["ownerReferences"]
    } == {"4f2c"}


def test_a_folder_that_is_no_environment_or_too_large_is_refused_before_anything_is_sent(cluster, folder):
    (folder / "weights.txt").write_text("x" * 1024 * 1024)
    large = call("submit", *FLAGS, BUNDLED, f"--environment={folder}")
    (folder / "nemo-environment.yaml").unlink()
    bare = call("submit", *FLAGS, BUNDLED, f"--environment={folder}")

    assert large.exit_code == bare.exit_code == ExitCode.USAGE
    assert "ConfigMap of 1 MiB" in large.output and "has no nemo-environment.yaml" in bare.output
    assert nothing_was_sent(cluster)


@pytest.mark.parametrize("target", ["../of-this-user", ".git/config", "..", "nowhere"])
def test_an_environment_from_elsewhere_takes_nothing_along_by_a_link(cluster, folder, target):
    (folder.parent / "of-this-user").write_text("sk-of-this-user")
    (folder / "data.txt").symlink_to(target)

    result = call("submit", *FLAGS, BUNDLED, f"--environment={folder}")

    assert result.exit_code == ExitCode.USAGE and "data.txt is a link to" in result.stderr
    assert nothing_was_sent(cluster)


def test_an_environment_without_a_slash_is_a_file_sets_name(cluster):
    assert call("submit", *FLAGS, BUNDLED, "--environment=mine").exit_code == ExitCode.DONE
    gym = sent(cluster)["AgentEvalJob"]["spec"]["target"]["gym"]
    assert gym["environment"] == {"fileSet": {"name": "mine"}}


MANIFEST = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: rows}
data: {rows.jsonl: "{}"}
---
apiVersion: evals.nhx.io/v1alpha1
kind: AgentEvalJob
metadata: {name: mine}
spec: {tasks: {}}
"""


def test_a_manifest_is_sent_as_it_stands_and_what_it_needs_first(cluster, tmp_path):
    (tmp_path / "job.yaml").write_text(MANIFEST)

    result = call("submit", tmp_path / "job.yaml")

    assert result.exit_code == ExitCode.DONE, result.output
    assert [entry["kind"] for entry in cluster.read("sent")] == ["ConfigMap", "AgentEvalJob"]
    assert len(cluster.calls("apply")) == 1 and len(cluster.calls("create")) == 1


def test_a_manifest_from_standard_input_may_be_given_another_name(cluster):
    result = call("submit", "-", "--name=other", stdin=MANIFEST)

    assert result.exit_code == ExitCode.DONE, result.output
    assert sent(cluster)["AgentEvalJob"]["metadata"] == {"name": "other"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no Kubernetes object"),
        ("a: [", "neither YAML nor JSON"),
        ("kind: ConfigMap", "holds no AgentEvalJob"),
        (MANIFEST + "---\n" + MANIFEST, "one is submitted at a time"),
        ("{kind: List, items: 3}", "holds no AgentEvalJob"),
        ("kind: AgentEvalJob", "an object of kind AgentEvalJob has no apiVersion"),
        (MANIFEST.replace("{name: mine}", "mine"), "an object of kind AgentEvalJob has no metadata"),
        (MANIFEST.replace("{tasks: {}}", "{labels: {since: 2026-01-01}}"), "AgentEvalJob.spec.labels.since is a date"),
        (MANIFEST.replace('"{}"', ".nan"), "ConfigMap.data.rows.jsonl is nan"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused(cluster, tmp_path, content, words):
    (tmp_path / "job.yaml").write_text(content)

    result = call("submit", tmp_path / "job.yaml")

    assert result.exit_code == ExitCode.USAGE and words in result.output
    assert nothing_was_sent(cluster)


def test_a_file_and_flags_that_would_contradict_it_are_refused_together(cluster, tmp_path):
    (tmp_path / "job.yaml").write_text(MANIFEST)

    result = call("submit", tmp_path / "job.yaml", "--model=other")

    assert result.exit_code == ExitCode.USAGE and "--model" in result.output
    assert nothing_was_sent(cluster)


def test_flags_that_are_missing_are_named(cluster):
    result = call("submit", "--agent=simple_agent")

    assert result.exit_code == ExitCode.USAGE
    assert "--resources-server, --dataset, --base-url, --model" in result.output


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--hydra-param=a=2026-01-01", "--hydra-param a is a date"),
        ("--hydra-param=a.b=.nan", "--hydra-param a.b is nan"),
    ],
)
def test_a_setting_that_json_has_no_form_for_is_refused(cluster, flag, words):
    result = call("submit", *FLAGS, BUNDLED, flag)

    assert result.exit_code == ExitCode.USAGE and words in result.stderr
    assert nothing_was_sent(cluster)


@pytest.mark.parametrize(
    "flag",
    [
        "--api-key=word",
        "--results=much",
        "--hydra-param=a",
        "--label=a",
        "--dataset=configmap:name",
        "--failure-rule=FailJob",
        "--failure-rule=Retry=model",
        "--failure-rule=Ignore=Evicted,model",
        "--cost-limit=tokens=many",
        "--cost-limit=money=1",
    ],
)
def test_a_flag_of_the_wrong_form_says_which_form_it_wants(cluster, flag):
    result = call("submit", *FLAGS, BUNDLED, flag)

    assert result.exit_code == ExitCode.USAGE and "wants" in result.output
    assert nothing_was_sent(cluster)


def test_a_dry_run_prints_what_kubectl_would_apply_and_asks_no_cluster(cluster):
    result = call("submit", *FLAGS, BUNDLED, "--dry-run")

    assert result.exit_code == ExitCode.DONE and cluster.calls() == []
    assert AgentEvalJob.model_validate(yaml.safe_load(result.output)).spec.policy.model == "org/name"


def test_a_dry_run_prints_rows_line_by_line(cluster, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(ROW.replace("{}", '{"input": "' + "long " * 40 + '"}') + ROW.replace("{}", '{"input": "x: # y"}'))

    output = call("submit", *FLAGS, f"--dataset={rows}", "--name=mine", "--dry-run").output

    assert "rows.jsonl: |\n" in output and '    {"responses_create_params": {"input": "x: # y"}}\n' in output
    sent = {entry["kind"]: entry for entry in yaml.safe_load_all(output)}
    assert sent["ConfigMap"]["data"] == {"rows.jsonl": rows.read_text()}


def test_a_name_that_is_taken_is_refused_and_nothing_overwritten(cluster):
    cluster.write("jobs", [{"metadata": {"name": "mine"}}])

    result = call("submit", *FLAGS, BUNDLED, "--name=mine")

    assert result.exit_code == ExitCode.REFUSED and "give this one another name" in result.output.lower()
    assert cluster.read("jobs") == [{"metadata": {"name": "mine"}}]


def test_a_job_whose_rows_are_refused_is_taken_back(cluster, tmp_path):
    cluster.write("script", {"fail_create": {"ConfigMap": ["Error from server (Forbidden): quota exceeded"]}})

    result = call("submit", *FLAGS, f"--dataset={a_row(tmp_path)}", "--name=mine")

    assert result.exit_code == ExitCode.REFUSED
    assert "ConfigMap `mine-rows`" in result.output and "quota exceeded" in result.output
    assert "removed again" in result.output and cluster.read("jobs") == []


def test_a_job_that_cannot_be_taken_back_is_named_with_the_command_that_removes_it(cluster, tmp_path):
    failing = {"fail_create": {"ConfigMap": ["no room"]}, "fail": {"delete": "you may not"}}
    cluster.write("script", failing)

    result = call("submit", *FLAGS, f"--dataset={a_row(tmp_path)}", "--name=mine")

    assert result.exit_code == ExitCode.ERROR and "you may not" in result.output
    assert "kubectl delete aej mine -n evals" in result.output


def test_what_a_deleted_job_of_that_name_still_has_is_waited_for(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.client.creation._PAUSE_SECONDS", 0.01)
    taken = 'Error from server (AlreadyExists): configmaps "mine-rows" already exists'
    cluster.write("script", {"fail_create": {"ConfigMap": [taken, taken]}})

    assert call("submit", *FLAGS, f"--dataset={a_row(tmp_path)}", "--name=mine").exit_code == ExitCode.DONE
    assert sent(cluster)["ConfigMap"]["data"] == {"rows.jsonl": ROW}


def test_an_object_of_somebody_elses_is_not_waited_for_for_ever(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.client.creation.LEFTOVER_SECONDS", 0)
    taken = 'Error from server (AlreadyExists): configmaps "mine-rows" already exists'
    cluster.write("script", {"fail_create": {"ConfigMap": [taken] * 3}})

    result = call("submit", *FLAGS, f"--dataset={a_row(tmp_path)}", "--name=mine")

    assert result.exit_code == ExitCode.REFUSED and "another name" in result.output
    assert cluster.read("jobs") == []


@pytest.mark.parametrize(("kind", "number"), [("AgentEvalJob", signal.SIGINT), ("ConfigMap", signal.SIGTERM)])
def test_an_interrupted_submission_leaves_no_half_of_a_job_and_says_so(cluster, tmp_path, kind, number):
    cluster.write("script", {"slow_create": {kind: 2}})
    process = start("submit", *FLAGS, f"--dataset={a_row(tmp_path)}", "--name=mine")
    wait_for(lambda: len(cluster.calls("create")) == (1 if kind == "AgentEvalJob" else 2))
    os.killpg(process.pid, number)

    _, errors = process.communicate(timeout=60)

    assert process.returncode == ExitCode.INTERRUPTED
    assert cluster.read("jobs") == [] and "Job `mine` was removed again" in errors, errors


def test_a_submission_in_another_thread_is_made_whole(cluster, tmp_path):
    """No signal reaches it there, and none can be held."""
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(create_job, Kubectl.find(), {"kind": "AgentEvalJob", "metadata": {"name": "mine"}}).result()
    assert job.name == "mine"


def test_what_stands_beside_a_refused_job_is_said_to_have_been_applied(cluster, tmp_path):
    cluster.write("jobs", [{"metadata": {"name": "mine"}}])
    (tmp_path / "job.yaml").write_text(MANIFEST)

    result = call("submit", tmp_path / "job.yaml")

    assert result.exit_code == ExitCode.REFUSED and "left there: ConfigMap `rows`" in result.stderr


def a_row(folder):
    (folder / "rows.jsonl").write_text(ROW)
    return folder / "rows.jsonl"


def test_an_api_server_that_refuses_is_quoted(cluster):
    words = 'The AgentEvalJob "mine" is invalid: spec.models: one entry must be named'
    cluster.write("script", {"fail": {"create": words}})

    result = call("submit", *FLAGS, BUNDLED)

    assert result.exit_code == ExitCode.REFUSED and words in result.output


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (
            'Error from server (NotFound): error when creating "STDIN": namespaces "nope" not found',
            ExitCode.REFUSED,
            "there is no namespace `nope`",
        ),
        (
            'error: the namespace from the provided object "a" does not match the namespace "b". You must pass '
            "'--namespace=a' to perform this operation.",
            ExitCode.REFUSED,
            "--namespace=a",
        ),
        ('error: resource mapping not found: no matches for kind "AgentEvalJob"', ExitCode.REFUSED, "not installed"),
        ("Unable to connect to the server: dial tcp: lookup nowhere", ExitCode.ERROR, "lookup nowhere"),
    ],
)
@pytest.mark.parametrize("verb", ["create", "apply"])
def test_what_keeps_a_job_from_being_made_is_said_for_it_and_for_what_stands_beside_it(
    cluster, tmp_path, verb, words, code, told
):
    (tmp_path / "job.yaml").write_text(MANIFEST)
    cluster.write("script", {"fail": {verb: words}})

    result = call("submit", tmp_path / "job.yaml")

    assert result.exit_code == code and told in result.stderr
    assert "ConfigMap `rows`" in result.stderr, "what became of it, or that it was the one"


def test_a_submission_that_waits_ends_with_the_jobs_end(cluster, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.cli.watch.POLL_SECONDS", 0.01)
    story = [{"phase": "Running"}, {"phase": "Failed"}]
    cluster.write("script", {"story": story})

    result = call("submit", *FLAGS, BUNDLED, "--wait", "--output=json")

    assert result.exit_code == ExitCode.JOB_FAILED, result.output
    phases = [json.loads(line)["phase"] for line in result.stdout.splitlines()]
    assert phases == ["Running", "Failed"]


def test_a_spec_file_becomes_the_job_that_it_describes(cluster):
    result = call("submit", SPEC_FILE, "--name=mine")

    assert result.exit_code == ExitCode.DONE, result.output
    spec = AgentEvalJob.model_validate(sent(cluster)["AgentEvalJob"]).spec
    assert spec.policy.base_url == "http://models.example.org/v1" and spec.policy.model == "org/name"
    assert spec.policy.api_key.secret_key_ref.to_dict() == {"name": "policy-key", "key": "value"}
    assert spec.tasks.taskset.config_map.name == "mcqa-tasks" and spec.target.gym.num_repeats == 2
    assert "hydraParams" not in sent(cluster)["AgentEvalJob"]["spec"]["target"]["gym"]


def test_flags_say_where_a_spec_files_rows_model_secrets_and_results_are(cluster, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(ROW)
    elsewhere = ("--base-url=https://here/v1", "--model=mine", "--api-key=my-model/api-key", "--results=claim:kept")

    result = call("submit", SPEC_FILE, "--name=mine", f"--dataset={rows}", "--limit=1", *elsewhere)

    assert result.exit_code == ExitCode.DONE, result.output
    spec = AgentEvalJob.model_validate(sent(cluster)["AgentEvalJob"]).spec
    assert (spec.policy.base_url, spec.policy.model) == ("https://here/v1", "mine")
    assert spec.tasks.dataset.config_map.name == "mine-rows" and spec.tasks.limit == 1
    assert spec.results.persistent_volume_claim.claim_name == "kept"
    assert sent(cluster)["ConfigMap"]["data"] == {"rows.jsonl": ROW}


def test_a_spec_files_secret_may_stand_under_another_key(cluster):
    assert call("submit", SPEC_FILE, "--secret=policy-key=my-model/api-key").exit_code == ExitCode.DONE
    spec = AgentEvalJob.model_validate(sent(cluster)["AgentEvalJob"]).spec
    assert spec.policy.api_key.secret_key_ref.to_dict() == {"name": "my-model", "key": "api-key"}


@pytest.mark.parametrize(
    "flag", ["--num-repeats=3", "--agent=other", "--limit=3", "--model=other", "--hydra-param=a=1", "--label=a=1"]
)
def test_what_a_spec_file_says_itself_is_not_changed_by_half(cluster, flag):
    result = call("submit", SPEC_FILE, flag)
    assert result.exit_code == ExitCode.USAGE and flag.partition("=")[0] in result.output
    assert nothing_was_sent(cluster)


def test_a_flag_that_is_not_valid_beside_a_spec_file_is_refused(cluster):
    result = call("submit", SPEC_FILE, "--base-url=https://here/v1", "--model=mine", "--api-key=a/b c")
    assert result.exit_code == ExitCode.USAGE and "apiKey" in result.output
    assert nothing_was_sent(cluster)


def test_a_spec_file_with_a_fault_is_refused_by_its_field(cluster, tmp_path):
    value = json.loads(SPEC_FILE.read_text())
    value["target"]["num_repeats"] = "many"
    (tmp_path / "spec.json").write_text(json.dumps(value))

    result = call("submit", tmp_path / "spec.json")

    assert result.exit_code == ExitCode.USAGE and "num_repeats" in result.output
    assert nothing_was_sent(cluster)


def test_a_gym_of_another_version_is_worth_a_warning_where_a_spec_file_is_submitted(cluster, monkeypatch):
    monkeypatch.setattr("nhx_gym_operator.cli.submit_command.version_warning", lambda: "your gym is another")
    assert "warning: your gym is another" in call("submit", SPEC_FILE).stderr
    assert "warning" not in call("submit", *FLAGS, BUNDLED).stderr


UNSEEN = [
    condition("Accepted", False, "ConfigMapNotFound", "ConfigMap 'mcqa-rows' does not exist in namespace 'evals'")
]


@pytest.mark.parametrize(("seconds", "false_alarm"), [(60, False), (0, True)])
def test_what_was_made_with_the_job_is_not_said_to_be_missing_until_the_operator_had_time(
    cluster, tmp_path, monkeypatch, seconds, false_alarm
):
    monkeypatch.setattr("nhx_gym_operator.cli.watch.POLL_SECONDS", 0.01)
    monkeypatch.setattr("nhx_gym_operator.cli.watch.SEEN_SECONDS", seconds)
    cluster.write("script", {"story": [{"phase": "Pending", "conditions": UNSEEN}, {"phase": "Succeeded"}]})
    rows = tmp_path / "rows.jsonl"
    rows.write_text(ROW)

    result = call("submit", *FLAGS, f"--dataset={rows}", "--name=mcqa", "--wait")

    first = result.stdout.splitlines()[0]
    assert ("does not exist" in first) is false_alarm
    assert false_alarm or "mcqa-rows, which was made with the job" in first
