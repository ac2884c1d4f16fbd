"""Every way to get stuck that has a name: what is seen of it, what it means, and which test provokes it.

The one table that docs/troubleshooting.md is made of (`python -m support.stuck docs/troubleshooting.md`), and that the
tests which provoke a state hold the job against: `seen` while it waits, `ended` at its end.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

from nhx_gym_operator.api.page_writer import write_page
from nhx_gym_operator.cli.advice import advice
from nhx_gym_operator.client.jobs import Job
from support import cli_values

UNTIL = "; it waits until … at most (…"


@dataclass(frozen=True)
class State:
    """One way to get stuck. `…` in what is said stands for whatever the case brings."""

    name: str
    phase: str
    """What `kubectl get aej` shows in its column PHASE meanwhile."""
    says: str
    """`REASON: message` of the line that `kubectl nhx explain` begins with."""
    cause: str
    fix: str
    advised: str
    """Words of the advice that `kubectl nhx explain` gives. Empty: none, since nothing is to be done."""
    until: str
    """When it ends by itself, and how."""
    end: tuple[str, ...]
    """Reasons of `Failed` that it ends with; empty: it does not end the job."""
    tests: tuple[str, ...]

    @property
    def reason(self) -> str:
        return self.says.partition(": ")[0]

    @property
    def message(self) -> str:
        return self.says.partition(": ")[2]


def state(name: str) -> State:
    return next(each for each in STATES if each.name == name)


def is_seen(name: str, job: dict[str, Any]) -> bool:
    """Whether a job, as the API server has it, shows the state as the page says."""
    expected, found = state(name), Job(job)
    cause = found.cause
    return (
        found.phase == expected.phase
        and cause.get("reason") == expected.reason
        and bool(re.fullmatch(_pattern(expected.message), cause.get("message", ""), re.DOTALL))
    )


def assert_seen(name: str, job: dict[str, Any]) -> None:
    """That it does, and that `kubectl nhx explain` advises what the page says."""
    expected, found = state(name), Job(job)
    said = f"{found.cause.get('reason')}: {found.cause.get('message')}"
    there = f"there is {found.phase}, {said!r}"
    assert is_seen(name, job), f"{name}: {expected.phase}, {expected.says!r} is expected; {there}"
    told = "\n".join(advice(found, found.cause))
    assert expected.advised in told and bool(told) == bool(expected.advised), told


def assert_ended(name: str, job: dict[str, Any]) -> None:
    """That the job has failed with a reason that the page names."""
    found = Job(job)
    assert found.phase == "Failed" and found.cause["reason"] in state(name).end, found.cause


def assert_said(name: str, message: str) -> None:
    """The same where a part of the job says it, whose words the operator takes over as they are."""
    assert_seen(name, job_that_says(name, message))


def job_that_says(name: str, message: str) -> dict[str, Any]:
    """A job in that state, as the API server has it, with these words for it."""
    expected = state(name)
    kind, holds = ("Failed", True) if expected.phase == "Failed" else ("Running", expected.phase == "Running")
    conditions = [cli_values.condition(kind, holds, expected.reason, message)]
    return cli_values.job(phase=expected.phase, conditions=conditions)


def example(expected: State) -> str:
    """A message as it might be."""
    return expected.message.replace("…", "1")


def _pattern(text: str) -> str:
    return ".*".join(map(re.escape, text.split("…")))


_START = "`timeouts.podStartSeconds` of the chart (15 minutes) after the pod was made: `PodStartTimeout`"
_INPUTS = "`timeouts.waitForInputsSeconds` of the chart (5 minutes): `InputsTimeout`"
_ADMISSION = "`timeouts.podAdmissionSeconds` of the chart (an hour): `PodRefused`"
_ATTEMPTS = "after `spec.backoffLimit` (6) further attempts: `BackoffLimitExceeded`"
_MODEL = (
    "each call ends after the model's `timeoutSeconds` (10 minutes) and `maxRetries`, each rollout with its call; "
    "the job "
    "with `ModelUnavailable` if no call was answered, else by `spec.minCoverage`"
)
_TRY = "try the endpoint with the command that explain prints"
_CALL = "; a call may take spec.models[name=policy].timeoutSeconds = …; if nothing comes, collection ends at … (…)"
_SILENCE = (
    "tests/unit/test_evaluator_silence.py::test_a_model_that_does_not_answer_is_named_with_its_words_and_both_bounds"
)
_E2E = "tests/e2e/test_stuck.py::"
_CLUSTER = "tests/cluster/test_stuck.py::"
_REAL = "tests/chaos/test_stuck.py::"
_NEVER = f"{_REAL}test_models_that_never_answer_are_named_with_their_words_and_end_their_jobs"

STATES = (
    State(
        "The image is missing, or may not be pulled",
        "Starting",
        f"ImagePullFailed: pod … cannot pull the image of …{UNTIL}",
        "registry or tag are wrong, the node does not reach the registry, or a pull secret is missing or wrong",
        "mend the chart's `image` values or the pull secret; a pod that exists is tried again by itself",
        "Check image.registry and image.tag",
        _START,
        ("PodStartTimeout",),
        (
            f"{_E2E}test_a_state_is_named_within_a_minute_and_ended_by_its_deadline",
            "tests/cluster/test_admission.py::test_a_pull_secret_that_is_missing_is_named_with_its_namespace_and_image",
        ),
    ),
    State(
        "The image is slow to pull, a volume slow to mount",
        "Starting",
        f"PodsCreated: pod … is being set up on node …: images and volumes{UNTIL}",
        "nothing is wrong so far",
        "wait; pull large images onto the nodes beforehand",
        "",
        _START,
        ("PodStartTimeout",),
        (f"{_CLUSTER}test_an_image_that_is_slow_to_pull",),
    ),
    State(
        "A command that the image does not have",
        "Starting",
        "EvaluatorLost: pod … ended without an outcome: StartError, exit code …: … executable file not found …; "
        "attempt … "
        "follows at …",
        "an image of the chart's `images` is not one of this project, or not made from one",
        "name an image that is",
        "An image of the chart's images",
        _ATTEMPTS,
        ("BackoffLimitExceeded",),
        (
            f"{_CLUSTER}test_a_command_that_the_image_does_not_have",
            f"{_E2E}test_a_state_is_named_within_a_minute_and_ended_by_its_deadline",
        ),
    ),
    State(
        "The evaluator runs and does not answer",
        "Starting",
        "PodsCreated: pod … runs and does not answer the operator: …",
        "an image of the chart's `images` has a program of its own and runs that; or a network policy keeps the "
        "operator from the pods of the job's namespace, of which only the end is told then",
        "name an image of this project; let the operator reach port 8080 of the pods",
        "See what it is doing",
        "`spec.activeDeadlineSeconds`, where it is set: a pod that may be at work is ended for nothing else",
        ("DeadlineExceeded",),
        (
            f"{_CLUSTER}test_an_image_with_a_program_of_its_own",
            f"{_E2E}test_a_state_is_named_within_a_minute_and_ended_by_its_deadline",
        ),
    ),
    State(
        "A Secret is missing or late",
        "Starting",
        f"SecretNotFound: Secret … does not exist, needed by pod …; create it{UNTIL}",
        "a model's `apiKey`, `envSecrets` or a bucket's credentials name a Secret that is not in the namespace; the "
        "kubelet "
        "says so, since the operator may not read Secrets",
        "create it; the job goes on by itself",
        "kubectl create secret generic",
        _INPUTS,
        ("InputsTimeout",),
        (
            f"{_CLUSTER}test_a_secret_that_is_missing",
            f"{_REAL}test_a_secret_that_is_deleted_midway_is_missed_by_the_next_attempt_which_goes_on_once_it_is_back",
            "tests/e2e/test_life.py::test_what_is_missing_is_named_one_after_the_other_and_the_job_goes_on_by_itself",
        ),
    ),
    State(
        "A ConfigMap is missing or late",
        "Pending",
        f"ConfigMapNotFound: ConfigMap … does not exist in namespace …; create it or name another{UNTIL}",
        "the dataset, the certificates or a FileSet name one that is not in the namespace",
        "create it; the job goes on by itself",
        "kubectl create configmap",
        _INPUTS,
        ("InputsTimeout",),
        (
            f"{_CLUSTER}test_what_a_job_names_is_missing",
            "tests/cluster/test_status.py::test_a_missing_config_map_is_named_and_the_job_recovers_when_it_comes",
        ),
    ),
    State(
        "A FileSet is missing or late",
        "Pending",
        f"FileSetNotFound: FileSet … does not exist in namespace …; create it or name another{UNTIL}",
        "the job's environment or dataset names one that is not in the namespace",
        "apply it; the job goes on by itself",
        "Apply the FileSet",
        _INPUTS,
        ("InputsTimeout",),
        (
            f"{_CLUSTER}test_what_a_job_names_is_missing",
            "tests/cluster/test_status.py::test_an_environment_waits_for_its_fileset_and_is_mounted_into_staging",
        ),
    ),
    State(
        "A claim is missing or late",
        "Pending",
        f"ClaimNotFound: PersistentVolumeClaim … does not exist in namespace …; create it or name another{UNTIL}",
        "`spec.results`, the dataset or a FileSet name a claim that is not in the namespace",
        "create it, or let the job make one (`size` in place of `claimName`)",
        "Create the claim",
        _INPUTS,
        ("InputsTimeout",),
        (
            f"{_CLUSTER}test_what_a_job_names_is_missing",
            "tests/cluster/test_status.py::test_a_claim_that_is_not_there_is_asked_for_by_name",
        ),
    ),
    State(
        "What a job names is deleted in the middle of its run",
        "Pending",
        f"ConfigMapNotFound: ConfigMap … does not exist in namespace …; create it or name another{UNTIL}",
        "pods that run keep what they mounted, and the job goes on; only a next attempt misses it",
        "create it anew",
        "kubectl create configmap",
        _INPUTS,
        ("InputsTimeout",),
        (f"{_CLUSTER}test_what_a_job_names_is_deleted_in_the_middle_of_its_run",),
    ),
    State(
        "A claim never binds",
        "Starting",
        f"Unschedulable: pod … finds no node: … unbound immediate PersistentVolumeClaims…{UNTIL}",
        "its StorageClass does not exist, has no room, or waits for a volume that nobody makes",
        "`kubectl describe pvc` has the cause; name another `storageClassName` in a new job",
        "kubectl describe pvc",
        _START,
        ("PodStartTimeout",),
        (f"{_E2E}test_a_state_is_named_within_a_minute_and_ended_by_its_deadline",),
    ),
    State(
        "The quota is used up",
        "Pending",
        f"PodRefused: … exceeded quota: …{UNTIL}",
        "the namespace's ResourceQuota leaves no room for both of the job's pods; none of them is kept meanwhile",
        "wait for others to end, or have the quota raised; the job asks again every half minute",
        "kubectl describe resourcequota,limitrange",
        _ADMISSION,
        ("PodRefused",),
        (
            f"{_CLUSTER}test_a_quota_that_is_used_up",
            f"{_REAL}test_four_jobs_share_a_quota_for_two_and_all_succeed",
            "tests/cluster/test_children.py::test_a_quota_that_refuses_one_pod_withdraws_the_other",
        ),
    ),
    State(
        "A LimitRange refuses the pods",
        "Pending",
        f"PodRefused: … maximum memory usage per Container is …{UNTIL}",
        "the namespace allows less per container than the chart's `resources` ask for",
        "have the LimitRange raised, or the chart's `resources` lowered",
        "kubectl describe resourcequota,limitrange",
        _ADMISSION,
        ("PodRefused",),
        (f"{_CLUSTER}test_a_limit_range_that_refuses_the_pods",),
    ),
    State(
        "An admission webhook refuses the pods",
        "Pending",
        f"PodRefused: … admission webhook … denied the request: …{UNTIL}",
        "a policy of the cluster does not want such pods; its own words are in the message",
        "ask whoever looks after that policy",
        "If a policy of the cluster refused the pod",
        _ADMISSION,
        ("PodRefused",),
        (f"{_CLUSTER}test_a_webhook_that_refuses_the_pods",),
    ),
    State(
        "The cluster has no Service address left",
        "Pending",
        f"PodRefused: Service … was refused: … range is full{UNTIL}",
        "every address that the cluster has for Services is in use; a sandboxed job has a Service",
        "delete Services that nobody needs, or have the range enlarged by a ServiceCIDR; the job asks again every half "
        "minute",
        "no address left for another Service",
        _ADMISSION,
        ("PodRefused",),
        (f"{_CLUSTER}test_a_range_of_service_addresses_that_is_full",),
    ),
    State(
        "No node fits",
        "Starting",
        f"Unschedulable: pod … finds no node: … nodes are available: …{UNTIL}",
        "no node has the memory or CPU free, or has the labels and taints that the chart's `pods` ask for",
        "wait for room, or have the chart's `resources`, `pods.nodeSelector` and `pods.tolerations` changed",
        "kubectl describe nodes",
        _START,
        ("PodStartTimeout",),
        (f"{_E2E}test_a_state_is_named_within_a_minute_and_ended_by_its_deadline",),
    ),
    State(
        "A node is not ready",
        "Running",
        "NodeNotReady: node … of pod … has not reported since …, so that what is said of the pod may be old; unless "
        "the node "
        "comes back, the pod is given up at … and its work done again elsewhere",
        "the kubelet or the node's network is down; the pod may be at work all the same",
        "bring the node back, or delete it",
        "kubectl get nodes",
        "what the pod tolerates (Kubernetes' default: 5 minutes), then as for a node that is drained; "
        "`timeouts.podStartSeconds` of the chart (15 minutes) more while no node at all reports",
        (),
        (
            f"{_CLUSTER}test_a_node_that_falls_silent",
            f"{_REAL}test_a_node_that_does_not_report_is_named_and_its_pods_go_on",
        ),
    ),
    State(
        "A pod is to end on a node that does not report",
        "Starting",
        f"EvaluatorLost: pod … was told to end (…), its grace period is over, and node … does not say that it has "
        f"ended; "
        f"attempt … follows once it is gone{UNTIL}",
        "the node is away, and the cluster gave its pods up; a second evaluator at the same claim would be worse "
        "than a wait",
        "delete the node if it is gone for good: its pods go with it, and the next attempt starts",
        "kubectl delete node NODE",
        "`timeouts.podStartSeconds` of the chart (15 minutes): `EvaluatorLost`",
        ("EvaluatorLost",),
        (
            f"{_CLUSTER}test_a_node_that_falls_silent",
            "tests/unit/test_decide_end.py::test_pods_that_never_end_do_not_hold_the_job_for_ever",
        ),
    ),
    State(
        "A node is gone",
        "Starting",
        "EvaluatorLost: the evaluator pod of attempt … is gone…; attempt … follows at …",
        "the node was deleted, and its pods with it",
        "nothing: the next attempt collects only what is missing",
        "Nothing needs to be done",
        _ATTEMPTS,
        ("BackoffLimitExceeded",),
        (f"{_CLUSTER}test_a_node_that_is_gone",),
    ),
    State(
        "A node is drained",
        "Starting",
        "EvaluatorLost: … EvictionByEvictionAPI: …; attempt … follows at …",
        "`kubectl drain`, or a node that is taken out of service",
        "nothing: the next attempt collects only what is missing",
        "Nothing needs to be done",
        _ATTEMPTS,
        ("BackoffLimitExceeded",),
        (
            f"{_CLUSTER}test_a_node_that_is_drained",
            f"{_REAL}test_an_evaluator_whose_node_is_drained_is_followed_by_another",
        ),
    ),
    State(
        "A pod is evicted",
        "Starting",
        "EvaluatorLost: pod … ended without an outcome: Evicted: …; attempt … follows at …",
        "the node was short of memory or disk, or the pod wrote more than its limit of ephemeral-storage",
        "nothing at first; if it comes again, raise the requests in the chart's `resources`",
        "Nothing needs to be done",
        _ATTEMPTS,
        ("BackoffLimitExceeded",),
        (
            f"{_CLUSTER}test_a_pod_that_is_evicted",
            f"{_E2E}test_a_state_is_named_within_a_minute_and_ended_by_its_deadline",
        ),
    ),
    State(
        "The evaluator of a job on an emptyDir is lost",
        "Failed",
        "ResultsLost: …, and with it the emptyDir that held the results; to survive this, set "
        "spec.results.persistentVolumeClaim",
        "what had been collected is gone with the pod, and collecting it again would be a second bill that nobody "
        "asked for",
        "apply the job under another name, with `spec.results.persistentVolumeClaim`",
        "Let the next run keep its results",
        "at once",
        ("ResultsLost",),
        (f"{_REAL}test_the_results_of_a_job_on_an_emptydir_go_with_its_evaluator",),
    ),
    State(
        "The evaluator runs out of memory",
        "Starting",
        "EvaluatorRestarting: the evaluator ended without an outcome: OOMKilled, exit code 137; it … started again in "
        "its pod, time … of … at most…",
        "its limit is too low for the results that it holds at a time",
        "raise the chart's `resources.evaluator` (colocated: `resources.gymTasks`)",
        "needs more memory",
        "the third such end in a pod loses the attempt (with a `backoffLimit` of 1 the second): next row",
        ("BackoffLimitExceeded",),
        (
            f"{_E2E}test_a_state_is_named_within_a_minute_and_ended_by_its_deadline",
            f"{_CLUSTER}test_an_evaluator_that_is_killed_again_and_again",
        ),
    ),
    State(
        "The evaluator runs out of memory again and again",
        "Starting",
        "EvaluatorLost: pod … ended without an outcome: OOMKilled, exit code 137…; attempt … follows at …",
        "as above; before Kubernetes 1.35 an evaluator is not started again in its pod, and this is seen at once",
        "raise the chart's `resources.evaluator` (colocated: `resources.gymTasks`)",
        "needs more memory",
        _ATTEMPTS,
        ("BackoffLimitExceeded",),
        (
            f"{_E2E}test_an_evaluator_that_runs_out_of_memory_again_and_again_loses_its_attempts",
            f"{_CLUSTER}test_an_evaluator_that_is_killed_again_and_again",
        ),
    ),
    State(
        "A gym host runs out of memory",
        "Running",
        "HostLost: …; pod … ended without an outcome: OOMKilled, exit code 137",
        "its limit is too low for Gym and the environment; a host that was lost is replaced within the attempt",
        "raise the chart's `resources.gymHost`",
        "the chart's resources.gymHost",
        "after `spec.backoffLimit` (6) replaced hosts: `HostLost`",
        ("HostLost",),
        (f"{_CLUSTER}test_a_gym_host_that_runs_out_of_memory",),
    ),
    State(
        "A child of the gym host runs out of memory",
        "Failed",
        "HostStartupFailed: … memory …",
        "the kernel killed one of Gym's servers, or what it started: the host says how often that has happened",
        "raise the chart's `resources.gymHost`",
        "Gym could not start",
        "at once",
        ("HostStartupFailed", "HostLost"),
        ("tests/unit/test_gym_host_process.py::test_a_failure_says_that_memory_ran_out_and_what_to_raise",),
    ),
    State(
        "An init container fails",
        "Failed",
        "SandboxOpen: …",
        "`sandbox-gate`: an address that must be out of reach answered (`SandboxOpen`), or nothing could be shown "
        "(`GateFailed`); `stage-environment` and `stage-dataset`: a FileSet cannot be read (`StagingFailed`)",
        "what its message says: have network policies enforced, or correct the FileSet",
        "Pods can reach what they must not",
        "at once",
        ("SandboxOpen", "GateFailed", "StagingFailed"),
        (
            "tests/e2e/test_sandbox.py::test_a_gate_that_reaches_what_it_must_not_stops_the_host",
            "tests/cluster/test_status.py::test_a_dataset_that_cannot_be_fetched_fails_the_job_and_shows_on_its_fileset",
            "tests/unit/policies/test_hosts.py::test_a_gate_that_did_not_pass_is_a_fault_in_its_own_words",
        ),
    ),
    State(
        "Gym's servers never get ready",
        "Starting",
        "HostStarting: the gate passed; Gym's servers are starting; it waits until … at most "
        "(spec.target.gym.startupTimeoutSeconds)",
        "the environment loads something large, waits for something out of reach, or the node is too busy",
        "see what it waits for in the host's log, or raise `startupTimeoutSeconds`",
        "",
        "`spec.target.gym.startupTimeoutSeconds` (4 minutes) after the launcher's start: `StartupTimeout`",
        ("StartupTimeout", "HostStartupFailed"),
        (
            f"{_CLUSTER}test_gyms_servers_never_get_ready",
            "tests/e2e/test_life.py::test_a_start_that_takes_too_long_names_the_field",
        ),
    ),
    State(
        "Gym's servers never get ready, in a colocated job",
        "Starting",
        "PodsCreated: Gym's servers are starting; it waits until … at most (spec.target.gym.startupTimeoutSeconds)",
        "as above",
        "as above",
        "",
        "as above: `StartupTimeout`",
        ("StartupTimeout", "HostStartupFailed"),
        (
            f"{_CLUSTER}test_gyms_servers_never_get_ready_in_a_colocated_job",
            "tests/unit/test_evaluator_in_container.py::test_a_start_says_until_when_it_is_waited_for",
        ),
    ),
    State(
        "The node is too busy for Gym to start",
        "Starting",
        "EvaluatorLost: pod … ended without an outcome: the node was too busy for Gym to start: …; "
        "attempt … follows at …",
        "Ray, with which Gym starts, waits 30 s for its own processes, whatever `startupTimeoutSeconds` says; on a "
        "node that has no CPU left they take longer",
        "run fewer jobs at once, or raise the CPU of the chart's `resources.gymHost` and `resources.gymTasks`",
        "Run fewer jobs at once",
        _ATTEMPTS,
        ("BackoffLimitExceeded",),
        (
            f"{_CLUSTER}test_a_node_that_is_too_busy_for_gym",
            "tests/unit/test_evaluator_in_container.py::"
            "test_a_node_that_was_too_busy_for_gym_ends_the_attempt_and_not_the_job",
        ),
    ),
    State(
        "Two servers want one port",
        "Failed",
        "InvalidSpec: spec.target.gym.hydraParams.… is …, the port of …; leave it out, …",
        "`hydraParams` give a server of Gym the port of another one, or one that is taken in its pod: 8000 is the gym "
        "host's own; 8080 and 8081 are the evaluator's, in a colocated job",
        "leave the port out: Gym chooses free ones",
        "Correct the field that is named above",
        "at once, before there are pods",
        ("InvalidSpec",),
        (f"{_E2E}test_two_servers_that_want_one_port_are_named_before_there_are_pods",),
    ),
    State(
        "An environment gives its server a port that is taken",
        "Failed",
        "HostStartupFailed: … is …, the port of …; leave it out, …",
        "the environment's own configuration gives a server such a port, as that of the bundled newton_bench does",
        "set another by `hydraParams`, or leave it out of the environment's configuration",
        "Gym could not start",
        "at once",
        ("HostStartupFailed",),
        (
            "tests/unit/test_gym_host_config.py::"
            "test_a_package_that_gives_a_server_the_hosts_port_is_refused_and_a_parameter_mends_it",
        ),
    ),
    State(
        "The model hangs",
        "Running",
        f"Collecting: model policy has answered no call since …{_CALL}",
        "the endpoint takes calls and does not answer: it is overloaded, or what is behind it is gone",
        _TRY,
        "Try the endpoint",
        _MODEL,
        ("CoverageTooLow", "ModelUnavailable", "CollectionStalled", "CollectionTimeout"),
        (_SILENCE, f"{_E2E}test_a_hung_model_is_named_while_the_job_runs"),
    ),
    State(
        "The model answers 429 for ever",
        "Running",
        f"Collecting: model policy has answered no call since …: HTTP 429 from the model server: …{_CALL}",
        "more calls than the endpoint lets the key make; what it asks to wait is waited",
        "lower `concurrency` or `maxConcurrentCalls`, or raise `maxRetries` and `timeoutSeconds`",
        "Try the endpoint",
        _MODEL,
        ("CoverageTooLow", "ModelUnavailable", "CollectionStalled", "CollectionTimeout"),
        (_SILENCE, _NEVER),
    ),
    State(
        "The model answers 500 for ever",
        "Running",
        f"Collecting: model policy has answered no call since …: HTTP 500 from the model server: …{_CALL}",
        "the model server is broken, or a request breaks it",
        _TRY,
        "Try the endpoint",
        _MODEL,
        ("CoverageTooLow", "ModelUnavailable", "CollectionStalled", "CollectionTimeout"),
        (_SILENCE, _NEVER),
    ),
    State(
        "The model answers garbage",
        "Running",
        f"Collecting: model policy has answered no call since …: the model server's answer is not JSON: …{_CALL}",
        "`baseUrl` leads to something else than an OpenAI-compatible API: a log-in page, a proxy's error page",
        "correct `baseUrl` in a new job",
        "Try the endpoint",
        _MODEL,
        ("CoverageTooLow", "ModelUnavailable", "CollectionStalled", "CollectionTimeout"),
        (_SILENCE, _NEVER),
    ),
    State(
        "The model sends half a stream for ever",
        "Running",
        f"Collecting: model policy has answered no call since …{_CALL}",
        "the model server dies in the middle of its answers, or a proxy keeps the rest",
        _TRY,
        "Try the endpoint",
        _MODEL,
        ("CoverageTooLow", "ModelUnavailable", "CollectionStalled", "CollectionTimeout"),
        (_SILENCE, _NEVER, "tests/unit/test_gateway_bytes.py::test_a_stream_that_never_ends_is_ended_and_named"),
    ),
    State(
        "A gym host answers no more and keeps its sockets",
        "Running",
        "Collecting: gym host … has not answered since …, its connections open still…",
        "the host's process is frozen, or its node is",
        "delete its pod: another one takes its place, and nothing that was recorded is lost",
        "To have another one at once, delete its pod",
        "two minutes of silence make it lost, and what it had in hand is sent again; if none takes its place within "
        "`startupTimeoutSeconds` and a minute: `HostLost`",
        ("HostLost",),
        (
            "tests/unit/test_evaluator_silence.py::test_a_host_that_keeps_its_socket_and_answers_nothing_is_named",
            f"{_E2E}test_a_frozen_host_is_named_while_the_job_runs",
        ),
    ),
    State(
        "Nothing comes, and no model is asked",
        "Running",
        "Collecting: since … no rollout has ended and no model has answered; if nothing comes, collection ends at … "
        "(…)",
        "the environment works without the model, or hangs",
        "see what Gym is doing; a slow environment needs nothing but time",
        "See what Gym is doing",
        "`spec.idleTimeoutSeconds` (an hour): `CollectionStalled`, and what was collected is scored",
        ("CollectionStalled", "CollectionTimeout"),
        (
            "tests/unit/test_evaluator_silence.py::test_an_environment_that_works_without_a_model_is_said_to_give_no_sign",
            "tests/unit/test_evaluator_run.py::"
            "test_a_collection_in_which_nothing_happens_ends_by_its_limit_and_scores_what_there_is",
        ),
    ),
    State(
        "The operator's clock is wrong",
        "Starting",
        f"PodsCreated: pod … is starting{UNTIL}",
        "nothing is stuck: waits are measured by the API server's clock, and the operator's log says by how much its "
        "own "
        "differs",
        "set the node's clock right",
        "",
        _START,
        ("PodStartTimeout",),
        (f"{_CLUSTER}test_an_operator_whose_clock_is_wrong_ends_no_job_before_its_time",),
    ),
    State(
        "The API server is away",
        "Starting",
        f"PodsCreated: pod … is starting{UNTIL}",
        "nothing of a job changes meanwhile: pods go on, and what they report is read when the server is back",
        "nothing: within a minute of its return the status says what is so",
        "",
        "as before it was away",
        (),
        (f"{_CLUSTER}test_an_api_server_that_was_away_is_caught_up_with_within_a_minute",),
    ),
)

_HEAD = """\
# When a job does not get on

Made by `make crds` from `tests/support/stuck.py`; the tests that a row names provoke its state and hold what they see
against the row. `kubectl get aej` shows a phase, and with `-o wide` the reason of one that has failed;
`kubectl nhx explain JOB` begins with the line below, in which `…` stands for names and times of the job, and then says
what to do with the job's own names in it. A state shows within a minute. Every reason is in
[docs/conditions.md](conditions.md), all deadlines in [docs/life-cycle.md](life-cycle.md): `activeDeadlineSeconds` ends
whatever else does not, and `startingDeadlineSeconds` a start.

| state | `kubectl get` | `kubectl nhx explain` | cause | fix | until when | provoked by |
|---|---|---|---|---|---|---|
"""


def render() -> str:
    return _HEAD + "".join(f"| {' | '.join(map(_cell, _cells(each)))} |\n" for each in STATES)


def _cells(each: State) -> tuple[str, ...]:
    tests = ", ".join(f"`{test.partition('::')[0].removeprefix('tests/')}`" for test in each.tests)
    return each.name, each.phase, f"`{each.says}`", each.cause, each.fix, each.until, tests


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(write_page("support.stuck", render, sys.argv[1:]))
