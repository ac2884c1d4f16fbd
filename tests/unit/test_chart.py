"""What Helm makes of the chart, value by value."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from nhx_gym_operator.api import egress
from nhx_gym_operator.api.constants import MEASUREMENT_LABEL, MEASUREMENT_OF_SANDBOX
from nhx_gym_operator.controller import health
from nhx_gym_operator.controller.caches import KINDS
from nhx_gym_operator.controller.measuring.step import names
from nhx_gym_operator.controller.settings import Sandbox, Settings, Timeouts
from nhx_gym_operator.workloads.canary import Canary, policies
from nhx_gym_operator.workloads.options import Limits, RoleResources
from nhx_gym_operator.workloads.workload import ApiAddresses
from support.chart import CHART, KUBE_VERSION, helm

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "nhx-gym-operator"
NAMESPACE = "operators"

type Object = dict[str, Any]


@cache
def _rendered(values: str, release: str) -> str:
    done = helm("template", release, str(CHART), KUBE_VERSION, f"--namespace={NAMESPACE}", values=json.loads(values))
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(release: str = RELEASE, **values: Any) -> list[Object]:
    return [obj for obj in yaml.safe_load_all(_rendered(json.dumps(values), release)) if obj]


def roles_of(*, without: tuple[str, ...] = (), **values: Any) -> list[Object]:
    return [role for role in of_kind(render(**values), "Role") if role["metadata"]["name"] not in without]


def named_rights(role: Object) -> dict[tuple[str, tuple[str, ...]], set[str]]:
    """Verbs by resource and the names that they are bound to."""
    return {
        (resource, tuple(rule.get("resourceNames", ()))): set(rule["verbs"])
        for rule in role["rules"]
        for resource in rule["resources"]
    }


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [obj for obj in objects if obj["kind"] == kind]


def one(objects: list[Object], kind: str) -> Object:
    (found,) = of_kind(objects, kind)
    return found


def refusal(**values: Any) -> str:
    done = helm("template", RELEASE, str(CHART), KUBE_VERSION, values=values)
    assert done.returncode != 0, "Helm took it"
    return done.stderr


def pod(**values: Any) -> Object:
    return one(render(**values), "Deployment")["spec"]["template"]


def settings(**values: Any) -> Settings:
    (found,) = [obj for obj in of_kind(render(**values), "ConfigMap") if obj["metadata"]["name"] == RELEASE]
    data = found["data"]["settings.yaml"]
    return Settings.model_validate(yaml.safe_load(data))


def rules(role: Object) -> Iterator[tuple[str, frozenset[str]]]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield f"{group}/{resource}".removeprefix("/"), frozenset(rule["verbs"])


READ = frozenset({"get", "list", "watch"})
OWN = READ | {"create", "patch"}
JOB_RIGHTS = {
    "evals.nhx.io/agentevaljobs": frozenset({"list", "watch", "delete"}),
    "evals.nhx.io/filesets": READ,
    "evals.nhx.io/agentevaljobs/status": frozenset({"patch"}),
    "evals.nhx.io/filesets/status": frozenset({"patch"}),
    "pods": READ | {"create", "delete"},
    "services": OWN,
    "persistentvolumeclaims": OWN,
    "networking.k8s.io/networkpolicies": OWN,
    "secrets": frozenset({"create"}),
    "configmaps": frozenset({"get"}),
    "namespaces": frozenset({"get"}),
    "events": frozenset({"list", "watch", "create"}),
}
RUNTIME_CLASS_RIGHTS = {"node.k8s.io/runtimeclasses": frozenset({"get"}), "nodes": frozenset({"get", "list"})}
CANARY = f"{RELEASE}-canary"
LEASE = f"{RELEASE}-lease"
CANARY_PODS = (f"{CANARY}-listener", f"{CANARY}-client")
CANARY_RIGHTS = {
    ("configmaps", (CANARY,)): {"get", "patch"},
    ("configmaps", ()): {"create"},
    ("pods", ()): {"create"},
    ("pods", CANARY_PODS): {"get", "delete"},
    ("networkpolicies", ()): {"create"},
    ("networkpolicies", CANARY_PODS): {"patch"},
    ("events", ()): {"list", "create"},
}


def operators_rights(objects: list[Object]) -> Object:
    """The one role of the whole cluster that the operator is bound to."""
    bound = one(objects, "ClusterRoleBinding")["roleRef"]["name"]
    (found,) = [role for role in of_kind(objects, "ClusterRole") if role["metadata"]["name"] == bound]
    return found


def restricted_violations(spec: Object) -> list[str]:
    """What the Pod Security Standard `restricted` would object to in a pod's spec."""
    found = []
    pod_context = spec.get("securityContext", {})
    if pod_context.get("runAsNonRoot") is not True or pod_context.get("runAsUser") == 0:
        found.append("runs as root")
    if pod_context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        found.append("seccompProfile")
    if any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        found.append("host namespace")
    for container in spec.get("initContainers", []) + spec["containers"]:
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False:
            found.append(f"{container['name']}: privilege escalation")
        if context.get("capabilities") != {"drop": ["ALL"]}:
            found.append(f"{container['name']}: capabilities")
    allowed = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected"}
    for volume in spec.get("volumes", []):
        found += [f"volume {volume['name']}" for kind in volume.keys() - {"name"} - allowed]
    return found


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["a", "b"], "crds": {"install": False}}], ids=str)
def test_helm_finds_nothing_to_complain_about(values: Object):
    done = helm("lint", "--strict", KUBE_VERSION, str(CHART), values=values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_installation_is_these_objects():
    kinds = sorted(obj["kind"] for obj in render())
    assert kinds == [
        "ClusterRole",
        "ClusterRole",
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "ConfigMap",
        "CustomResourceDefinition",
        "CustomResourceDefinition",
        "Deployment",
        "Role",
        "Role",
        "RoleBinding",
        "RoleBinding",
        "Secret",
        "ServiceAccount",
    ]


def test_the_definitions_are_the_generated_ones_and_outlive_the_release():
    rendered = {obj["metadata"]["name"]: obj for obj in of_kind(render(), "CustomResourceDefinition")}
    assert len(rendered) == 2
    for file in (ROOT / "crds").iterdir():
        expected = yaml.safe_load(file.read_text(encoding="utf-8"))
        found = rendered[expected["metadata"]["name"]]
        assert found["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert found == expected


def test_definitions_of_somebody_else_are_left_alone():
    assert not of_kind(render(crds={"install": False}), "CustomResourceDefinition")


def test_the_operator_has_exactly_these_rights_everywhere():
    role = operators_rights(render())
    assert dict(rules(role)) == JOB_RIGHTS | RUNTIME_CLASS_RIGHTS
    assert {role["metadata"]["name"] for role in of_kind(render(), "Role")} == {LEASE, CANARY}


def test_measuring_takes_these_rights_in_the_operators_namespace_and_on_objects_by_name():
    (role,) = roles_of(without=(LEASE,))
    assert role["metadata"]["namespace"] == NAMESPACE
    assert named_rights(role) == CANARY_RIGHTS


def test_leader_election_takes_one_lease_by_its_name_in_the_operators_namespace():
    (role,) = roles_of(without=(CANARY,))
    assert role["metadata"]["namespace"] == NAMESPACE
    assert named_rights(role) == {("leases", ()): {"create"}, ("leases", (RELEASE,)): {"get", "update"}}
    lease = settings().lease
    assert lease and (lease.name, lease.namespace) == (RELEASE, NAMESPACE)


def test_a_measurement_uses_the_names_that_its_rights_are_about():
    found = settings().canary
    assert found and (found.name, found.namespace, found.interval_seconds) == (CANARY, NAMESPACE, 3600)
    canary = Canary(found.name, found.namespace, settings(), None, ApiAddresses(), 60)
    assert names(canary) == CANARY_PODS
    assert {policy["metadata"]["name"] for policy in policies(canary, shut=True)} == set(CANARY_PODS)
    (outcome,) = [obj for obj in of_kind(render(), "ConfigMap") if obj["metadata"]["name"] == CANARY]
    assert "data" not in outcome, "an upgrade would undo what was measured"
    assert outcome["metadata"]["labels"][MEASUREMENT_LABEL] == MEASUREMENT_OF_SANDBOX


@pytest.mark.parametrize("values", [{"canary": {"enabled": False}}, {"sandbox": {"mode": "Disabled"}}], ids=str)
def test_where_nothing_is_to_be_measured_there_is_nothing_of_it(values: Object):
    assert settings(**values).canary is None
    assert not roles_of(without=(LEASE,), **values)
    assert len(of_kind(render(**values), "ConfigMap")) == 1


def test_metrics_are_served_where_they_are_switched_on():
    assert settings().metrics_port is None
    on = {"metrics": {"enabled": True}}
    assert settings(**on).metrics_port == 8089
    (container,) = pod(**on)["spec"]["containers"]
    assert {"name": "metrics", "containerPort": 8089} in container["ports"]


def test_the_operator_may_watch_whatever_it_watches():
    for kind in KINDS:
        name = f"{kind.resource.group}/{kind.resource.plural}".removeprefix("/")
        assert JOB_RIGHTS[name] >= {"list", "watch"}, name


def test_with_namespaces_named_the_rights_end_at_their_borders():
    objects = render(watchNamespaces=["team-a", "team-b"])
    roles = [role for role in of_kind(objects, "Role") if role["metadata"]["name"] not in (CANARY, LEASE)]
    assert [role["metadata"]["namespace"] for role in roles] == ["team-a", "team-b"]
    assert all(dict(rules(role)) == JOB_RIGHTS for role in roles)
    assert dict(rules(operators_rights(objects))) == RUNTIME_CLASS_RIGHTS
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": RELEASE, "namespace": NAMESPACE}]


def test_a_user_without_cluster_rights_can_install():
    objects = render(watchNamespaces=["team-a"], rbac={"runtimeClasses": False}, crds={"install": False})
    assert not [obj for obj in objects if obj["kind"].startswith(("Cluster", "Custom"))]


@pytest.mark.parametrize(
    ("role", "verbs", "joined"),
    [
        ("view", READ, {"view"}),
        ("edit", {"create", "delete", "deletecollection", "patch", "update"}, {"edit", "admin"}),
    ],
)
def test_users_get_their_rights_by_the_roles_that_kubernetes_has(role: str, verbs: set[str], joined: set[str]):
    (found,) = [obj for obj in of_kind(render(), "ClusterRole") if obj["metadata"]["name"].endswith(f"-{role}")]
    assert dict(rules(found)) == {f"evals.nhx.io/{kind}": verbs for kind in ("agentevaljobs", "filesets")}
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    labels = {label: value for label, value in found["metadata"]["labels"].items() if label.startswith(prefix)}
    assert labels == {prefix + name: "true" for name in joined}


def test_users_roles_are_left_alone_where_that_is_said_and_where_the_release_has_no_cluster_rights():
    assert len(of_kind(render(rbac={"userRoles": False}), "ClusterRole")) == 1
    assert not of_kind(render(watchNamespaces=["team-a"], rbac={"runtimeClasses": False}), "ClusterRole")


def test_no_right_is_a_wildcard():
    for values in ({}, {"watchNamespaces": ["a"]}):
        for role in of_kind(render(**values), "ClusterRole") + of_kind(render(**values), "Role"):
            assert "*" not in json.dumps(role["rules"])


def test_rights_can_be_left_to_somebody_else():
    objects = render(rbac={"create": False}, serviceAccount={"create": False, "name": "mine"})
    assert not [obj for obj in objects if "Role" in obj["kind"] or obj["kind"] == "ServiceAccount"]
    assert one(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    assert "serviceAccount.name must be set" in refusal(serviceAccount={"create": False})


def test_the_operator_passes_the_restricted_standard_with_a_read_only_root():
    spec = pod()["spec"]
    assert restricted_violations(spec) == []
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "tmp", "mountPath": "/tmp"} in spec["containers"][0]["volumeMounts"]


def test_the_demo_model_passes_the_restricted_standard_too():
    manifests = yaml.safe_load_all((ROOT / "examples/demo-model/demo-model.yaml").read_text(encoding="utf-8"))
    spec = one(list(manifests), "Deployment")["spec"]["template"]["spec"]
    assert restricted_violations(spec) == []
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_operator_is_probed_where_it_answers():
    (container,) = pod()["spec"]["containers"]
    assert container["ports"] == [{"name": "health", "containerPort": 8088}]
    asked = {probe: container[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    lives, sees = {"path": health.LIVES_PATH, "port": "health"}, {"path": health.SEES_PATH, "port": "health"}
    assert asked == {"startupProbe": lives, "livenessProbe": lives, "readinessProbe": sees}
    assert container["ports"][0]["containerPort"] == health.HEALTH_PORT


def test_one_operator_runs_unless_more_are_asked_for_and_an_old_one_goes_first():
    spec = one(render(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert "topologySpreadConstraints" not in pod()["spec"]


def test_more_operators_are_spread_over_nodes():
    assert one(render(replicas=2), "Deployment")["spec"]["replicas"] == 2
    (spread,) = pod(replicas=2)["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= pod(replicas=2)["metadata"]["labels"].items()
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "one node has to do"


def test_two_operators_never_run_without_a_lease():
    alone = {"leaderElection": {"enabled": False}}
    assert settings(**alone).lease is None
    assert not roles_of(without=(CANARY,), **alone)
    assert "need leaderElection.enabled" in refusal(replicas=2, **alone)


def test_the_settings_are_those_that_the_operator_reads():
    found = settings()
    assert found.sandbox == Sandbox()
    assert found.timeouts == Timeouts()
    assert found.watch_namespaces == ()
    assert found.images.tasks == "registry.local/nhx-tasks:dev"
    assert found.images.gym_host == "registry.local/nhx-gym-host:dev"
    assert found.images.gym_tasks == "registry.local/nhx-gym-tasks:dev"
    assert found.resources == RoleResources()
    assert found.resources.gym_host["limits"] == {"cpu": 4, "memory": "3Gi", "ephemeral-storage": "10Gi"}


def test_the_operators_own_disk_is_bounded():
    (container,) = pod()["spec"]["containers"]
    assert container["resources"]["limits"]["ephemeral-storage"] == "512Mi"
    assert all("sizeLimit" in volume["emptyDir"] for volume in pod()["spec"]["volumes"] if "emptyDir" in volume)


def test_hosts_that_jobs_may_ask_for_are_none_and_are_read_as_the_api_reads_them():
    assert settings().sandbox.egress.allow == ()
    hosts = ["artifacts.example.internal:8443", "*.example.org"]
    assert list(settings(sandbox={"egress": {"allow": hosts}}).sandbox.egress.allow) == hosts
    schema = json.loads((CHART / "values.schema.json").read_text())
    entry = schema["properties"]["sandbox"]["properties"]["egress"]["properties"]["allow"]["items"]
    assert entry["pattern"] == egress.ENTRY


def test_bounds_on_jobs_are_unset_and_reach_the_operator_as_whole_numbers():
    assert settings().limits == Limits()
    most = {"maxRollouts": 1_000_000, "maxTokens": 5_000_000_000_000, "maxCalls": 1, "maxModelSeconds": 2}
    most["maxConcurrentCalls"] = 3
    assert settings(limits=most).limits.model_dump(by_alias=True) == most


def test_evaluators_know_the_operator_by_labels_that_its_pod_has():
    selector = settings().operator_pod_selector
    assert selector and selector.namespace == NAMESPACE
    assert selector.labels.items() <= pod()["metadata"]["labels"].items()


def test_what_an_administrator_sets_reaches_jobs_and_operator_alike():
    options = {
        "imagePullSecrets": [{"name": "regcred"}],
        "tolerations": [{"key": "evals", "operator": "Exists"}],
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "priorityClassName": "low",
        "labels": {"team": "evals"},
        "annotations": {"sidecar.istio.io/inject": "false"},
    }
    assert settings(pods=options).pods.model_dump(by_alias=True) == options
    template = pod(pods=options)
    for name in ("imagePullSecrets", "tolerations", "nodeSelector", "affinity", "priorityClassName"):
        assert template["spec"][name] == options[name]
    for name in ("labels", "annotations"):
        assert options[name].items() <= template["metadata"][name].items()


def test_extra_resources_stand_beside_memory():
    found = settings(resources={"gymHost": {"limits": {"nvidia.com/gpu": 1}}})
    assert found.resources.gym_host["limits"] == {
        "cpu": 4,
        "memory": "3Gi",
        "ephemeral-storage": "10Gi",
        "nvidia.com/gpu": 1,
    }


DIGEST = "sha256:" + "0123456789abcdef" * 4


def test_an_image_is_named_by_registry_tag_and_digest():
    images = settings(
        image={"registry": "example.com/evals", "tag": "1.2"},
        images={
            "gymHost": {"registry": "example.org", "repository": "mine/gym", "tag": "7"},
            "gymTasks": {"digest": DIGEST},
        },
    ).images
    assert images.tasks == "example.com/evals/nhx-tasks:1.2"
    assert images.gym_host == "example.org/mine/gym:7"
    assert images.gym_tasks == f"example.com/evals/nhx-gym-tasks@{DIGEST}"
    container = pod(image={"registry": "", "pullPolicy": "Always"})["spec"]["containers"][0]
    assert (container["image"], container["imagePullPolicy"]) == ("nhx-gym-operator:dev", "Always")


def test_a_changed_setting_restarts_the_operator_and_nothing_else_does():
    def checksum(**values: Any) -> str:
        return pod(**values)["metadata"]["annotations"]["checksum/settings"]

    assert checksum(timeouts={"podStartSeconds": 60}) != checksum()
    assert checksum(serviceAccount={"annotations": {"a": "b"}}) == checksum()


def test_the_operator_gets_a_key_of_48_characters():
    key = base64.b64decode(one(render(), "Secret")["data"]["key"])
    assert len(key) == 48 and key.isalnum()


def test_a_key_of_ones_own_is_used_instead():
    objects = render(operatorKey={"existingSecret": "mine"})
    assert not of_kind(objects, "Secret")
    volumes = one(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert [volume["secret"]["secretName"] for volume in volumes if "secret" in volume] == ["mine"]


def test_the_longest_release_name_still_makes_valid_names():
    for obj in render(release="r" * 53):
        # Names of roles may have 253 characters.
        assert len(obj["metadata"]["name"]) <= (253 if "Role" in obj["kind"] else 63)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sandbox": {"mode": "auto"}}, ["sandbox/mode", "'Auto', 'Required', 'Disabled'"]),
        ({"sandbox": {"runtimeClass": "kata"}}, ["sandbox", "runtimeClass"]),
        ({"sandbox": {"egress": {"allow": ["*"]}}}, ["sandbox/egress/allow"]),
        ({"watchNamespaces": "team-a"}, ["watchNamespaces", "array"]),
        ({"replicas": "two"}, ["replicas"]),
        ({"images": {"gymHost": {"digest": "latest"}}}, ["images/gymHost/digest"]),
        ({"pods": {"labels": {"evals.nhx.io/role": "evaluator"}}}, ["pods/labels", "role"]),
        ({"timeouts": {"podStartSeconds": 0}}, ["timeouts/podStartSeconds"]),
        ({"resources": {"gymhost": {}}}, ["resources", "gymhost"]),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_its_name(values: Object, words: list[str]):
    message = refusal(**values)
    assert all(word in message or word.replace("/", ".") in message for word in words), message


NOTES_MANIFEST = "notes-to-read.yaml"


@pytest.fixture(scope="module")
def notes_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with its notes in a manifest as well: `helm template` shows no notes, and a dry-run install of Helm 3
    asks a cluster for its version."""
    copy = tmp_path_factory.mktemp("chart") / CHART.name
    shutil.copytree(CHART, copy)
    notes = '{"notes": {{ include (print .Template.BasePath "/NOTES.txt") . | toJson }}}\n'
    (copy / "templates" / NOTES_MANIFEST).write_text(notes)
    return copy


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ["kubectl get runtimeclass gvisor", "kubectl apply -f job.yaml\n"]),
        ({"sandbox": {"isolation": "ContainerOnly"}}, ["share the node's kernel"]),
        ({"sandbox": {"mode": "Disabled"}}, ["Sandboxing is off"]),
        ({"sandbox": {"egress": {"allow": ["artifacts.example.org"]}}}, ["spec.egress.allow", "artifacts.example.org"]),
        ({"watchNamespaces": ["team-a"]}, ["serves jobs in team-a", "kubectl get aej -n team-a -w"]),
    ],
    ids=str,
)
def test_the_notes_give_the_next_command(notes_chart: Path, values: Object, words: list[str]):
    flags = (KUBE_VERSION, f"--namespace={NAMESPACE}", f"--show-only=templates/{NOTES_MANIFEST}")
    done = helm("template", RELEASE, str(notes_chart), *flags, values=values)
    assert done.returncode == 0, done.stderr
    notes = yaml.safe_load(done.stdout)["notes"]
    assert "pod-security.kubernetes.io/enforce=restricted" in notes
    assert all(word in notes for word in words), notes
