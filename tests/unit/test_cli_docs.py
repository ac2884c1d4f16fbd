"""docs/cli.md against the program: every command, and every exit code."""

import re
from pathlib import Path

import pytest
import typer

from nhx_gym_operator.cli.exits import ExitCode
from nhx_gym_operator.cli.main import app

PAGE = (Path(__file__).resolve().parents[2] / "docs/cli.md").read_text()
COMMANDS = typer.main.get_command(app).commands


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_section_with_an_example(command):
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert command in [word for heading in headings for word in heading.split(" and ")]
    assert f"$ kubectl nhx {command}" in PAGE


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_speaks_json(command):
    output = next(param for param in COMMANDS[command].params if param.name == "output")
    assert "json" in [str(choice) for choice in output.type.choices]


def test_the_table_of_exit_codes_is_the_programs():
    rows = [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert rows == [int(code) for code in ExitCode]


def test_every_flag_that_the_page_names_exists():
    known = {
        option
        for command in COMMANDS.values()
        for param in command.params
        for option in (*param.opts, *param.secondary_opts)
    }
    kubectls = {"--from-file", "--help"}
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE))
    assert named - known - kubectls == set()
