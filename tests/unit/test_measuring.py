"""The measurement of the sandbox: from canary pods and the clock to what is done next, and what a job is told."""

from __future__ import annotations

import asyncio
import dataclasses
import math

import pytest
from prometheus_client import CollectorRegistry

from nhx_gym_operator.api.wire.reports import GATE_OPEN_EXIT_CODE, CanaryReport, Kernel
from nhx_gym_operator.controller.clock import format_time
from nhx_gym_operator.controller.kube import ApiError
from nhx_gym_operator.controller.measuring import kernels
from nhx_gym_operator.controller.measuring.findings import (
    Findings,
    State,
    Verdict,
    among,
    among_unknown,
    due_at,
    from_data,
    merged,
    standing,
    standing_verdicts,
    unless_withdrawn,
    unmeasured,
)
from nhx_gym_operator.controller.measuring.kernels import NodeKernel
from nhx_gym_operator.controller.measuring.monitor import Monitor
from nhx_gym_operator.controller.measuring.step import Scene, next_step
from nhx_gym_operator.controller.metrics import SandboxMetrics
from nhx_gym_operator.controller.observation import Apply, Create, DeletePod, PodEvent
from nhx_gym_operator.workloads import canary as canaries
from nhx_gym_operator.workloads.canary import Canary
from support.controller_values import API, NOW, after, ended, installation, live, running, settings

HOUR = 3600.0
NODE = NodeKernel("boot-of-the-node", "6.12.1")
GVISOR = Kernel(boot_id="boot-of-the-sandbox", release="4.19.0", words="#1 SMP | [    0.000000] Starting gVisor...")
RUNC = Kernel(boot_id="boot-of-the-node", release="6.12.1", words="#1 SMP")
CANARY = Canary("op-canary", "operators", settings(), "gvisor", API, 900.0, owner_uid="uid-of-map")
SUBJECT = CANARY.subject
REPORT = CanaryReport(kernel=GVISOR, listener_kernel=RUNC, pids_limit="1024").model_dump_json()
REFUSED = "2 addresses refused after 1.0 s"


def pod(manifest, *, node="node-1", deleted=False, states=None, created=NOW, phase="Running", **status):
    found = live(manifest, creationTimestamp=format_time(created))
    found["spec"] = {**found["spec"], "nodeName": node}
    init = {container["name"] for container in found["spec"].get("initContainers", ())}
    shown = {"initContainerStatuses": [], "containerStatuses": []}
    for name, state in (states or {}).items():
        shown["initContainerStatuses" if name in init else "containerStatuses"].append({"name": name, "state": state})
    found["status"] = {"phase": phase, **shown, **status}
    if deleted:
        found["metadata"]["deletionTimestamp"] = format_time(NOW)
    return found


def listening(canary=CANARY, **changes):
    return pod(canaries.listener(canary), states={"canary-listen": running()}, podIP="10.1.0.7", **changes)


def client(reach=None, refused=None, canary=CANARY, **changes):
    states = {name: state for name, state in (("canary-reach", reach), ("canary-refused", refused)) if state}
    return pod(canaries.client(canary, "10.1.0.7"), states=states, **changes)


def reached(message=REPORT, code=0):
    return ended(code, message, at=format_time(NOW))


def scene(**changes):
    return Scene(**({"canary": CANARY, "interval": HOUR, "since": NOW, "node": NODE} | changes))


def findings(tried=NOW, **changes):
    moment = format_time(tried)
    values = {
        "subject": SUBJECT,
        "tried_at": moment,
        "kernel": Verdict.HOLDS,
        "kernel_message": "its own kernel",
        "kernel_measured_at": moment,
        "network": Verdict.HOLDS,
        "network_message": "denied",
        "network_measured_at": moment,
        "kernel_node": "node-1",
        "network_node": "node-1",
        "namespace": "operators",
    }
    return Findings(**(values | changes))


FAILED = findings(network=Verdict.FAILS, network_message="not enforced")
UNKNOWN = unmeasured(SUBJECT, NOW, "no room")


def does(step):
    shown = []
    for action in step.actions:
        match action:
            case Apply(manifest):
                ports = [rule["ports"] for rule in manifest["spec"].get("egress", ())]
                shown.append(f"Apply {manifest['metadata']['name']} {[p['port'] for port in ports for p in port]}")
            case Create(manifest):
                shown.append(f"Create {manifest['metadata']['name']}")
            case DeletePod(_, name, _):
                shown.append(f"Delete {name}")
    return shown


OPEN = ["Apply op-canary-listener []", "Apply op-canary-client [8080, 8081]"]
BOTH_GONE = ["Delete op-canary-listener", "Delete op-canary-client"]


# The order of a measurement


def test_a_measurement_begins_with_policies_that_allow_and_with_the_listener():
    assert does(next_step(scene(), NOW)) == [*OPEN, "Create op-canary-listener"]


def test_the_client_comes_when_the_listener_runs_and_is_told_its_address():
    waiting = pod(canaries.listener(CANARY), phase="Pending")
    assert next_step(scene(listener=waiting), NOW).actions == ()
    step = next_step(scene(listener=listening()), NOW)
    assert does(step) == ["Create op-canary-client"]
    assert "10.1.0.7" in str(step.actions[0].manifest["spec"])


def test_the_second_port_is_forbidden_only_after_it_was_reached():
    assert next_step(scene(listener=listening(), client=client(running())), NOW).actions == ()
    step = next_step(scene(listener=listening(), client=client(reached(), running())), NOW)
    assert does(step) == ["Apply op-canary-client [8080]"]
    assert step.findings is None


def test_a_measurement_that_went_well_is_written_down_and_its_pods_are_deleted():
    step = next_step(scene(listener=listening(), client=client(reached(), ended(0, REFUSED))), after(9))
    assert does(step) == BOTH_GONE
    found = step.findings
    assert (found.verdict, found.kernel, found.network) == (Verdict.HOLDS, Verdict.HOLDS, Verdict.HOLDS)
    assert (found.network_node, found.namespace, found.runtime_class_name) == ("node-1", "operators", "gvisor")
    assert found.pids_limit == "1024" and found.tried_at == format_time(after(9))
    assert "gVisor 4.19.0" in found.kernel_message and REFUSED in found.network_message


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize("which", ["listener", "client", "both"])
def test_a_container_that_a_webhook_puts_into_the_canaries_and_that_never_ends_holds_up_no_measurement(which, kind):
    """As a second container, or before all others as one that is started again."""
    mesh = {"name": "mesh", "image": "mesh:1"}
    pods = {"listener": listening(), "client": client(reached(), ended(0, REFUSED))}
    for name, found in pods.items():
        if which in (name, "both"):
            found["spec"][kind] = [mesh, *found["spec"].get(kind, [])]
            status = "containerStatuses" if kind == "containers" else "initContainerStatuses"
            found["status"][status] = [{"name": "mesh", "state": running()}, *found["status"][status]]
            assert found["status"]["phase"] == "Running"
    step = next_step(scene(**pods), after(9))
    assert does(step) == BOTH_GONE and step.findings.verdict is Verdict.HOLDS


def test_an_operator_that_starts_again_goes_on_where_the_measurement_is():
    """Before it had written anything, and though its start is later than that of the pods."""
    seen = scene(since=after(5), listener=listening(), client=client(reached(), running()))
    assert does(next_step(seen, after(6))) == ["Apply op-canary-client [8080]"]


def test_pods_of_other_settings_go_first():
    other = dataclasses.replace(CANARY, runtime_class_name="kata")
    seen = scene(listener=listening(other), client=client(reached(), ended(0), canary=other))
    step = next_step(seen, NOW)
    assert does(step) == BOTH_GONE and step.findings is None


def test_nothing_begins_before_the_last_pods_are_gone():
    assert next_step(scene(client=client(deleted=True)), NOW).actions == ()


def test_a_pod_of_somebody_else_is_left_alone_and_named():
    theirs = listening()
    theirs["metadata"]["labels"] = {}
    step = next_step(scene(listener=theirs), NOW)
    assert step.actions == () and step.again_after == 60
    assert "'op-canary-listener' in namespace 'operators' is in the way" in step.findings.trouble


# Verdicts


def test_a_port_that_stays_reachable_fails_the_network_with_what_was_reached_and_what_to_set():
    open_ = ended(GATE_OPEN_EXIT_CODE, "evaluator-canary (10.1.0.7:8081, known to be up: it listens there)")
    found = next_step(scene(listener=listening(), client=client(reached(), open_)), NOW).findings
    assert (found.verdict, found.kernel, found.network) == (Verdict.FAILS, Verdict.HOLDS, Verdict.FAILS)
    assert "10.1.0.7:8081" in found.network_message and "sandbox.mode" in found.network_message


def test_a_listener_that_was_never_reached_proves_nothing():
    why = "the listener was not reached though both policies allow it"
    found = next_step(scene(listener=listening(), client=client(ended(1, why))), NOW).findings
    assert found.verdict is Verdict.UNKNOWN and found.trouble == why


def test_a_client_that_comes_to_no_end_is_ended_and_keeps_what_it_said_of_its_kernel():
    seen = scene(listener=listening(), client=client(reached(), running()))
    assert next_step(seen, after(119)).findings is None
    step = next_step(seen, after(121))
    assert does(step) == BOTH_GONE
    assert (step.findings.kernel, step.findings.network) == (Verdict.HOLDS, Verdict.UNKNOWN)


@pytest.mark.parametrize("which", ["listener", "client"])
def test_a_pod_that_does_not_start_ends_the_measurement_with_the_reason(which):
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    build = canaries.listener(CANARY) if which == "listener" else canaries.client(CANARY, "10.1.0.7")
    stuck = pod(build, phase="Pending", conditions=[unscheduled])
    pods = {"listener": stuck} if which == "listener" else {"listener": listening(), "client": stuck}
    assert next_step(scene(**pods), after(899)).actions == ()
    step = next_step(scene(**pods), after(901))
    assert step.findings.verdict is Verdict.UNKNOWN
    assert "0/1 nodes are available" in step.findings.trouble and "timeouts.podStartSeconds" in step.findings.trouble
    assert len(step.actions) == len(pods)


BAD_IMAGE = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}


@pytest.mark.parametrize("which", ["listener", "client"])
def test_what_keeps_a_canary_from_starting_is_told_at_once_and_waited_for(which):
    pods = (
        {"listener": pod(canaries.listener(CANARY), states={"canary-listen": BAD_IMAGE}, phase="Pending")}
        if which == "listener"
        else {"listener": listening(), "client": client(reach=BAD_IMAGE, phase="Pending")}
    )
    step = next_step(scene(**pods), after(1))
    assert step.actions == () and step.again_after < 1
    assert step.findings.verdict is Verdict.UNKNOWN and "no such image" in step.findings.trouble
    assert standing(step.findings, SUBJECT, HOUR, NOW, after(1)).message.count("no such image") == 1


def test_what_the_kubelet_says_in_an_event_is_told_too():
    stuck = client(phase="Pending")
    said = PodEvent(stuck["metadata"]["uid"], "FailedCreatePodSandBox", 'no runtime for "runsc" is configured')
    assert next_step(scene(listener=listening(), client=stuck), after(1)).findings is None
    step = next_step(scene(listener=listening(), client=stuck, events=(said,)), after(1))
    assert "no runtime for" in step.findings.trouble


def test_the_same_is_told_once_and_other_words_after_a_while():
    def told(trouble, seconds):
        stuck = pod(canaries.listener(CANARY), states={"canary-listen": BAD_IMAGE}, phase="Pending")
        before = unmeasured(SUBJECT, after(1), trouble)
        return next_step(scene(listener=stuck, findings=before), after(seconds)).findings

    same = next_step(
        scene(listener=pod(canaries.listener(CANARY), states={"canary-listen": BAD_IMAGE}, phase="Pending")), after(1)
    ).findings.trouble
    assert told(same, 500) is None
    assert told("other words", 10) is None
    assert told("other words", 11).trouble == same


def test_what_one_canary_lacked_is_not_taken_for_told_of_the_next():
    stuck = pod(canaries.listener(CANARY), states={"canary-listen": BAD_IMAGE}, phase="Pending", created=after(60))
    before = unmeasured(SUBJECT, after(59), "of the last one")
    assert "no such image" in next_step(scene(listener=stuck, findings=before), after(61)).findings.trouble


def test_a_canary_that_waits_takes_no_good_verdict_away():
    stuck = pod(canaries.listener(CANARY), states={"canary-listen": BAD_IMAGE}, phase="Pending", created=after(60))
    found = next_step(scene(listener=stuck, findings=findings()), after(61)).findings
    assert found.verdict is Verdict.HOLDS and "no such image" in found.message


def test_a_listener_that_ended_ends_the_measurement():
    gone = next_step(scene(client=client(running())), NOW)
    assert gone.findings.verdict is Verdict.UNKNOWN and does(gone) == ["Delete op-canary-client"]


def test_a_pod_that_is_refused_is_told_in_the_api_servers_words():
    found = next_step(scene(refused="exceeded quota: pods"), NOW).findings
    assert found.verdict is Verdict.UNKNOWN and "exceeded quota: pods" in found.trouble


@pytest.mark.parametrize(
    "known", [{"runtime_class_exists": False}, {"refused": 'pod rejected: RuntimeClass "gvisor" not found'}], ids=str
)
def test_a_runtime_class_that_is_not_there_fails_without_a_pod(known):
    step = next_step(scene(**known), NOW)
    assert step.actions == ()
    assert step.findings.kernel is Verdict.FAILS and "sandbox.runtimeClassName" in step.findings.kernel_message


def test_without_a_kernel_of_its_own_being_promised_only_the_network_is_measured():
    plain = dataclasses.replace(CANARY, runtime_class_name=None)
    report = CanaryReport(kernel=RUNC, listener_kernel=RUNC).model_dump_json()
    pods = {"listener": listening(plain), "client": client(reached(report), ended(0, REFUSED), canary=plain)}
    found = next_step(scene(canary=plain, **pods), NOW).findings
    assert (found.verdict, found.kernel) == (Verdict.HOLDS, Verdict.NOT_NEEDED)


# The kernel


@pytest.mark.parametrize(
    ("inside", "node", "beside", "verdict", "words"),
    [
        (GVISOR, NODE, None, Verdict.HOLDS, "gVisor 4.19.0) is not the node's (6.12.1), by its boot id"),
        (RUNC, NODE, None, Verdict.FAILS, "is the node's, by its boot id"),
        # A virtual machine may run the same version: the boot id tells.
        (Kernel(boot_id="boot-of-a-vm", release="6.12.1"), NODE, None, Verdict.HOLDS, "by its boot id"),
        (Kernel(release="6.12.1"), NODE, None, Verdict.FAILS, "by its version"),
        (Kernel(release="4.4.0"), NODE, None, Verdict.HOLDS, "by its version"),
        (Kernel(), NODE, None, Verdict.UNKNOWN, "neither its boot id nor its version"),
        # A name or a log that says gVisor does not help a kernel that is the node's.
        (RUNC.model_copy(update={"words": "Starting gVisor"}), NODE, None, Verdict.FAILS, "is the node's"),
        (GVISOR, None, RUNC, Verdict.HOLDS, "is not that of a pod beside it"),
        (RUNC, None, RUNC, Verdict.FAILS, "is that of a pod beside it"),
        (GVISOR, None, None, Verdict.UNKNOWN, "ran on different nodes"),
    ],
)
def test_a_kernel_is_told_from_the_nodes(inside, node, beside, verdict, words):
    found = kernels.compare(inside, "gvisor", node, beside, "may not read nodes")
    assert found.verdict is verdict
    assert words in found.message
    assert found.not_checked == ("" if node else "may not read nodes")


def test_without_the_right_to_read_nodes_pods_on_two_nodes_prove_nothing():
    pods = {"listener": listening(node="node-2"), "client": client(reached(), ended(0, REFUSED))}
    apart = next_step(scene(node=None, node_unreadable="may not read nodes", **pods), NOW).findings
    assert (apart.kernel, apart.network, apart.not_checked) == (Verdict.UNKNOWN, Verdict.HOLDS, "may not read nodes")
    together = scene(node=None, node_unreadable="may not read nodes", **pods | {"listener": listening()})
    assert next_step(together, NOW).findings.kernel is Verdict.HOLDS


# The schedule


@pytest.mark.parametrize(
    ("found", "since", "seconds"),
    [
        (None, NOW, 0),
        (findings(), NOW, HOUR),
        (FAILED, NOW, 60),
        (UNKNOWN, NOW, 60),
        (findings(trouble="no room"), NOW, 60),
        (findings(subject="other settings"), NOW, 0),
        (findings(), after(10), 10),
    ],
    ids=["none yet", "holds", "fails", "unknown", "kept from before", "other settings", "before the start"],
)
def test_it_is_measured_again(found, since, seconds):
    assert due_at(found, SUBJECT, HOUR, since) == after(seconds)


def test_until_it_is_due_nothing_happens():
    step = next_step(scene(findings=findings()), after(100))
    assert (step.actions, step.findings, step.again_after) == ((), None, HOUR - 100)


# What stands


def test_a_measurement_without_a_verdict_leaves_a_good_one_standing_for_three_intervals():
    later = unmeasured(SUBJECT, after(2 * HOUR), "no room")
    kept = merged(findings(), later, HOUR)
    assert (kept.verdict, kept.trouble, kept.kernel_measured_at) == (Verdict.HOLDS, "no room", format_time(NOW))
    assert merged(findings(), unmeasured(SUBJECT, after(3 * HOUR), "no room"), HOUR).verdict is Verdict.UNKNOWN


def test_neither_does_a_check_that_is_not_needed_lapse_for_one_measurement_without_a_verdict():
    shared = findings(kernel=Verdict.NOT_NEEDED, kernel_message="the node's kernel is shared")
    assert merged(shared, UNKNOWN, HOUR).checks[0].verdict is Verdict.NOT_NEEDED


def test_what_was_found_before_a_job_found_its_sandbox_open_is_withdrawn():
    assert unless_withdrawn(findings(), None) == findings()
    assert unless_withdrawn(findings(), after(60)) is None
    assert unless_withdrawn(findings(), after(-1)) == findings()


def test_a_measurement_that_ended_in_the_second_of_that_had_begun_before_it():
    assert unless_withdrawn(findings(), NOW) is None
    assert unless_withdrawn(findings(), after(0.9)) is None


@pytest.mark.parametrize(("suspected", "goes_on"), [(after(1), False), (after(0.5), True), (NOW, True), (None, True)])
def test_a_measurement_that_goes_on_elsewhere_makes_way_for_one_where_a_job_found_its_sandbox_open(suspected, goes_on):
    found = scene(listener=listening(), client=client(running()), suspected=("node-2",), suspected_at=suspected)
    assert does(next_step(found, after(2))) == ([] if goes_on else BOTH_GONE)


def test_a_failure_is_never_followed_by_a_verdict_from_before():
    assert merged(FAILED, unmeasured(SUBJECT, after(60), "no room"), HOUR).network is Verdict.UNKNOWN
    assert merged(findings(), FAILED, HOUR).verdict is Verdict.FAILS
    assert merged(findings(subject="other"), UNKNOWN, HOUR).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("found", "since", "now", "state", "words"),
    [
        (None, NOW, NOW, State.NOT_KNOWN, "about to show"),
        (findings(subject="other"), NOW, NOW, State.NOT_KNOWN, "about to show"),
        (findings(), NOW, after(HOUR), State.HOLDS, "on node 'node-1' in namespace 'operators'"),
        # An operator that starts again lets jobs in on what stands, while it measures.
        (findings(), after(60), after(60), State.HOLDS, "denied"),
        (findings(), NOW, after(3 * HOUR), State.NOT_KNOWN, "canary.enabled"),
        (FAILED, NOW, after(59), State.FAILS, "not enforced"),
        (FAILED, NOW, after(60), State.IN_DOUBT, "measured again"),
        (UNKNOWN, NOW, after(1), State.NOT_KNOWN, "no room"),
    ],
)
def test_what_a_job_is_told(found, since, now, state, words):
    told = standing(found, SUBJECT, HOUR, since, now)
    assert told.state is state
    assert words in told.message


def test_what_keeps_the_operator_from_measuring_is_told_beside_what_still_stands():
    def told(now, found=None):
        return standing(found, SUBJECT, HOUR, NOW, now, "no right to configmaps")

    assert told(NOW).state is State.NOT_KNOWN and "no right to configmaps" in told(NOW).message
    still = told(after(HOUR), findings())
    assert still.state is State.HOLDS and "cannot be measured again now: no right to configmaps" in still.message
    lapsed = told(after(3 * HOUR), findings())
    assert lapsed.state is State.NOT_KNOWN and "no right to configmaps" in lapsed.message


def test_findings_survive_the_config_map_and_anything_else_in_it_is_no_finding():
    found = FAILED.model_copy(update={"pids_limit": "max", "not_checked": "nodes"})
    data = found.to_data()
    assert all(isinstance(value, str) for value in data.values())
    assert (data["verdict"], data["network"], data["networkMessage"]) == ("Fails", "Fails", "not enforced")
    assert from_data(data) == found
    assert from_data(None) is None and from_data({"kernel": "Perhaps"}) is None


# Nodes


def measured(node, tried=NOW, **changes):
    """What one measurement found, as it is before it is merged with what was known."""
    return findings(tried, kernel_node=node, network_node=node, **changes)


def on(*steps):
    """One measurement after the other, a minute apart."""
    known = None
    for number, step in enumerate(steps):
        node, changes = step if isinstance(step, tuple) else (step, {})
        known = merged(known, measured(node, after(number * 60), **changes), HOUR)
    return known


FAILS = {"network": Verdict.FAILS, "network_message": "not enforced"}


def test_it_is_remembered_where_it_was_measured_the_last_one_first_and_each_node_once():
    known = on("a", "b", "c", "a")
    assert [entry.node for entry in known.nodes] == ["a", "c", "b"]
    assert from_data(known.to_data()) == known
    assert len(known.to_data()["nodes"].splitlines()) == 3


def test_a_job_is_told_on_which_nodes_it_was_found_to_hold():
    told = standing(on("a", "b", "c"), SUBJECT, HOUR, NOW, after(200))
    assert "on node 'c'" in told.message and "before that on 'b', 'a'" in told.message
    many = standing(on(*"abcdefgh"), SUBJECT, HOUR, NOW, after(500))
    assert "'c' and 2 more" in many.message
    assert "before" not in standing(on("a", "b"), SUBJECT, HOUR, NOW, after(3 * HOUR)).message


def test_nodes_for_which_no_measurement_stands_are_named_a_few_of_them():
    known = among(on("a", "b"), "abcd", HOUR, after(60))
    assert known.not_measured == "'c', 'd'" and known.to_data()["notMeasured"] == known.not_measured
    assert "no measurement stands for 'c', 'd'" in standing(known, SUBJECT, HOUR, NOW, after(61)).message
    assert among(known, "ab", HOUR, after(60)).not_measured == ""
    assert "stands for" not in standing(among(known, "ab", HOUR, after(60)), SUBJECT, HOUR, NOW, after(61)).message
    assert among(known, "abcdefghij", HOUR, after(60)).not_measured == "'c', 'd', 'e', 'f', 'g' and 3 more"


def test_what_was_found_too_long_ago_or_came_to_no_verdict_stands_for_no_node():
    long_ago = merged(on("old"), measured("new", after(4 * HOUR)), HOUR)
    assert among(long_ago, ("old", "new"), HOUR, after(4 * HOUR)).not_measured == "'old'"
    half = on(("half", {"kernel": Verdict.UNKNOWN}))
    assert among(half, ("half",), HOUR, after(1)).not_measured == "'half'"


def test_where_nodes_may_not_be_listed_it_is_said_once_what_is_not_checked():
    found = findings(not_checked="the kernel")
    for _ in range(2):
        found = among_unknown(found, "the operator may not list nodes")
    assert found.not_checked == "the kernel; which nodes were never measured: the operator may not list nodes"


def test_a_node_where_it_holds_does_not_outweigh_one_where_it_failed():
    known = on(("bad", FAILS), "good")
    assert (known.verdict, known.network_node, known.kernel_node) == (Verdict.FAILS, "bad", "good")
    assert known.network_message == "not enforced"
    assert due_at(known, SUBJECT, HOUR, NOW) == after(60 + 60)
    told = standing(known, SUBJECT, HOUR, NOW, after(61))
    assert told.state is State.IN_DOUBT, "only a fresh failure refuses for good"
    assert "on node 'bad'" in told.message and "not enforced" in told.message
    assert standing(on("good", ("bad", FAILS)), SUBJECT, HOUR, NOW, after(61)).state is State.FAILS


@pytest.mark.parametrize("how", ["measured there again", "the node is gone", "three intervals later"])
def test_a_failure_on_one_node_ends(how):
    known = on(("bad", FAILS), "good")
    if how == "measured there again":
        known = merged(known, measured("bad", after(120)), HOUR)
    elif how == "the node is gone":
        known = merged(known, measured("good", after(120)), HOUR, frozenset({"bad"}))
        assert [entry.node for entry in known.nodes] == ["good"]
    else:
        known = merged(known, measured("good", after(3 * HOUR)), HOUR)
    assert known.verdict is Verdict.HOLDS


def test_a_measurement_without_a_verdict_forgets_nothing_of_its_node():
    known = merged(on("a", ("b", FAILS)), unmeasured(SUBJECT, after(200), "no room"), HOUR)
    assert [(entry.node, entry.network) for entry in known.nodes] == [("b", Verdict.FAILS), ("a", Verdict.HOLDS)]
    assert known.network is Verdict.UNKNOWN, "it is not known now, and lets nobody in"
    assert standing(known, SUBJECT, HOUR, NOW, after(201)).state is State.IN_DOUBT
    there = unmeasured(SUBJECT, after(200), "no room").model_copy(update={"kernel_node": "b", "network_node": "b"})
    assert len(merged(on("a", ("b", FAILS)), there, HOUR).nodes) == 2


def test_of_other_settings_no_node_is_remembered():
    assert [entry.node for entry in merged(on("a"), measured("b", subject="other"), HOUR).nodes] == ["b"]


def test_both_canaries_are_to_go_where_it_was_measured_longest_ago():
    known = on("a", "b")
    begin = next_step(scene(findings=known, since=after(600)), after(600)).actions[-1].manifest
    go_on = next_step(scene(findings=known, listener=listening()), after(600)).actions[-1].manifest
    for made in (begin, go_on):
        wishes = made["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert wishes == canaries.Turn(known=("b", "a")).preferences()


def test_a_node_where_a_job_found_its_sandbox_open_comes_first():
    made = next_step(scene(suspected=("open",)), NOW).actions[-1].manifest
    wishes = made["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wishes == canaries.Turn(first=("open",)).preferences()


def test_a_node_where_it_failed_comes_first():
    assert on("a", ("bad", FAILS), "b").turn(SUBJECT) == canaries.Turn(first=("bad",), known=("b", "bad", "a"))
    assert on("a").turn("other settings") == canaries.Turn()


# The adapter


class Broken:
    """An API server whose answers nobody expected."""

    async def get(self, *_):
        raise KeyError("nodeInfo")


async def test_a_measurement_that_breaks_leaves_the_operator_alone_and_lets_nobody_in():
    where = {"canary": {"name": "op-canary", "namespace": "operators"}}
    monitor = Monitor(installation(**where), Broken(), None, lambda: None)
    running_ = asyncio.create_task(monitor.run())
    await asyncio.sleep(0.05)
    assert not running_.done()
    told = monitor.standing()
    assert told.state is State.NOT_KNOWN and "nodeInfo" in told.message
    running_.cancel()


class WithoutTheMap:
    """An API server where somebody deleted the outcome, and where nobody may make it again."""

    async def get(self, *_):
        raise ApiError(404, "NotFound", "not found")

    async def apply(self, _):
        raise ApiError(403, "Forbidden", 'configmaps is forbidden: "op" cannot create resource "configmaps"')


async def test_an_outcome_that_is_gone_and_may_not_be_made_again_is_told_to_jobs():
    where = {"canary": {"name": "op-canary", "namespace": "operators"}}
    monitor = Monitor(installation(**where), WithoutTheMap(), None, lambda: None)
    running_ = asyncio.create_task(monitor.run())
    await asyncio.sleep(0.05)
    told = monitor.standing()
    assert told.state is State.NOT_KNOWN and 'cannot create resource "configmaps"' in told.message
    running_.cancel()


class WithNodes:
    """An API server whose nodes may be listed, or not."""

    def __init__(self, *names):
        self.names = names

    async def list(self, *_, metadata_only):
        assert metadata_only, "a node is some 10 kB"
        if not self.names:
            raise ApiError(403, "Forbidden", "no")
        return {"items": [{"metadata": {"name": name}} for name in self.names]}


@pytest.mark.parametrize(
    ("nodes", "not_measured", "not_checked"),
    [
        (("node-1", "node-2"), "'node-2'", ""),
        ((), "", "the operator may not list nodes (the chart's rbac.runtimeClasses)"),
    ],
)
async def test_the_nodes_that_there_are_stand_beside_those_that_were_measured(nodes, not_measured, not_checked):
    where = {"canary": {"name": "op-canary", "namespace": "operators"}}
    monitor = Monitor(installation(**where), WithNodes(*nodes), None, lambda: None, now=lambda: NOW)
    found = await monitor._among_nodes(on(("node-1", {})), HOUR)
    assert found.not_measured == not_measured and found.not_checked.endswith(not_checked)


async def test_nothing_is_measured_where_nothing_is_sandboxed_or_it_is_switched_off():
    where = {"canary": {"name": "op-canary", "namespace": "operators"}}
    for settings_ in ({"sandbox": {"mode": "Disabled"}, **where}, {}):
        monitor = Monitor(installation(**settings_), Broken(), None, lambda: None)
        await monitor.run()
        assert monitor.standing() is None


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self):
        return after(self.seconds)


def watched():
    """A monitor that has measured, and its clock."""
    clock = Clock()
    monitor = Monitor(
        installation(canary={"name": "op-canary", "namespace": "operators"}), Broken(), None, lambda: None, now=clock
    )
    return monitor, clock


def measure(monitor, clock):
    monitor._findings = findings(clock(), subject=monitor._canary.subject)
    return monitor.standing().state


def test_a_job_that_found_its_sandbox_open_is_believed_at_once():
    monitor, clock = watched()
    assert measure(monitor, clock) is State.HOLDS
    monitor.suspect("team", ("node-1",))
    assert monitor.standing().state is State.NOT_KNOWN


def test_one_namespace_cannot_hold_up_the_others_for_more_than_a_moment_in_ten_minutes():
    monitor, clock = watched()
    waited = 0
    for clock.seconds in range(0, 1800, 5):
        monitor.suspect("hostile", ("node-1",))
        waited += monitor.standing().state is not State.HOLDS
        measure(monitor, clock)
    assert waited == 3


def test_what_one_namespace_makes_up_takes_nothing_from_anothers_word():
    monitor, clock = watched()
    for namespace in ("hostile", "team"):
        measure(monitor, clock)
        monitor.suspect(namespace, ("node-1",))
        assert monitor.standing().state is State.NOT_KNOWN


@pytest.mark.parametrize(
    ("found", "now", "values"),
    [
        (findings(), 10, (1.0, 1.0)),
        (findings(**FAILS), 10, (1.0, 0.0)),
        (findings(), 3 * HOUR, ("NaN", "NaN")),
        (None, 10, ("NaN", "NaN")),
        (findings(subject="other settings"), 10, ("NaN", "NaN")),
        (findings(kernel=Verdict.NOT_NEEDED), 10, (None, 1.0)),
    ],
    ids=["holds", "fails", "lapsed", "withdrawn", "other settings", "no kernel promised"],
)
def test_the_metric_tells_what_stands_now(found, now, values):
    registry = CollectorRegistry()
    SandboxMetrics(registry).show(standing_verdicts(found, SUBJECT, HOUR, after(now)))
    shown = [registry.get_sample_value("nhx_sandbox_holds", {"check": check}) for check in ("kernel", "network")]
    assert [value if value is None or not math.isnan(value) else "NaN" for value in shown] == list(values)
