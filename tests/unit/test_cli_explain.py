"""`kubectl nhx explain`: the cause first, then what to do, then all there is to see."""

import json
import os
import subprocess
import threading
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from nhx_gym_operator.api import conditions, outcome, waits
from nhx_gym_operator.cli import advice, explain, local_files
from nhx_gym_operator.cli.advice import by_reason
from nhx_gym_operator.cli.exits import ExitCode
from nhx_gym_operator.client.jobs import Job
from support.cli_values import SPEC, call, condition, evaluator, host, job

MISSING = "Secret 'my-model' does not exist, needed by pod 'mcqa-evaluator-1'; create it"
WAITS = [
    condition("Accepted", True, "Accepted", "runs sandboxed"),
    condition("SandboxReady", False, "GateChecking", "the gate checks"),
    condition("Running", False, "SecretNotFound", MISSING),
]
FAMILIES = [
    conditions.AcceptedReason,
    conditions.PodReason,
    conditions.StagedReason,
    conditions.SandboxReason,
    conditions.RunReason,
    conditions.NoticeReason,
]


def failed(reason, message=""):
    return [condition("Accepted", True, "Accepted"), condition("Failed", True, reason, message)]


def told(*lines):
    """The numbered lines under `What to do`."""
    text = "\n".join(lines)
    return [line.partition(". ")[2] for line in text.splitlines() if line[:1].isdigit() and line[1:3] == ". "]


def test_the_cause_comes_before_what_merely_follows_from_it(cluster):
    cluster.write("jobs", [job(phase="Starting", conditions=WAITS)])

    lines = call("explain", "mcqa").output.splitlines()

    assert lines[0].startswith("Job mcqa is starting, ")
    assert lines[1] == f"SecretNotFound: {MISSING}"


def test_what_to_do_names_the_users_own_objects(cluster):
    cluster.write("jobs", [job(phase="Starting", conditions=WAITS)])

    (create, goes_on, misnamed) = told(call("explain", "mcqa").output)

    assert "kubectl create secret generic my-model --from-file=api-key=FILE -n evals" in create
    assert "goes on by itself" in goes_on
    assert "a spec cannot change" in misnamed and "kubectl delete aej mcqa -n evals" in misnamed


@pytest.mark.parametrize(
    "reason",
    ["SecretNotFound", "SecretKeyMissing", "ConfigMapNotFound", "ConfigMapKeyMissing", "FileSetFileMissing"],
)
def test_a_job_goes_on_when_what_it_names_is_made_and_never_by_a_change_of_the_job(reason):
    lines = advice.ADVICE[reason]
    before, after = lines[: lines.index(by_reason.GOES_ON)], lines[lines.index(by_reason.GOES_ON) + 1 :]

    assert not any("in the job" in line for line in before)
    assert any("delete the job and apply it again" in line for line in after)


def of_dataset(dataset, message):
    body = job(spec={"tasks": {"dataset": dataset}}, phase="Failed", conditions=failed("DatasetInvalid", message))
    return advice.advice(Job(body), Job(body).cause)


def test_a_bundled_dataset_that_does_not_exist_has_no_row_to_correct():
    message = "no bundled dataset resources_servers/mcaq/data/example.jsonl (spec.tasks.dataset.bundled)"
    correct, _ = of_dataset({"bundled": "resources_servers/mcaq/data/example.jsonl"}, message)
    assert "spec.tasks.dataset.bundled" in correct and "row" not in correct


def test_a_bad_row_of_a_config_map_is_told_with_the_command_that_replaces_it():
    correct, again = of_dataset({"configMap": {"name": "mine", "key": "r.jsonl"}}, "rows, line 2: not a JSON value")
    assert "`kubectl create configmap mine --from-file=r.jsonl=FILE -n evals --dry-run=client -o yaml | " in correct
    assert "kubectl delete aej mcqa" in again


def test_a_bad_row_that_the_plugin_took_along_is_submitted_again():
    made = local_files.rows_name("mcqa")
    (line,) = of_dataset({"configMap": {"name": made, "key": "rows.jsonl"}}, "rows, line 2: not a JSON value")
    assert "kubectl delete aej mcqa -n evals" in line and "submit it again" in line


def test_an_error_of_the_environments_own_code_is_not_put_down_to_the_jobs_settings(cluster):
    gym = {"agent": "simple_agent", "environment": {"fileSet": {"name": "wordcheck"}}}
    bad = {"gym-host": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    ended = failed("HostStartupFailed", "`wordcheck` finished unexpectedly")
    cluster.write("jobs", [job(spec={"target": {"gym": gym}}, phase="Failed", conditions=ended)])
    cluster.write("pods", [host(states=bad)])
    log = "Traceback (most recent call last):\n  File\nSyntaxError: '(' was never closed\nINFO: others go on\n"
    cluster.add_log("mcqa-host-0-1", "gym-host", log)

    lines = told(call("explain", "mcqa").output)

    assert "own code failed" in lines[0] and "FileSet wordcheck" in lines[0] and "--role" in lines[0]
    assert not any("agentConfig" in line for line in lines)


def test_a_run_without_any_reward_is_not_told_to_ask_for_fewer():
    message = "0 of 10 rollouts have a reward; missing: 10 environment (“500”) (spec.minCoverage asks for 1 of them)"
    body = Job(job(phase="Failed", placement="Sandboxed", conditions=failed("CoverageTooLow", message)))

    lines = advice.advice(body, body.cause)

    assert not any("minCoverage" in line for line in lines)
    assert any("kubectl nhx logs mcqa --role host -n evals" in line for line in lines)


@pytest.mark.parametrize(("progress", "named"), [({"done": 0, "failed": 0}, False), ({"done": 0, "failed": 1}, True)])
def test_results_are_offered_where_something_was_recorded(cluster, progress, named):
    ended = failed("DatasetInvalid", "rows, line 1: no")
    cluster.write("jobs", [job(phase="Failed", progress={"total": 4, **progress}, conditions=ended)])
    assert ("its results are in" in call("explain", "mcqa").output) is named


def test_why_a_job_was_placed_so_comes_last_and_in_short(cluster):
    kernel = "the kernel inside RuntimeClass 'gvisor' (gVisor 4.4.0) is not the node's (6.8.0), by its boot id"
    measured = f"{kernel}; a network policy that denies is enforced (measured at 2026-11-29T12:00:00Z on node 'n')"
    placed = {"placement": "Sandboxed", "placementReason": measured}
    cluster.write("jobs", [job(phase="Starting", conditions=WAITS, progress={"summary": "0/10"}, **placed)])
    cluster.write("pods", [evaluator()])

    lines = call("explain", "mcqa").output.splitlines()

    assert lines[1] == f"SecretNotFound: {MISSING}"
    assert [line for line in lines if kernel in line] == [lines[-1]]
    assert lines[-1] == f"Placed Sandboxed: {kernel} (in full: status.placementReason)"
    assert placed.items() <= json.loads(call("explain", "mcqa", "--output=json").output).items()


def test_a_fall_back_to_one_pod_is_told_with_its_reason_and_without_what_else_could_be_done(cluster):
    found = "this cluster has no RuntimeClass 'gvisor'"
    placed = {"placement": "Colocated", "placementReason": f"{found}; an administrator can install it"}
    cluster.write("jobs", [job(conditions=[condition("Complete", True, "AllRolloutsRecorded")], **placed)])
    last = call("explain", "mcqa").output.splitlines()[-1]
    assert last == f"Placed Colocated: {found} (in full: status.placementReason)"


def test_without_a_kernel_of_its_own_the_whole_reason_is_told(cluster):
    reason = "hosts share the node's kernel (sandbox.isolation is ContainerOnly); a policy that denies is enforced"
    placed = {"placement": "Sandboxed", "isolation": "ContainerOnly", "placementReason": reason}
    cluster.write("jobs", [job(conditions=[condition("Complete", True, "AllRolloutsRecorded")], **placed)])
    assert call("explain", "mcqa").output.splitlines()[-1] == f"Placed Sandboxed: {reason}"


def test_what_gym_asked_of_other_hosts_is_a_note(cluster):
    used = {"requests": 3, "refused": 1, "passed": [{"entry": "*.example.org", "requests": 2}]}
    cluster.write("jobs", [job(phase="Starting", egress=used, conditions=WAITS)])
    said = "Gym sent 3 requests for other hosts, 1 of them refused; allowed by *.example.org (2)"
    assert any(note.startswith(said) for note in json.loads(call("explain", "mcqa", "--output=json").output)["notes"])


def test_through_a_host_that_is_silent_no_call_comes_to_a_model_so_the_host_is_looked_at_first(cluster):
    words = (
        "gym host 0 has not answered since 2026-11-29T12:00:00Z, its connections open still; model policy has answered "
        "no call since 2026-11-29T12:00:00Z"
    )
    cluster.write("jobs", [job(phase="Running", conditions=[condition("Running", True, "Collecting", words)])])
    output = call("explain", "mcqa").output
    assert "See the host" in output and "Try the endpoint" not in output


def test_white_space_around_a_key_is_a_note_and_no_part_of_the_cause(cluster):
    said = "model policy answered no call: HTTP 401 from the model server: no"
    left_out = outcome.trimmed("the API key of model 'policy'")
    cluster.write("jobs", [job(phase="Failed", conditions=failed("ModelUnavailable", f"{said}; {left_out}"))])

    lines = call("explain", "mcqa").output.splitlines()

    assert lines[1] == f"ModelUnavailable: {said}" and f"- {left_out}" in lines
    assert sum(left_out in line for line in lines) == 1


def test_a_deadlines_advice_is_about_what_was_waited_for(cluster):
    message = f"not running within 600 s (the operator's setting timeouts.waitForInputsSeconds): {MISSING}"
    cluster.write("jobs", [job(phase="Failed", conditions=failed("InputsTimeout", message))])

    lines = told(call("explain", "mcqa").output)

    assert "kubectl create secret generic my-model" in lines[0]
    assert "kubectl delete aej mcqa -n evals" in lines[-1]
    assert not any("goes on by itself" in line for line in lines)


WAITED_FOR = {
    "Secret 'k' does not exist, needed by pod 'e'; create it": "SecretNotFound",
    "Secret 'k' has no key 'v', needed by pod 'e'; add it": "SecretKeyMissing",
    "ConfigMap 'rows' does not exist in namespace 'evals'; create it or name another": "ConfigMapNotFound",
    "ConfigMap 'rows' has no key 'b'; it has 'a'": "ConfigMapKeyMissing",
    "ConfigMap 'files' of FileSet 'mine' has no key 'app.py'; it has 'a'": "ConfigMapKeyMissing",
    "ConfigMap 'files' of FileSet 'mine' is empty; add the files as keys": "FileSetNotResolved",
    "FileSet 'mine' is not one that this operator knows; apply it again: source": "FileSetNotResolved",
    "FileSet 'mine' does not exist in namespace 'evals'; create it or name another": "FileSetNotFound",
    "FileSet 'mine' has no file 'rows.jsonl'; it has 'a'": "FileSetFileMissing",
    "FileSet 'mine' has purpose 'dataset', 'environment' is needed": "FileSetWrongPurpose",
    "PersistentVolumeClaim 'rows' does not exist in namespace 'evals'; create it": "ClaimNotFound",
    "the operator may not get configmaps in namespace 'evals'; its role lacks that right: no": "AccessDenied",
    "pod 'e' finds no node: 0/1 nodes": "Unschedulable",
    "pod 'e' cannot pull the image of 'x': denied; a pull secret is missing in namespace 'evals': y": (
        "PullSecretNotFound"
    ),
    "pod 'e' cannot pull the image of 'x': not found": "ImagePullFailed",
    "pod 'e' waits for a volume: not attached": "VolumeNotReady",
    "container 'x' of pod 'e' cannot be made: no user": "ContainerConfigError",
}


@pytest.mark.parametrize("message", WAITED_FOR)
def test_every_wait_that_ran_out_is_explained_by_what_was_waited_for(message):
    """The messages are those of controller/inputs.py and controller/policies/podproblems.py."""
    ended = condition("Failed", True, "InputsTimeout", f"{message}; still so after 600 s (the operator's setting x)")
    cause = condition("Accepted", False, WAITED_FOR[message], message)
    body = Job(job(phase="Failed", conditions=[ended]))

    (expected, *_), (first, *_) = advice.advice(body, cause), advice.advice(body, ended)

    assert first == expected


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("HTTP 401 from the model server: bad key", "kubectl get secret my-model -n evals"),
        ("HTTP 404 from the model server: no such model", "https://models.example.org/v1/models"),
        ("given up after 3 tries: HTTP 429 from the model server: slow down", "target.gym.concurrency"),
        (
            "given up after 3 tries: ClientConnectorError: Cannot connect to host models.example.org:443",
            "does not reach https://models.example.org/v1",
        ),
        (
            "ClientConnectorCertificateError: Cannot connect to host models.example.org:443 ssl:True "
            "[SSLCertVerificationError: certificate verify failed]",
            "does not trust the certificate",
        ),
        ("something else", "model org/name, key api-key of Secret my-model."),
    ],
)
def test_a_model_that_answers_no_call_is_explained_by_its_own_words(cluster, answer, words):
    message = f"model policy answered no call: {answer}"
    cluster.write("jobs", [job(phase="Failed", conditions=failed("ModelUnavailable", message))])

    assert words in call("explain", "mcqa").output


def test_a_judge_that_answers_no_call_is_explained_by_its_own_endpoint(cluster):
    key = {"secretKeyRef": {"name": "judges-key", "key": "k"}}
    judge = {"name": "judge", "baseUrl": "https://judge.example.org/v1/", "model": "org/judge", "apiKey": key}
    message = "model judge answered no call: HTTP 401 from the model server: bad key"
    body = job(
        spec={"models": [*SPEC["models"], judge]}, phase="Failed", conditions=failed("ModelUnavailable", message)
    )
    cluster.write("jobs", [body])

    output = call("explain", "mcqa").output

    assert "https://judge.example.org/v1/models" in output and "judges-key" in output
    assert "models.example.org" not in output


@pytest.mark.parametrize(
    ("answer", "words"),
    [("HTTP 401 from the model server: no key", "The endpoint wants a key"), ("something else", "without a key")],
)
def test_a_model_without_a_key_is_not_advised_about_one_that_it_does_not_have(cluster, answer, words):
    models = [{name: value for name, value in SPEC["models"][0].items() if name != "apiKey"}]
    conditions = failed("ModelUnavailable", f"model policy answered no call: {answer}")
    cluster.write("jobs", [job(spec={"models": models}, phase="Failed", conditions=conditions)])

    output = call("explain", "mcqa").output

    assert words in output and "Secret ?" not in output and "key KEY" not in output


class Endpoint(BaseHTTPRequestHandler):
    """Keeps the headers of what it was asked."""

    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self):
        self.asked.append((self.path, self.headers.get("Authorization")))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("answer", ["HTTP 401: bad key", "HTTP 404: no such model", "something else"])
def test_the_command_that_tries_a_model_sends_its_key_and_has_it_on_no_command_line(cluster, tmp_path, answer):
    Endpoint.asked.clear()
    endpoint = HTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=endpoint.handle_request, daemon=True).start()
    url = f"http://127.0.0.1:{endpoint.server_address[1]}/v1"
    message = f"model policy answered no call: {answer}"
    models = [SPEC["models"][0] | {"baseUrl": url}]
    body = job(spec={"models": models}, phase="Failed", conditions=failed("ModelUnavailable", message))
    tries = next(line for line in advice.advice(Job(body), body["status"]["conditions"][-1]) if "curl" in line)
    # Renders the one template that is asked for, as kubectl does.
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\nprintf %s "$7" | sed "s/^go-template=//; s/{{[^}]*}}/sk-the-key/"\n')
    kubectl.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    subprocess.run(["bash", "-c", tries.split("`")[1]], check=True, env={"PATH": path}, timeout=20)

    assert Endpoint.asked == [("/v1/models", "Bearer sk-the-key")]
    assert "$(" not in tries


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("Starting", "Gym may take up to 8m to start (spec.target.gym.startupTimeoutSeconds)"),
        ("Running", "all rollouts together may take up to 125m (spec.target.gym.collectionTimeoutSeconds)"),
    ],
)
def test_a_job_on_its_way_is_told_with_how_long_it_may_take(cluster, phase, words):
    gym = {"agent": "simple_agent", "startupTimeoutSeconds": 480, "collectionTimeoutSeconds": 7500}
    cluster.write("jobs", [job(spec={"target": {"gym": gym}}, phase=phase, conditions=WAITS)])
    assert words in call("explain", "mcqa").output


def test_a_job_that_nobody_looked_at_points_at_the_operator(cluster):
    body = job()
    body["status"] = {}
    cluster.write("jobs", [body])

    result = call("explain", "mcqa")

    assert "No operator has looked at this job" in result.output and "namespace evals" in result.output


def test_a_job_on_its_way_is_not_given_advice(cluster):
    cluster.write("jobs", [job(phase="Running", conditions=[condition("Running", True, "Collecting", "collecting")])])

    assert "What to do" not in call("explain", "mcqa").output


@pytest.mark.parametrize("reason", ["SandboxUnavailable", "SandboxNotMeasured"])
def test_a_job_that_waits_for_a_sandbox_is_not_to_be_deleted_and_one_that_has_failed_for_it_is(reason):
    waits = Job(job(phase="Pending", conditions=[condition("Accepted", False, reason)]))
    failed = Job(job(phase="Failed", conditions=[condition("Failed", True, reason)]))
    assert not any("kubectl delete" in line for line in advice.advice(waits, waits.cause))
    assert any("kubectl delete" in line for line in advice.advice(failed, failed.cause))
    assert not any("goes on by itself" in line for line in advice.advice(failed, failed.cause))


@pytest.mark.parametrize(("phase", "waits_still"), [("Pending", True), ("Failed", False), ("Cancelled", False)])
@pytest.mark.parametrize("how", ["table", "json"])
def test_a_job_that_has_ended_is_not_said_to_wait_until_some_time(cluster, phase, waits_still, how):
    missing = "ConfigMap 'rows' does not exist in namespace 'evals'; create it or name another"
    waiting = missing + waits.until("2026-01-01T00:05:00Z", "the operator's setting timeouts.waitForInputsSeconds")
    ended = [] if waits_still else failed("InputsTimeout", f"{missing}; still so after 300 s")[1:]
    found = [condition("Accepted", False, "ConfigMapNotFound", waiting if waits_still else missing), *ended]
    cluster.write("jobs", [job(phase=phase, conditions=found)])
    cluster.write("events", [event("4f2c", waiting, "2026-01-01T00:01:00Z", "AgentEvalJob", "mcqa")])

    output = call("explain", "mcqa", f"--output={how}").output

    assert missing in output and ("it waits until" in output) is waits_still


@pytest.mark.parametrize("words", ["exceeded quota: pods", "range is full"])
def test_a_job_that_failed_for_want_of_room_is_not_said_to_ask_again_by_itself(words):
    waiting = Job(job(phase="Pending", conditions=[condition("Running", False, "PodRefused", words)]))
    ended = Job(job(phase="Failed", conditions=failed("PodRefused", words)))
    assert any("by itself" in line for line in advice.advice(waiting, waiting.cause))
    assert not any("by itself" in line for line in advice.advice(ended, ended.cause))
    assert "apply it again" in advice.advice(ended, ended.cause)[-1]


def test_the_last_words_of_a_container_that_ended_badly_are_shown(cluster):
    bad = {"gym-host": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    cluster.write("jobs", [job(phase="Failed", conditions=failed("HostStartupFailed", "Gym did not start"))])
    cluster.write("pods", [evaluator(), host(states=bad)])
    cluster.add_log("mcqa-host-0-1", "gym-host", "KeyError: 'simple_agnet'\n")

    output = call("explain", "mcqa").output

    assert "Last lines of mcqa-host-0-1/gym-host\n| KeyError: 'simple_agnet'" in output
    assert "gym-host ended with exit code 1 (Error)" in output


def test_what_is_odd_about_the_data_is_said_beside_the_jobs_own_end(cluster):
    said = "5 rows, 1 distinct"
    ends = [condition("Complete", True, "AllRolloutsRecorded"), condition("RowsCollapsed", True, "DuplicateRows", said)]
    cluster.write("jobs", [job(conditions=ends)])

    output = call("explain", "mcqa").output

    assert "has succeeded" in output.splitlines()[0]
    assert f"- RowsCollapsed: {said}" in output and "target.gym.numRepeats" in output


def event(uid, message, when, kind="Pod", name="mcqa-evaluator-1"):
    about = {"kind": kind, "name": name, "uid": uid}
    return {"metadata": {}, "involvedObject": about, "reason": "Why", "message": message, "lastTimestamp": when}


LOG = """\
(agent) INFO: ready
Traceback (most recent call last):
  File "/app.py", line 4, in <module>
    run()
    ~~~^^
pydantic_core.ValidationError: 1 validation error for Config
grading_mode
  Input should be 'boxed'
    For further information visit the page
more
"""


def test_the_exception_is_found_although_others_went_on_logging(cluster):
    bad = {"gym-host": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    cluster.write("jobs", [job(phase="Failed", conditions=failed("HostStartupFailed", "`mcqa` finished unexpectedly"))])
    cluster.write("pods", [host(states=bad)])
    cluster.add_log("mcqa-host-0-1", "gym-host", LOG + "(agent) INFO: still here\n" * 50)

    output = call("explain", "mcqa").output

    errors = output[output.index("Errors in the log of mcqa-host-0-1/gym-host") :].splitlines()[1:5]
    assert errors == [
        "| pydantic_core.ValidationError: 1 validation error for Config",
        "| grading_mode",
        "|   Input should be 'boxed'",
        "|     For further information visit the page",
    ]
    assert output.count("still here") == 10


def test_a_log_without_an_exception_has_no_errors_and_a_torn_one_breaks_nothing():
    assert explain.exceptions_in(["INFO: fine"]) == []
    assert explain.exceptions_in(["Traceback (most recent call last):", "  File"]) == []


def test_a_log_that_the_cause_quotes_is_not_shown_twice(cluster):
    bad = {"gym-host": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    quoted = "Gym did not start; it said:\n  line 1\nKeyError: 'simple_agnet'"
    cluster.write("jobs", [job(phase="Failed", conditions=failed("HostStartupFailed", quoted))])
    cluster.write("pods", [host(states=bad)])
    cluster.write("events", [event("4f2c", quoted, "2026-01-01T00:01:00Z", "AgentEvalJob", "mcqa")])
    cluster.add_log("mcqa-host-0-1", "gym-host", "line 1\nKeyError: 'simple_agnet'\n")

    output = call("explain", "mcqa").output

    assert output.count("KeyError") == 1


def test_a_node_that_was_too_busy_is_no_fault_of_the_configuration(cluster):
    words = "gym env start ended with 1: Exception: The current node timed out during startup."
    cluster.write("jobs", [job(phase="Failed", conditions=failed("HostStartupFailed", words))])

    output = call("explain", "mcqa").output

    assert "too busy" in output and "agentConfig" not in output


def test_of_a_node_that_was_too_busy_each_time_the_same_is_said_at_the_end(cluster):
    words = "pod 'a' ended without an outcome: GCS has become overloaded; 7 attempts were lost"
    cluster.write("jobs", [job(phase="Failed", conditions=failed("BackoffLimitExceeded", words))])
    assert "more CPU" in call("explain", "mcqa").output


@pytest.mark.parametrize(("placement", "role"), [("Sandboxed", "host"), ("Colocated", "evaluator")])
def test_gyms_log_is_looked_for_where_gym_ran(cluster, placement, role):
    cluster.write("jobs", [job(phase="Failed", placement=placement, conditions=failed("HostStartupFailed", "no"))])
    assert f"kubectl nhx logs mcqa --role {role} -n evals" in call("explain", "mcqa").output


def test_events_of_the_job_and_its_pods_are_shown_and_no_others(cluster):
    cluster.write("jobs", [job(phase="Starting", conditions=WAITS)])
    cluster.write("pods", [evaluator()])
    cluster.write(
        "events",
        [
            event("uid-of-mcqa-evaluator-1", "the second", "2026-01-01T00:02:00Z"),
            event("4f2c", "the first", "2026-01-01T00:01:00Z", "AgentEvalJob", "mcqa"),
            event("someone else's", "not ours", "2026-01-01T00:01:00Z"),
        ],
    )

    output = call("explain", "mcqa").output

    assert output.index("the first") < output.index("the second")
    assert "not ours" not in output


def test_an_event_stands_where_it_was_told_and_not_where_its_condition_began(cluster):
    began, later = "2026-01-01T00:01:00Z", "2026-01-01T00:05:00.5Z"
    cancelling = event("4f2c", "cancelling", began, "AgentEvalJob", "mcqa") | {"metadata": {"creationTimestamp": later}}
    others = [event("4f2c", "collecting", "2026-01-01T00:02:00Z", "AgentEvalJob", "mcqa")]
    cluster.write("jobs", [job(phase="Running", conditions=WAITS)])
    cluster.write("events", [cancelling, *others])

    output = call("explain", "mcqa").output

    assert output.index("collecting") < output.index("cancelling")


def test_events_of_one_second_stand_in_the_order_in_which_they_came(cluster):
    when = "2026-01-01T00:01:00Z"
    both = [
        event("4f2c", words, when, "AgentEvalJob", "mcqa") | {"metadata": {"resourceVersion": version}}
        for words, version in (("collecting", "1001"), ("accepted", "999"))
    ]
    cluster.write("jobs", [job(phase="Running", conditions=WAITS)])
    cluster.write("events", both)

    output = call("explain", "mcqa").output

    assert output.index("accepted") < output.index("collecting")


def test_a_phase_of_a_newer_operator_is_told_as_it_stands(cluster):
    cluster.write("jobs", [job(phase="Resting", conditions=WAITS)])
    assert call("explain", "mcqa").output.startswith("Job mcqa is Resting, ")


def test_a_user_who_may_not_read_events_still_gets_the_rest(cluster):
    cluster.write("jobs", [job(phase="Starting", conditions=WAITS)])
    cluster.write("script", {"fail_kind": {"events": "Error from server (Forbidden): events is forbidden"}})

    result = call("explain", "mcqa")

    assert result.exit_code == ExitCode.DONE
    assert MISSING in result.output and "they cannot be read" in result.output


def test_json_holds_the_same(cluster):
    cluster.write("jobs", [job(phase="Starting", conditions=WAITS)])
    cluster.write("pods", [evaluator()])

    found = json.loads(call("explain", "mcqa", "-o", "json").output)

    assert found["cause"]["reason"] == "SecretNotFound" and "create secret" in found["advice"][0]
    assert found["pods"][0]["name"] == "mcqa-evaluator-1" and found["conditions"] == WAITS


def test_a_job_of_another_controller_is_said_to_be_one(cluster):
    managed = job()
    managed["spec"] = {**(managed.get("spec") or {}), "managedBy": "example.com/other"}
    managed.pop("status", None)
    cluster.write("jobs", [managed])
    found = json.loads(call("explain", "mcqa", "-o", "json").output)
    assert "example.com/other" in found["advice"][0] and "watchNamespaces" not in found["advice"][0]


@pytest.mark.parametrize("reason", [reason for family in FAMILIES for reason in family])
def test_every_reason_has_its_advice_or_needs_none(reason: StrEnum):
    assert (reason in advice.ADVICE) != (reason in advice.SELF_EXPLAINED), (
        f"say in cli/advice/by_reason.py what to do about {reason!r}, or list it in SELF_EXPLAINED"
    )


@pytest.mark.parametrize("reason", advice.ADVICE)
def test_every_advice_can_be_given_about_a_job_of_which_little_is_known(reason):
    body = {"metadata": {"name": "mcqa", "namespace": "evals", "uid": "1"}, "status": {"conditions": failed(reason)}}
    assert all(advice.advice(Job(body), condition("Failed", True, reason, "words")))
    assert advice.advice(Job(job(conditions=failed(reason))), condition("Failed", True, reason, "words"))
