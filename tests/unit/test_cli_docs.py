"""docs/cli.md against the program: every command, and every exit code."""

import re
from pathlib import Path

import pytest
import typer

from nhx_gym_operator.cli.exits import ExitCode
from nhx_gym_operator.cli.main import app

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text()
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


def test_what_is_said_to_gym_is_said_to_submit_with_flags_that_it_has():
    table = (DOCS / "submitting.md").read_text().partition("## What you say to `gym`")[2].partition("```")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:3] == "| `"]
    said = [gyms if ours == "the same" else ours for gyms, _, ours in rows[1:]]
    known = {option for param in COMMANDS["submit"].params for option in param.opts}
    named = {flag for cell in said for flag in re.findall(r"--[a-z][a-z-]+", cell)}
    assert {"--dataset", "--num-repeats", "--resources-server"} <= named <= known
