"""The demo's decisions and its output, without a cluster."""

import json
import stat
import sys
import time
import tomllib

import pytest
import yaml

from devcluster import demo, diagnosis, job_table, report
from devcluster.job_table import JobTable, Watch


def test_the_kubeconfig_of_the_surroundings_is_never_used_for_the_local_cluster(monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/home/someone/production")

    target = demo.choose_target(None, None)

    assert "KUBECONFIG" not in target.environment
    assert target.kubectl_command("get", "pods")[1] == f"--kubeconfig={demo.paths.kubeconfig()}"
    assert target.helm_command("list")[1] == f"--kubeconfig={demo.paths.kubeconfig()}"


def test_a_cluster_of_the_users_own_is_called_by_its_context(monkeypatch):
    monkeypatch.setattr(demo.shutil, "which", lambda program: f"/bin/{program}")

    target = demo.choose_target("lab", "registry.example.org/team/")

    assert target.kubectl_command("get")[1] == "--context=lab"
    assert target.helm_command("list")[1] == "--kube-context=lab"
    assert target.registry == "registry.example.org/team"
    assert "--set image.pullPolicy=Always" in " ".join(demo.helm_arguments(target, []))


def test_a_context_without_a_registry_is_refused_with_the_words_to_add():
    with pytest.raises(report.DevclusterError, match=r"make demo CONTEXT=lab REGISTRY="):
        demo.choose_target("lab", None)


def test_a_registry_without_a_context_is_refused():
    with pytest.raises(report.DevclusterError, match="CONTEXT="):
        demo.choose_target(None, "registry.example.org/team")


def test_both_namespaces_the_demo_makes_are_restricted():
    labels = demo.namespace("nhx-demo")["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}


def test_the_users_chart_values_come_after_the_demos_own():
    arguments = demo.helm_arguments(demo.choose_target(None, None), ["image.tag=mine"])
    assert arguments.index("image.tag=mine") > arguments.index("image.tag=dev")


def test_examples_are_applied_with_the_images_of_the_clusters_registry(monkeypatch):
    monkeypatch.setattr(demo.shutil, "which", lambda program: f"/bin/{program}")
    applied = []
    monkeypatch.setattr(demo.Target, "_run", lambda self, command, stdin, seconds: applied.append(stdin) or "")

    demo.choose_target("lab", "registry.example.org/team").apply(demo.ROOT / "examples" / "demo-model")

    assert "image: registry.example.org/team/demo-model:dev" in applied[0]
    assert "registry.local" not in applied[0]
    # The tag stays when the image changes.
    assert "imagePullPolicy: Always" in applied[0] and "IfNotPresent" not in applied[0]


@pytest.fixture
def theirs(monkeypatch, tmp_path):
    """A cluster of the user's own whose kubectl prints what a test sets."""
    monkeypatch.setattr(demo.shutil, "which", lambda program: f"/bin/{program}")
    answers = {"version": "Server Version: v1.34.0", "get": ""}
    monkeypatch.setattr(demo.Target, "_run", lambda self, command, stdin, seconds: answers[command[2]])
    return demo.choose_target("lab", "registry.example.org/team"), answers


def test_their_cluster_is_asked_before_anything_is_built(theirs):
    target, _ = theirs
    assert [step.what for step in demo.plan(target, [])][:2] == [
        "ask the cluster of context lab",
        "build the images and bring them there",
    ]


def test_a_cluster_without_the_runtime_class_is_told_apart_at_once(theirs):
    target, answers = theirs
    with pytest.raises(report.DevclusterError, match=r"SET=sandbox\.isolation=ContainerOnly"):
        demo.plan(target, [])[0].act()
    demo.plan(target, ["sandbox.isolation=ContainerOnly"])[0].act()
    answers["get"] = "gvisor   runsc   1d"
    demo.plan(target, [])[0].act()


def test_the_demo_knows_the_charts_defaults():
    values = yaml.safe_load((demo.ROOT / "charts/nhx-gym-operator/values.yaml").read_text())
    assert values["sandbox"]["runtimeClassName"] == demo.RUNTIME_CLASS
    assert values["image"]["pullPolicy"] == demo.PULL_POLICY


def test_a_row_is_news_unless_its_age_alone_changed():
    table = JobTable(("mcqa",))
    assert table.is_news("NAME   PHASE     PLACEMENT   PROGRESS   REWARD   AGE")
    assert table.is_news("mcqa   Running   Sandboxed   6/10       0.83     21s")
    assert not table.is_news("mcqa   Running   Sandboxed   6/10       0.83     22s")
    assert table.is_news("mcqa   Running   Sandboxed   7/10       0.83     23s")


def test_the_demo_waits_for_both_jobs():
    table = JobTable(("mcqa", "wordcheck"))
    table.is_news("mcqa   Succeeded   Sandboxed   10/10   0.80   25s")
    assert not table.ended and "wordcheck not seen yet" in table.summary
    table.is_news("wordcheck   Failed   Sandboxed   0/36   25s")
    assert table.ended


def script(tmp_path, text):
    path = tmp_path / "kubectl"
    path.write_text(f"#!{sys.executable} -S\nimport pathlib, sys, time\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return [str(path)]


def test_a_watch_that_ends_is_started_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(job_table, "_RESTART_SECONDS", 0.01)
    mark = tmp_path / "second"
    command = script(
        tmp_path,
        f"mark = pathlib.Path({str(mark)!r})\n"
        "print('mcqa Running Sandboxed 1/2 1s')\n"
        "if mark.exists(): print('mcqa Succeeded Sandboxed 2/2 9s')\n"
        "mark.touch()\n",
    )

    problem = job_table.follow(Watch(command, {}), JobTable(("mcqa",)), 30, list)

    assert problem == ""
    assert capsys.readouterr().out.splitlines() == ["mcqa Running Sandboxed 1/2 1s", "mcqa Succeeded Sandboxed 2/2 9s"]


def test_a_job_that_does_not_end_is_given_up_with_a_heartbeat_in_between(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(job_table, "HEARTBEAT_SECONDS", 0.2)
    command = script(tmp_path, "print('mcqa Running Sandboxed 1/2 1s', flush=True)\ntime.sleep(60)\n")
    began = time.monotonic()

    problem = job_table.follow(Watch(command, {}), JobTable(("mcqa",)), 1.5, list)

    assert "not finished within" in problem and "mcqa Running" in problem
    assert time.monotonic() - began < 20
    assert "... " in capsys.readouterr().out


def test_a_job_that_somebody_deletes_ends_the_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(job_table, "HEARTBEAT_SECONDS", 0.2)
    command = script(tmp_path, "print('mcqa Running Sandboxed 1/2 1s', flush=True)\ntime.sleep(60)\n")

    problem = job_table.follow(Watch(command, {}), JobTable(("mcqa",)), 60, lambda: ["mcqa"])

    assert problem == "somebody deleted mcqa"


def test_a_failed_job_is_explained_by_its_conditions_pods_and_last_log_lines():
    failed = {"type": "Failed", "status": "True", "reason": "EvaluatorLost", "message": "the pod vanished"}
    killed = {"name": "gym-host", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    job = {"metadata": {"name": "mcqa"}, "status": {"phase": "Failed", "conditions": [failed]}}
    pod = {"metadata": {"name": "mcqa-host-0-1"}, "status": {"phase": "Failed", "containerStatuses": [killed]}}
    lists = {"agentevaljobs.evals.nhx.io": {"items": [job]}, "pods": {"items": [pod]}}

    def kubectl(verb, what, *rest):
        if verb == "logs":
            return "one\ntwo\n"
        return json.dumps(lists[what]) if what in lists else ""

    text = diagnosis.describe(kubectl, "nhx-demo", jobs=True)

    assert "Failed=True EvaluatorLost: the pod vanished" in text
    assert "gym-host: terminated exit code 137 OOMKilled" in text
    assert "gym-host | two" in text


def test_a_diagnosis_never_fails_itself():
    def kubectl(*_):
        raise report.DevclusterError("no answer")

    assert "cannot be read: no answer" in diagnosis.describe(kubectl, "nhx-demo", jobs=True)


def test_aggregates_stand_in_columns():
    lines = job_table.aggregate_lines(
        [
            {"name": "gym_reward.reward", "unit": "reward", "value": 0.8, "count": 10, "mean": 0.8, "stdDev": 0.4},
            {"name": "runner.gym.pass@1/accuracy", "unit": "gym", "value": 80.0},
        ]
    )
    assert lines[0].split() == ["NAME", "UNIT", "VALUE", "COUNT", "MEAN", "MIN", "MAX", "STDDEV"]
    assert lines[1].split() == ["gym_reward.reward", "reward", "0.8", "10", "0.8", "0.4"]
    assert lines[2].index("80.0") == lines[0].index("VALUE")


def test_the_commands_to_try_next_name_the_users_context(monkeypatch):
    monkeypatch.setattr(demo.shutil, "which", lambda program: f"/bin/{program}")
    local, theirs = demo.choose_target(None, None), demo.choose_target("lab", "registry.example.org/team")

    assert "python3 -m devcluster env" in demo.next_commands(local) and "cluster-down" in demo.next_commands(local)
    assert "--context lab" in demo.next_commands(theirs) and "cluster-down" not in demo.next_commands(theirs)


def test_the_plugin_is_installed_with_a_python_that_it_runs_on(monkeypatch):
    """An older one is refused by pip with words about conflicting dependencies, which name no Python."""
    least = tomllib.loads((demo.ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    command = f"python{least} -m venv ~/.nhx && . ~/.nhx/bin/activate && pip install '.[cli]'"

    assert command in demo.next_commands(demo.choose_target(None, None))
    assert command in (demo.ROOT / "README.md").read_text()
    assert command in (demo.ROOT / "docs/cli.md").read_text()


def test_a_step_that_fails_says_how_long_it_took(capsys):
    def act():
        raise report.DevclusterError("broken")

    with pytest.raises(report.DevclusterError):
        demo.Step("start", "1 s", act).run("[1/7]")

    assert "[1/7] failed after" in capsys.readouterr().out


def test_the_results_end_with_what_the_numbers_mean(monkeypatch, capsys):
    target = demo.choose_target(None, None)
    monkeypatch.setattr(demo.Target, "get", lambda *_: {"items": []})

    demo.plan(target, [])[-1].act()

    last = capsys.readouterr().out.splitlines()[-1]
    assert "mcqa's answers are guesses" in last and "wordcheck" in last
