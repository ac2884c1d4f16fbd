"""The pods, value by value: what each one holds, and what it must not hold."""

import json

import pytest

from nhx_gym_operator.api.constants import Placement
from nhx_gym_operator.api.fileset import FileSetSpec
from nhx_gym_operator.api.job import JobSpec
from nhx_gym_operator.api.wire.mounts import MODEL_KEYS_DIR, OBJECT_STORE_DIR
from nhx_gym_operator.api.wire.plans import (
    EVALUATOR_PLAN_ENV,
    HOST_PLAN_ENV,
    NODE_ADDRESSES_ENV,
    OUTCOME_PLAN_ENV,
    STAGE_PLAN_ENV,
    EvaluatorPlan,
    HostPlan,
    StagePlan,
)
from nhx_gym_operator.workloads import canary, plans, pods, secrets, storage, tokens
from nhx_gym_operator.workloads.workload import ApiAddresses, ConfigMapFiles, StagedFiles
from support.controller_values import API, KEY, SERVICE_IP, UID, job, plan_of, settings, spec, workload

FILES = ConfigMapFiles("files", (("app", "resources_servers/mine/app.py"), ("m", "nemo-environment.yaml")))
HTTP = {
    "http": {
        "url": "https://files.example.org/env.tgz?sig=s3cr3t",
        "sha256": "a" * 64,
        "path": "env",
        "authorization": {"secretKeyRef": {"name": "web", "key": "header"}},
        "certificates": {"configMapKeyRef": {"name": "ca", "key": "root.pem"}},
    }
}
S3 = {
    "s3": {
        "endpoint": "http://s3:9000",
        "bucket": "bkt",
        "prefix": "my envs/tiny/",
        "credentials": {
            "accessKeyId": {"secretKeyRef": {"name": "s3", "key": "id"}},
            "secretAccessKey": {"secretKeyRef": {"name": "s3", "key": "key"}},
        },
    }
}
STORE = {
    "endpoint": "https://minio:9000",
    "bucket": "results",
    "prefix": "evals",
    "credentials": {
        "accessKeyId": {"secretKeyRef": {"name": "s3", "key": "id"}},
        "secretAccessKey": {"secretKeyRef": {"name": "other", "key": "secret"}},
        "sessionToken": {"secretKeyRef": {"name": "s3", "key": "token"}},
    },
    "certificates": {"configMapKeyRef": {"name": "authority", "key": "ca.pem"}},
}
SECRETS = {"HF_TOKEN": {"secretKeyRef": {"name": "hf", "key": "token"}}}


def sandboxed(**changes):
    return workload(job(**changes.pop("spec", {})), **changes)


def colocated(**changes):
    return sandboxed(placement=Placement.COLOCATED, cluster_ip=None, runtime_class_name=None, **changes)


def file_set(source=None, **changes):
    """A FileSet of any source; without one, of a ConfigMap."""
    spec = FileSetSpec.model_validate({"source": source or {"configMap": {"name": "files"}}, **changes.pop("spec", {})})
    return StagedFiles("mine", "uid-of-mine", 3, spec, None if source else FILES, **changes)


def staged(files=None):
    return sandboxed(spec={"gym": {"environment": {"fileSet": {"name": "mine"}}}}, environment=files or file_set())


ALL_PODS = {
    "evaluator": lambda: pods.evaluator_pod(sandboxed()),
    "evaluator with a staged environment": lambda: pods.evaluator_pod(staged()),
    "evaluator with everything fetched": lambda: pods.evaluator_pod(
        sandboxed(environment=file_set(HTTP), dataset=file_set(S3, file="rows.jsonl"))
    ),
    "host": lambda: pods.host_pod(sandboxed(), 0),
    "host with a staged environment": lambda: pods.host_pod(staged(), 0),
    "colocated": lambda: pods.colocated_pod(colocated()),
    "outcome reader": lambda: pods.outcome_pod(sandboxed()),
}


def containers(pod):
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def main_container(pod):
    (container,) = pod["spec"]["containers"]
    return container


def mounts(container):
    return {mount["mountPath"]: mount for mount in container["volumeMounts"]}


def volumes(pod):
    return {volume["name"]: volume for volume in pod["spec"]["volumes"]}


@pytest.fixture(params=ALL_PODS.values(), ids=ALL_PODS.keys())
def pod(request):
    return request.param()


def test_the_evaluator_is_told_how_to_score():
    pod = pods.evaluator_pod(sandboxed(spec={"parallelism": 7, "failFast": True, "labels": {"a": "b"}}))
    plan = EvaluatorPlan.model_validate(plan_of(pod, "agent-evaluate", EVALUATOR_PLAN_ENV))
    assert (plan.parallelism, plan.fail_fast, plan.labels) == (7, True, {"a": "b"})


def test_every_pod_meets_the_restricted_pod_security_standard(pod):
    security = pod["spec"]["securityContext"]
    assert security["runAsNonRoot"] is True and security["runAsUser"] == 1000
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod["spec"].keys()
    for container in containers(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        }
    allowed = {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}
    assert all(volume.keys() - {"name"} <= allowed for volume in pod["spec"]["volumes"])


def test_no_pod_holds_a_credential_of_the_cluster(pod):
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["enableServiceLinks"] is False
    assert "serviceAccountName" not in pod["spec"]


def test_no_pod_spec_holds_a_token_of_the_job(pod):
    given = (tokens.host_token(KEY, UID, 0), tokens.progress_token(KEY, UID))
    text = json.dumps(pod)
    assert not [token for token in given if token in text]


def test_every_pod_runs_once_and_outlives_gyms_shutdown(pod):
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 60


def test_a_longer_shutdown_of_gym_is_waited_for():
    patient = {"target": {"gym": {**sandboxed().spec.target.gym.to_dict(), "shutdownGraceSeconds": 300}}}
    for pod in (pods.evaluator_pod(sandboxed(spec=patient)), pods.host_pod(sandboxed(spec=patient), 0)):
        assert pod["spec"]["terminationGracePeriodSeconds"] > 300


def test_every_pod_belongs_to_its_job_and_does_not_hold_up_its_deletion(pod):
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("AgentEvalJob", "mcqa", True)
    assert owner["blockOwnerDeletion"] is False
    assert pod["metadata"]["annotations"]["evals.nhx.io/job"] == "mcqa"


def test_what_reads_a_lost_evaluators_outcome_sees_its_claim_and_nothing_else():
    for of in (sandboxed(attempt=3), colocated(attempt=3)):
        pod = pods.outcome_pod(of)
        assert pod["metadata"]["name"] == "mcqa-outcome-3"
        container = main_container(pod)
        assert container["image"] == "reg/nhx-tasks:1"
        assert container["args"] == ["python", "-m", "nhx_gym_operator.evaluator", "outcome"]
        assert [entry["name"] for entry in container["env"]] == [OUTCOME_PLAN_ENV]
        assert plan_of(pod, "read-outcome", OUTCOME_PLAN_ENV) == {"uid": of.uid, "attempt": 3}
        assert volumes(pod).keys() == {"tmp", "results"}
        assert volumes(pod)["results"]["persistentVolumeClaim"] == {"claimName": "mcqa-results"}
        assert mounts(container)["/job/results"]["readOnly"] is True
        assert pod["metadata"]["labels"]["evals.nhx.io/role"] == "outcome-reader"
        assert "runtimeClassName" not in pod["spec"]


def test_only_an_evaluator_is_started_again_in_its_place_and_only_where_the_cluster_can():
    for build, of in ((pods.evaluator_pod, sandboxed), (pods.colocated_pod, colocated)):
        assert not {"restartPolicy", "restartPolicyRules"} & main_container(build(of())).keys()
        container = main_container(build(of(restarts=True)))
        (rule,) = container["restartPolicyRules"]
        assert container["restartPolicy"] == "Never" and rule["action"] == "Restart"
        assert rule["exitCodes"] == {"operator": "NotIn", "values": [0, 1, 128]}
    for pod in (pods.host_pod(sandboxed(restarts=True), 0), pods.outcome_pod(sandboxed(restarts=True))):
        assert all("restartPolicyRules" not in container for container in containers(pod))


def test_images_start_by_their_own_init(pod):
    for container in containers(pod):
        assert "command" not in container
        assert container["args"][:2] == ["python", "-m"]


def test_what_an_administrator_sets_reaches_every_pod():
    options = settings(
        pods={
            "imagePullSecrets": [{"name": "pull"}],
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"disk": "fast"},
            "affinity": {"podAntiAffinity": {}},
            "priorityClassName": "low",
            "labels": {"team": "evals", "evals.nhx.io/role": "forged"},
            "annotations": {"note": "x"},
        },
        imagePullPolicy="Always",
    )
    for build in (
        lambda: pods.evaluator_pod(sandboxed(options=options)),
        lambda: pods.host_pod(sandboxed(options=options), 0),
        lambda: pods.colocated_pod(colocated(options=options)),
        lambda: pods.outcome_pod(sandboxed(options=options)),
        lambda: canary.listener(canary.Canary("op", "operators", options, "gvisor", API, 900.0)),
        lambda: canary.client(canary.Canary("op", "operators", options, "gvisor", API, 900.0), "10.1.0.7"),
    ):
        built = build()
        assert built["spec"]["imagePullSecrets"] == [{"name": "pull"}]
        assert built["spec"]["tolerations"] == [{"operator": "Exists"}]
        assert built["spec"]["nodeSelector"] == {"disk": "fast"}
        assert built["spec"]["affinity"]["podAntiAffinity"] == {}
        assert built["spec"]["priorityClassName"] == "low"
        assert built["metadata"]["labels"]["team"] == "evals"
        assert built["metadata"]["labels"]["evals.nhx.io/role"] != "forged"
        assert built["metadata"]["annotations"]["note"] == "x"
        assert all(container["imagePullPolicy"] == "Always" for container in containers(built))


def test_known_injectors_are_told_to_leave_the_pods_alone(pod):
    for where in ("labels", "annotations"):
        assert pod["metadata"][where]["sidecar.istio.io/inject"] == "false"
        assert pod["metadata"][where]["linkerd.io/inject"] == "disabled"


def test_the_evaluator_pod():
    built = pods.evaluator_pod(sandboxed())
    container = main_container(built)
    assert built["metadata"]["name"] == "mcqa-evaluator-1"
    assert built["metadata"]["labels"]["evals.nhx.io/role"] == "evaluator"
    assert container["name"] == "agent-evaluate"
    assert container["image"] == "reg/nhx-tasks:1"
    assert container["args"] == ["python", "-m", "nhx_gym_operator.evaluator", "run"]
    assert container["ports"] == [{"containerPort": 8080, "protocol": "TCP"}]
    assert container["terminationMessagePolicy"] == "File"
    assert "initContainers" not in built["spec"]
    assert "runtimeClassName" not in built["spec"]
    assert set(mounts(container)) == {
        "/tmp",
        "/job/work",
        "/job/results",
        "/var/run/secrets/nhx/tokens",
        f"{MODEL_KEYS_DIR}/policy",
    }


def test_the_evaluators_plan_says_what_the_job_says():
    plan = EvaluatorPlan.model_validate(plan_of(pods.evaluator_pod(sandboxed()), "agent-evaluate", EVALUATOR_PLAN_ENV))
    assert (plan.namespace, plan.job, plan.attempt, plan.hosts) == ("team", "mcqa", 1, 1)
    assert plan.dataset_file == "/opt/nhx/datasets/resources_servers/mcqa/data/example.jsonl"
    assert plan.dataset_label == "bundled resources_servers/mcqa/data/example.jsonl"
    assert plan.target.agent_instance == "mcqa_simple_agent"
    assert plan.target.num_repeats == 2
    assert plan.models[0].model == "org/Name-3.2" and plan.models[0].has_api_key
    assert plan.results_location == "persistentVolumeClaim/mcqa-results"
    assert plan.environment is False


def test_the_evaluators_plan_has_the_rules_about_rollouts_by_their_place_in_the_spec():
    policy = {
        "rules": [
            {"action": "Ignore", "onLostAttempt": {"causes": ["Evicted"]}},
            {"action": "FailJob", "onRollout": {"classes": ["model", "context"]}},
        ]
    }
    pod = pods.evaluator_pod(workload(job(failurePolicy=policy, retryFailed=2)))
    plan = plan_of(pod, "agent-evaluate", "NHX_EVALUATOR_PLAN")
    rule = {"place": "spec.failurePolicy.rules[1]", "action": "FailJob", "classes": ["model", "context"]}
    assert (plan["retry_failed"], plan["rollout_rules"]) == (2, [rule])


def test_the_models_key_is_a_file_of_the_evaluator_and_of_nobody_else():
    evaluator, host = pods.job_pods(sandboxed())
    assert volumes(evaluator)["model-key-0"]["secret"] == {
        "secretName": "model",
        "defaultMode": 0o440,
        "items": [{"key": "k", "path": "api-key"}],
    }
    assert "model" not in json.dumps(volumes(host)).replace("model-key", "")
    assert "secretKeyRef" not in json.dumps(host)


def test_a_models_authorities_are_a_file_of_the_evaluator():
    models = spec()["models"]
    models[0]["certificates"] = {"configMapKeyRef": {"name": "authority", "key": "ca.pem"}}
    evaluator, host = pods.job_pods(sandboxed(spec={"models": models}))
    assert volumes(evaluator)["model-certificates-0"]["configMap"] == {
        "name": "authority",
        "items": [{"key": "ca.pem", "path": "value"}],
    }
    mounts = {each["name"]: each["mountPath"] for each in main_container(evaluator)["volumeMounts"]}
    assert mounts["model-certificates-0"] == "/var/run/secrets/nhx/model-certificates/policy"
    assert "model-certificates-0" not in volumes(host)


def test_the_operators_authorities_hold_wherever_a_job_names_none():
    chosen = settings(certificates={"configMap": "company", "key": "ca.crt"})
    evaluator = pods.evaluator_pod(sandboxed(options=chosen))
    assert volumes(evaluator)["model-certificates-0"]["configMap"]["name"] == "company"
    assert plans.evaluator_plan(sandboxed(options=chosen)).models[0].has_certificates
    models = spec()["models"]
    models[0]["certificates"] = {"configMapKeyRef": {"name": "authority", "key": "ca.pem"}}
    own = pods.evaluator_pod(sandboxed(options=chosen, spec={"models": models}))
    assert volumes(own)["model-certificates-0"]["configMap"]["name"] == "authority"
    assert "model-certificates-0" not in volumes(pods.evaluator_pod(sandboxed()))


@pytest.mark.parametrize(
    ("of_the_jobs", "volume"),
    [
        ({"environment": file_set({"http": HTTP["http"] | {"certificates": None}})}, "environment-certificates"),
        ({"dataset": file_set(S3, file="rows.jsonl")}, "dataset-certificates"),
        ({"spec": {"results": {"objectStore": STORE | {"certificates": None}}}}, "bucket-certificates"),
    ],
    ids=["archive", "S3 source", "bucket"],
)
def test_the_operators_authorities_hold_for_what_is_fetched_and_for_the_bucket(of_the_jobs, volume):
    chosen = settings(certificates={"configMap": "company", "key": "ca.crt"})
    given = volumes(pods.evaluator_pod(sandboxed(options=chosen, **of_the_jobs)))
    assert given[volume]["configMap"] == {"name": "company", "items": [{"key": "ca.crt", "path": "value"}]}
    assert volume not in volumes(pods.evaluator_pod(sandboxed(**of_the_jobs)))


def test_what_a_fileset_or_a_bucket_names_stands_before_the_operators_authorities():
    chosen = settings(certificates={"configMap": "company"})
    of = sandboxed(options=chosen, environment=file_set(HTTP), spec={"results": {"objectStore": STORE}})
    given = volumes(pods.evaluator_pod(of))
    named = {name: body["configMap"]["name"] for name, body in given.items() if name.endswith("-certificates")}
    assert named == {"environment-certificates": "ca", "bucket-certificates": "authority"}


def test_a_model_without_a_key_needs_no_secret():
    keyless = spec()
    del keyless["models"][0]["apiKey"]
    built = pods.evaluator_pod(sandboxed(spec={"models": keyless["models"]}))
    assert "model-key-0" not in volumes(built)


def test_the_host_pod():
    built = pods.host_pod(sandboxed(), 0)
    gate = built["spec"]["initContainers"][0]
    host = main_container(built)
    assert built["metadata"]["name"] == "mcqa-host-0-1"
    assert built["spec"]["runtimeClassName"] == "gvisor"
    assert (gate["name"], gate["args"][-1]) == ("sandbox-gate", "gate")
    assert (host["name"], host["args"]) == ("gym-host", ["python", "-m", "nhx_gym_operator.gym_host", "serve"])
    assert host["image"] == gate["image"] == "reg/nhx-gym-host:1"
    assert host["resources"]["limits"]["memory"] == "3Gi"
    assert set(mounts(host)) == {"/tmp", "/job/work", "/job/environment", "/var/run/secrets/nhx/tokens"}
    assert gate["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_several_hosts_are_told_who_they_are_and_stand_apart_where_they_can():
    of = sandboxed(spec={"hosts": 2})
    evaluating, *hosts = pods.job_pods(of)
    assert plan_of(evaluating, "agent-evaluate", EVALUATOR_PLAN_ENV)["hosts"] == 2
    assert [plan_of(pod, "gym-host", HOST_PLAN_ENV)["ordinal"] for pod in hosts] == [0, 1]
    given = [volumes(pod)["tokens"]["secret"]["secretName"] for pod in hosts]
    assert given == [secrets.host_secret_name(of, ordinal) for ordinal in (0, 1)] and len(set(given)) == 2
    for pod in hosts:
        (spread,) = pod["spec"]["topologySpreadConstraints"]
        assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
        assert spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert "topologySpreadConstraints" not in pods.host_pod(sandboxed(), 0)["spec"]


def test_a_host_has_no_resolver_to_wait_for():
    built = pods.host_pod(sandboxed(), 0)
    assert built["spec"]["dnsPolicy"] == "None"
    assert built["spec"]["dnsConfig"] == {"nameservers": ["127.0.0.1"]}


def test_a_host_without_a_runtime_class_runs_under_the_default_runtime():
    assert "runtimeClassName" not in pods.host_pod(sandboxed(runtime_class_name=None), 0)["spec"]


def test_the_hosts_plan_names_addresses_and_what_the_gate_must_find_shut():
    plan = HostPlan.model_validate(plan_of(pods.host_pod(sandboxed(), 0), "sandbox-gate", HOST_PLAN_ENV))
    assert plan.evaluator_url == f"http://{SERVICE_IP}:8080"
    assert plan.models == {"policy": "org/Name-3.2"}
    assert [(target.name, target.host, target.port) for target in plan.gate_refused] == [
        ("evaluator-canary", SERVICE_IP, 8081),
        ("kubernetes-api", "10.96.0.1", 443),
        ("kubernetes-api-node", "192.0.2.1", 6443),
        ("kubelet", "node", 10250),
        ("metadata", "169.254.169.254", 80),
        *(
            ("metadata", address, 80)
            for address in ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
        ),
    ]


def test_the_gate_is_told_the_addresses_of_its_node_and_the_untrusted_container_is_not():
    built = pods.host_pod(sandboxed(), 0)
    told = {"name": NODE_ADDRESSES_ENV, "valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}}}
    assert told in built["spec"]["initContainers"][0]["env"]
    assert told not in main_container(built)["env"]


def test_each_address_that_a_gate_tries_says_why_a_listener_is_known_there_or_that_none_is():
    targets = plans.gate_targets(SERVICE_IP, "the evaluator", API)
    assert {target.name for target in targets if not target.known_by} == {"metadata"}
    assert len([target for target in targets if target.known_by]) == 4


def test_an_api_server_without_an_address_of_its_own_is_tried_once():
    same = ApiAddresses(("10.96.0.1", 443), ("10.96.0.1", 443))
    for api in (same, ApiAddresses(("10.96.0.1", 443))):
        names = [target.name for target in plans.gate_targets(SERVICE_IP, "the evaluator", api)]
        assert names == ["evaluator-canary", "kubernetes-api", "kubelet", *["metadata"] * 5]


def test_the_hosts_plan_holds_no_model_address_and_no_token():
    built = json.dumps(pods.host_pod(sandboxed(), 0))
    assert "http://model:8000" not in built
    assert "Bearer" not in built


def test_an_ipv6_address_stands_in_brackets():
    assert sandboxed(cluster_ip="fd00::1").evaluator_url == "http://[fd00::1]:8080"


def test_a_host_cannot_be_built_before_the_service_has_an_address():
    with pytest.raises(ValueError, match="team/mcqa has no address"):
        pods.host_pod(sandboxed(cluster_ip=None), 0)


def test_env_secrets_are_variables_where_gym_runs_and_nowhere_else():
    owner = {"gym": {"envSecrets": SECRETS}}
    expected = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    evaluator, host = pods.job_pods(sandboxed(spec=owner))
    assert expected in main_container(host)["env"]
    assert expected not in host["spec"]["initContainers"][0]["env"]
    assert expected not in main_container(evaluator)["env"]
    assert expected in main_container(pods.colocated_pod(colocated(spec=owner)))["env"]


def test_our_own_variables_stand_last_and_win():
    host = main_container(pods.host_pod(sandboxed(spec={"gym": {"envSecrets": SECRETS}}), 0))
    assert [pair["name"] for pair in host["env"]] == ["HF_TOKEN", HOST_PLAN_ENV]


@pytest.mark.parametrize("text", ["$(HOME)", "$$", "cost: $5", "$(NHX_HOST_PLAN)$$x"])
def test_a_dollar_in_a_plan_survives_the_kubelet(text):
    owner = {"gym": {"hydraParams": {"a": text}}}
    built = main_container(pods.host_pod(sandboxed(spec=owner), 0))
    raw = next(pair["value"] for pair in built["env"] if pair["name"] == HOST_PLAN_ENV)
    assert "$(" not in raw.replace("$$", "")
    assert json.loads(raw.replace("$$", "$"))["target"]["hydra_params"] == {"a": text}


def test_the_environments_source_is_mounted_into_staging_only():
    built = pods.evaluator_pod(staged())
    (stage,) = built["spec"]["initContainers"]
    assert stage["args"] == ["python", "-m", "nhx_gym_operator.evaluator", "stage"]
    assert mounts(stage)["/job/source"]["readOnly"] is True
    assert "readOnly" not in mounts(stage)["/job/environment"]
    assert "/var/run/secrets/nhx/tokens" not in mounts(stage)
    assert not any(path.startswith(MODEL_KEYS_DIR) for path in mounts(stage))
    evaluate = main_container(built)
    assert "/job/source" not in mounts(evaluate)
    assert mounts(evaluate)["/job/environment"]["readOnly"] is True
    assert volumes(built)["environment-source"]["configMap"] == {
        "name": "files",
        "items": [
            {"key": "app", "path": "resources_servers/mine/app.py"},
            {"key": "m", "path": "nemo-environment.yaml"},
        ],
    }


@pytest.mark.parametrize(
    ("source", "volume"),
    [
        (
            {"persistentVolumeClaim": {"claimName": "envs", "path": "tiny"}},
            {"persistentVolumeClaim": {"claimName": "envs", "readOnly": True}},
        ),
        (
            {"image": {"reference": "reg/env:1", "pullPolicy": "Always", "path": "env"}},
            {"image": {"reference": "reg/env:1", "pullPolicy": "Always"}},
        ),
    ],
)
def test_a_source_that_is_a_volume_is_mounted_read_only_into_staging_alone(source, volume):
    built = pods.evaluator_pod(staged(file_set(source)))
    (stage,) = built["spec"]["initContainers"]
    assert volumes(built)["environment-source"] == {"name": "environment-source", **volume}
    assert mounts(stage)["/job/source"]["readOnly"] is True
    assert "/job/source" not in mounts(main_container(built))


def test_the_secrets_of_a_source_are_files_of_its_stage_container_and_of_nothing_else():
    built = pods.evaluator_pod(sandboxed(environment=file_set(HTTP), dataset=file_set(S3, file="rows.jsonl")))
    environment, dataset = built["spec"]["initContainers"]
    secrets = "/var/run/secrets/nhx/source"
    assert {path for path in mounts(environment) if path.startswith(secrets)} == {
        f"{secrets}/authorization",
        f"{secrets}/certificates",
    }
    assert {path for path in mounts(dataset) if path.startswith(secrets)} == {
        f"{secrets}/access-key-id",
        f"{secrets}/secret-access-key",
    }
    assert not any(path.startswith(secrets) for path in mounts(main_container(built)))
    assert volumes(built)["environment-authorization"]["secret"] == {
        "secretName": "web",
        "defaultMode": 0o440,
        "items": [{"key": "header", "path": "value"}],
    }
    assert volumes(built)["environment-certificates"]["configMap"] == {
        "name": "ca",
        "items": [{"key": "root.pem", "path": "value"}],
    }


def test_a_stage_plan_says_what_to_fetch_and_whose_it_is():
    built = pods.evaluator_pod(staged(file_set(HTTP, spec={"digest": f"sha256:{'0' * 64}"})))
    plan = StagePlan.model_validate(plan_of(built, "stage-environment", STAGE_PLAN_ENV))
    assert (plan.file_set, plan.uid, plan.generation, plan.job, plan.attempt) == ("mine", "uid-of-mine", 3, "mcqa", 1)
    assert plan.http and plan.http.url.endswith("?sig=s3cr3t") and plan.http.sha256 == "a" * 64
    assert (plan.path, plan.digest, plan.dataset) == ("env", f"sha256:{'0' * 64}", None)
    assert plan.source == "https://files.example.org/env.tgz", "a query may be a signature, and this is shown"


def test_rows_of_a_set_that_only_pods_can_read_are_staged_where_those_of_a_config_map_are_mounted():
    owner = {"tasks": {"dataset": {"fileSet": {"name": "mine", "path": "a/rows.jsonl"}}}}
    for build in (pods.evaluator_pod, pods.colocated_pod):
        built = build(sandboxed(spec=owner, dataset=file_set(S3, file="a/rows.jsonl")))
        (stage,) = built["spec"]["initContainers"]
        assert stage["name"] == "stage-dataset" and stage["image"] == "reg/nhx-tasks:1"
        assert plan_of(built, "stage-dataset", STAGE_PLAN_ENV)["dataset"] == "a/rows.jsonl"
        assert "readOnly" not in mounts(stage)["/job/dataset"]
        assert mounts(main_container(built))["/job/dataset"]["readOnly"] is True
        assert plan_of(built, "agent-evaluate", EVALUATOR_PLAN_ENV)["dataset_file"] == "/job/dataset/dataset.jsonl"


def test_both_plans_say_that_there_is_an_environment():
    evaluator, host = pods.job_pods(staged())
    assert plan_of(evaluator, "agent-evaluate", EVALUATOR_PLAN_ENV)["environment"] is True
    assert plan_of(host, "gym-host", HOST_PLAN_ENV)["environment"] is True


def test_a_host_that_is_replaced_needs_no_look_at_the_inputs():
    replaced = sandboxed(spec={"gym": {"environment": {"fileSet": {"name": "mine"}}}}, environment=None)
    assert plan_of(pods.host_pod(replaced, 0), "gym-host", HOST_PLAN_ENV)["environment"] is True


ON_CLAIM = {"persistentVolumeClaim": {"claimName": "shared", "path": "sets/tasks.jsonl"}}


@pytest.mark.parametrize("kind", ["dataset", "taskset"])
def test_a_file_on_a_claim_is_mounted_read_only_into_the_evaluator_alone(kind):
    built, host = pods.job_pods(sandboxed(spec={"tasks": {kind: ON_CLAIM}}))
    assert volumes(built)["dataset"]["persistentVolumeClaim"] == {"claimName": "shared", "readOnly": True}
    assert mounts(main_container(built))["/job/dataset"]["readOnly"] is True
    assert "persistentVolumeClaim" not in json.dumps(host)
    plan = plan_of(built, "agent-evaluate", EVALUATOR_PLAN_ENV)
    assert plan["dataset_file"] == "/job/dataset/sets/tasks.jsonl"
    assert plan["dataset_label"] == "persistentVolumeClaim shared file sets/tasks.jsonl"
    assert plan["taskset"] is (kind == "taskset")


def test_a_claim_that_holds_the_rows_and_takes_the_results_is_one_volume():
    owner = {"tasks": {"dataset": ON_CLAIM}, "results": {"persistentVolumeClaim": {"claimName": "shared"}}}
    built = pods.evaluator_pod(sandboxed(spec=owner))
    claims = [volume for volume in built["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    assert [volume["name"] for volume in claims] == ["results"]
    found = mounts(main_container(built))
    assert found["/job/dataset"] == {"name": "results", "mountPath": "/job/dataset", "readOnly": True}
    assert "readOnly" not in found["/job/results"]


def test_the_tasks_asked_for_are_in_the_plan():
    owner = {"tasks": {"dataset": {"bundled": "x.jsonl"}, "taskIds": ["b", "a"]}}
    plan = plan_of(pods.evaluator_pod(sandboxed(spec=owner)), "agent-evaluate", EVALUATOR_PLAN_ENV)
    assert plan["task_ids"] == ["b", "a"]


def test_rows_of_a_config_map_are_one_file():
    owner = {"tasks": {"dataset": {"configMap": {"name": "rows", "key": "r.jsonl"}}}}
    built = pods.evaluator_pod(sandboxed(spec=owner, dataset=ConfigMapFiles("rows", (("r.jsonl", "dataset.jsonl"),))))
    assert volumes(built)["dataset"]["configMap"]["items"] == [{"key": "r.jsonl", "path": "dataset.jsonl"}]
    assert mounts(main_container(built))["/job/dataset"]["readOnly"] is True
    plan = plan_of(built, "agent-evaluate", EVALUATOR_PLAN_ENV)
    assert plan["dataset_file"] == "/job/dataset/dataset.jsonl"
    assert plan["dataset_label"] == "ConfigMap rows key r.jsonl"


def test_the_colocated_pod():
    built = pods.colocated_pod(colocated())
    assert built["metadata"]["name"] == "mcqa-gym-tasks-1"
    assert main_container(built)["image"] == "reg/nhx-gym-tasks:1"
    plan = plan_of(built, "agent-evaluate", EVALUATOR_PLAN_ENV)
    assert (plan["placement"], plan["hosts"]) == ("Colocated", 0)


@pytest.mark.parametrize(
    ("results", "volume", "location"),
    [
        ({"emptyDir": {}}, {"emptyDir": {"sizeLimit": "10Gi"}}, "emptyDir"),
        (
            {"persistentVolumeClaim": {"size": "1Gi"}},
            {"persistentVolumeClaim": {"claimName": "mcqa-results"}},
            "persistentVolumeClaim/mcqa-results",
        ),
        (
            {"persistentVolumeClaim": {"claimName": "mine"}},
            {"persistentVolumeClaim": {"claimName": "mine"}},
            "persistentVolumeClaim/mine",
        ),
    ],
)
def test_results_lie_where_the_job_says(results, volume, location):
    built = pods.evaluator_pod(sandboxed(spec={"results": results}))
    assert volumes(built)["results"] == {"name": "results", **volume}
    assert plan_of(built, "agent-evaluate", EVALUATOR_PLAN_ENV)["results_location"] == location


def test_a_claim_is_made_only_when_the_job_asks_for_a_new_one():
    claim = storage.own_claim(
        sandboxed(spec={"results": {"persistentVolumeClaim": {"size": "2Gi", "storageClassName": "fast"}}})
    )
    assert claim["metadata"]["name"] == "mcqa-results"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "2Gi"}},
        "storageClassName": "fast",
    }
    for other in ({"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "mine"}}):
        assert storage.own_claim(sandboxed(spec={"results": other})) is None


def test_a_claim_that_is_to_stay_has_no_owner_and_can_be_found_by_its_label():
    retained = {"persistentVolumeClaim": {"size": "1Gi", "retention": "Retain"}}
    first = storage.own_claim(sandboxed(uid="11111111-aaaa", spec={"results": retained}))
    assert "ownerReferences" not in first["metadata"]
    assert first["metadata"]["labels"]["evals.nhx.io/retained"] == "true"
    assert first["metadata"]["annotations"]["evals.nhx.io/job"] == "mcqa"
    reads = first["metadata"]["annotations"]["evals.nhx.io/image"]
    assert reads == main_container(pods.evaluator_pod(sandboxed()))["image"]
    deleted = storage.own_claim(sandboxed(spec={"results": {"persistentVolumeClaim": {"size": "1Gi"}}}))
    assert deleted["metadata"]["ownerReferences"]
    assert "evals.nhx.io/retained" not in deleted["metadata"]["labels"]


def test_a_job_applied_again_does_not_get_the_claim_that_stayed():
    retained = {"results": {"persistentVolumeClaim": {"size": "1Gi", "retention": "Retain"}}}
    names = [
        storage.own_claim(sandboxed(uid=uid, spec=retained))["metadata"]["name"]
        for uid in ("11111111-aaaa", "22222222-aaaa")
    ]
    assert names == ["mcqa-results-11111111", "mcqa-results-22222222"]
    pod = pods.evaluator_pod(sandboxed(uid="11111111-aaaa", spec=retained))
    assert volumes(pod)["results"]["persistentVolumeClaim"] == {"claimName": names[0]}


@pytest.mark.parametrize("journal", [{}, {"persistentVolumeClaim": {"size": "1Gi"}}])
def test_a_bundle_for_a_bucket_is_written_where_the_journal_is_and_brought_there_afterwards(journal):
    built = pods.evaluator_pod(sandboxed(uid="11111111-aaaa", spec={"results": {"objectStore": STORE, **journal}}))
    plan = plan_of(built, "agent-evaluate", EVALUATOR_PLAN_ENV)
    assert plan["results_location"] == ("persistentVolumeClaim/mcqa-results" if journal else "emptyDir")
    assert plan["upload"]["folder"] == "team/mcqa-11111111"
    assert plan["upload"]["address"] == {
        "endpoint": "https://minio:9000",
        "region": "us-east-1",
        "bucket": "results",
        "prefix": "evals",
        "has_session_token": True,
        "has_certificates": True,
    }


def test_the_buckets_keys_are_files_of_the_evaluator_alone():
    of = sandboxed(spec={"results": {"objectStore": STORE}})
    built = pods.evaluator_pod(of)
    where = {
        path.removeprefix(f"{OBJECT_STORE_DIR}/"): mount["name"]
        for path, mount in mounts(main_container(built)).items()
    }
    sources = {
        path: volumes(built)[name].get("secret") or volumes(built)[name]["configMap"]
        for path, name in where.items()
        if name.startswith("bucket-")
    }
    assert {
        path: (source.get("secretName") or source["name"], source["items"]) for path, source in sources.items()
    } == {
        "access-key-id": ("s3", [{"key": "id", "path": "value"}]),
        "secret-access-key": ("other", [{"key": "secret", "path": "value"}]),
        "session-token": ("s3", [{"key": "token", "path": "value"}]),
        "certificates": ("authority", [{"key": "ca.pem", "path": "value"}]),
    }
    assert "bucket" not in str(pods.host_pod(of, 0)) and "s3" not in str(pods.host_pod(of, 0)["spec"]["volumes"])


def test_resources_are_set_per_role():
    limits = {"limits": {"nvidia.com/gpu": 1}}
    options = settings(resources={"gymHost": limits})
    assert main_container(pods.host_pod(sandboxed(options=options), 0))["resources"] == limits
    assert main_container(pods.evaluator_pod(sandboxed(options=options)))["resources"] != limits


def test_what_any_pod_writes_on_its_node_is_bounded_by_default_in_all_and_per_volume(pod):
    resources = main_container(pod)["resources"]
    limit, asked = (resources[kind]["ephemeral-storage"] for kind in ("limits", "requests"))
    # Without a request of its own the limit would be one: no node with less room would take the pod.
    assert limit.endswith("Gi") and asked.endswith("Mi")
    scratch = {volume["name"]: volume["emptyDir"] for volume in volumes(pod).values() if "emptyDir" in volume}
    assert scratch and all(body == {"sizeLimit": limit} for body in scratch.values())


def test_what_a_host_writes_on_its_node_is_bounded_in_all_and_per_volume():
    built = pods.host_pod(staged(), 0)
    resources = main_container(built)["resources"]
    assert resources["limits"] == {"cpu": 4, "memory": "3Gi", "ephemeral-storage": "10Gi"}
    assert resources["requests"]["ephemeral-storage"] == "512Mi"
    scratch = [volume for volume in volumes(built).values() if "emptyDir" in volume]
    assert {volume["name"]: volume["emptyDir"] for volume in scratch} == {
        name: {"sizeLimit": "10Gi"} for name in ("tmp", "work", "environment")
    }


def test_an_init_containers_limit_never_bounds_a_pod_whose_main_container_has_none():
    """Kubernetes takes the largest that is stated: a gate's own would evict a host without one."""
    assert all(
        "ephemeral-storage" not in container["resources"].get("limits", {})
        for make in ALL_PODS.values()
        for container in make()["spec"].get("initContainers", ())
    )


def test_an_administrators_bound_on_an_evaluators_disk_holds_for_each_of_its_volumes():
    limits = {"limits": {"ephemeral-storage": "1Gi"}}
    options = settings(resources={"evaluator": limits})
    built = pods.evaluator_pod(sandboxed(spec={"results": {"emptyDir": {}}}, options=options))
    found = {name: volume["emptyDir"] for name, volume in volumes(built).items() if "emptyDir" in volume}
    assert found == {name: {"sizeLimit": "1Gi"} for name in ("tmp", "work", "results")}


def test_the_next_attempts_pods_have_names_of_their_own():
    assert [pod["metadata"]["name"] for pod in pods.job_pods(sandboxed(attempt=2))] == [
        "mcqa-evaluator-2",
        "mcqa-host-0-2",
    ]


def test_the_spec_that_builders_take_is_the_api_s_own():
    assert isinstance(sandboxed().spec, JobSpec)
