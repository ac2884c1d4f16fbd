"""What kubectl is told when a user presses the tab key after `kubectl nhx`."""

import pytest

from nhx_gym_operator.cli.completion import FILES, NO_FILES, answer
from support.cli_values import call, job


def words(*before):
    *lines, directive = answer(before)
    return [line.partition("\t")[0] for line in lines], directive


@pytest.fixture
def two(cluster):
    cluster.write("jobs", [job("mcqa"), job("wordcheck")])
    return cluster


def test_commands_are_completed_with_what_they_do():
    lines = answer(["ca"])
    assert lines == ["cancel\tEnd jobs.", f":{NO_FILES}"]


@pytest.mark.parametrize("command", ["watch", "explain", "results", "logs", "report", "cancel", "download"])
def test_jobs_are_completed_for_every_command_that_wants_one(two, command):
    assert words(command, "") == (["mcqa", "wordcheck"], f":{NO_FILES}")
    assert words(command, "w") == (["wordcheck"], f":{NO_FILES}")


def test_jobs_are_those_of_the_namespace_and_context_that_stand_on_the_line(two):
    assert words("watch", "-n", "evals", "--context", "lab", "") == (["mcqa", "wordcheck"], f":{NO_FILES}")
    assert two.calls("get")[-1][:2] == ["--context=lab", "--namespace=evals"]


def test_a_job_that_is_named_already_is_not_offered_again(two):
    assert words("cancel", "mcqa", "") == (["wordcheck"], f":{NO_FILES}")


def test_a_cluster_that_does_not_answer_offers_nothing_and_says_nothing(two, capsys):
    two.write("script", {"fail": {"get": "no route to host"}})
    assert words("watch", "") == ([], f":{NO_FILES}")
    assert capsys.readouterr() == ("", "")


def test_flags_and_their_words_are_completed(two):
    assert "--follow" in words("logs", "--fo")[0]
    assert words("logs", "mcqa", "--role", "g")[0] == ["gate"]


def test_a_path_is_left_to_the_shell(two):
    assert words("download", "mcqa", "") == ([], f":{FILES}")
    assert words("submit", "ex") == ([], f":{FILES}")
    assert words("submit", "--dataset", "rows") == ([], f":{FILES}")


def test_help_says_what_each_argument_is(two):
    shown = call("download", "--help").output
    assert "Name of the job" in shown and "An empty or new directory" in shown
