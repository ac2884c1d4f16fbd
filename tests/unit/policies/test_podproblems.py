"""Why a pod does not start, from the words of kubelet and scheduler."""

import pytest

from nhx_gym_operator.controller.observation import PodEvent
from nhx_gym_operator.controller.policies import podproblems
from support.controller_values import evaluator, host, running, waiting, workload

UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]
NO_MOUNT = "MountVolume.SetUp failed for volume"
NO_MODEL_SECRET = ("FailedMount", f'{NO_MOUNT} "model-key-0" : secret "model" not found')


def problem(pod, *events):
    noticed = tuple(PodEvent(pod["metadata"]["uid"], reason, message) for reason, message in events)
    return podproblems.find(pod, noticed)


def evaluating(state=None, **status):
    return evaluator(workload(), states={"agent-evaluate": state} if state else None, **status)


def hosting(state):
    return host(workload(), states={"gym-host": state})


@pytest.mark.parametrize(
    ("pod", "events", "reason", "words"),
    [
        (evaluating(conditions=UNSCHEDULABLE), [], "Unschedulable", ["0/1 nodes"]),
        (
            evaluating(waiting("ImagePullBackOff", 'Back-off pulling image "reg/x"')),
            [],
            "ImagePullFailed",
            ["reg/x", "agent-evaluate"],
        ),
        (
            evaluating(waiting("ErrImagePull", "401 unauthorized: reg/x")),
            [("FailedToRetrieveImagePullSecret", "Unable to retrieve image pull secret pull")],
            "PullSecretNotFound",
            ["reg/x", "pull", "'team'"],
        ),
        (
            evaluating(),
            [("FailedAttachVolume", "Multi-Attach error for volume pvc-1")],
            "VolumeNotReady",
            ["Multi-Attach"],
        ),
        (
            evaluating(waiting("CreateContainerError", "no such device")),
            [],
            "ContainerConfigError",
            ["no such device"],
        ),
        (
            evaluating(),
            [("FailedCreatePodSandBox", "no runtime for handler runsc")],
            "ContainerConfigError",
            ["runsc"],
        ),
    ],
)
def test_what_keeps_a_pod_from_running_is_named(pod, events, reason, words):
    found = problem(pod, *events)
    assert (found.reason, found.missing_name) == (reason, "")
    assert all(word in found.message for word in words), found.message


@pytest.mark.parametrize(
    ("pod", "events", "reason", "name", "words"),
    [
        (evaluating(), [NO_MODEL_SECRET], "SecretNotFound", "model", ["'model'", "create it"]),
        (
            evaluating(),
            [("FailedMount", f'{NO_MOUNT} "model-key-0" : references non-existent secret key: k')],
            "SecretKeyMissing",
            "model",
            ["'model'", "'k'", "add it"],
        ),
        (
            evaluating(),
            [("FailedMount", f'{NO_MOUNT} "dataset" : configmap "rows" not found')],
            "ConfigMapNotFound",
            "rows",
            ["'rows'", "create it"],
        ),
        (
            hosting(waiting("CreateContainerConfigError", 'secret "hf" not found')),
            [],
            "SecretNotFound",
            "hf",
            ["'hf'", "gym-host"],
        ),
        (
            hosting(waiting("CreateContainerConfigError", "couldn't find key token in Secret team/hf")),
            [],
            "SecretKeyMissing",
            "hf",
            ["'hf'", "'token'"],
        ),
    ],
)
def test_what_somebody_can_still_create_is_named_with_its_key(pod, events, reason, name, words):
    found = problem(pod, *events)
    assert (found.reason, found.missing_name) == (reason, name)
    assert all(word in found.message for word in words), found.message


def test_a_pull_that_fails_names_the_secrets_it_was_tried_with_and_where_they_are():
    pod = evaluating(waiting("ImagePullBackOff", 'Back-off pulling image "reg/x"'))
    pod["spec"]["imagePullSecrets"] = [{"name": "regcred"}]
    found = problem(pod)
    assert found.reason == "ImagePullFailed"
    assert all(word in found.message for word in ("reg/x", "'regcred'", "'team'"))


def test_nothing_is_wrong_with_a_pod_that_nobody_complains_of():
    assert problem(evaluating()) is None


def test_a_complaint_about_another_pod_is_not_its_own():
    assert podproblems.find(evaluating(), [PodEvent("another", *NO_MODEL_SECRET)]) is None


def test_an_old_complaint_is_forgotten_once_the_container_runs():
    assert problem(evaluating(running(), phase="Running"), NO_MODEL_SECRET) is None
