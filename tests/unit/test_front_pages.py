"""README.md and CONTRIBUTING.md, which people type from: their commands, values, paths and links are the programs'."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from devcluster import cli as devcluster
from nhx_gym_operator.api import crds
from nhx_gym_operator.api.constants import Phase, Placement
from nhx_gym_operator.api.job import AgentEvalJob
from nhx_gym_operator.cli.main import app
from support.cli_values import call
from support.page import Page

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [ROOT / "images/README.md", ROOT / "devcluster/README.md"]
COMMANDS = typer.main.get_command(app).commands
VALUES = yaml.safe_load((ROOT / "charts/nhx-gym-operator/values.yaml").read_text(encoding="utf-8"))


def lines(page: str) -> list[str]:
    """Every line of a page's code blocks, continued ones joined, without what stands behind a `#`."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    text = "\n".join(blocks).replace("\\\n", " ")
    return [line for line in (re.sub(r"(^|\s+)#.*", "", line).strip() for line in text.splitlines()) if line]


def beginning(word: str, page: str = README) -> list[str]:
    """Whole commands, in blocks and in the running text."""
    inline = re.findall(r"`([^`\n]+)`", page)
    return sorted({line for line in [*lines(page), *inline] if line.startswith(f"{word} ")})


@pytest.mark.parametrize("line", beginning("kubectl nhx"))
def test_a_line_of_the_plugin_is_understood_by_it(line: str) -> None:
    name, *arguments = shlex.split(line)[2:]
    COMMANDS[name].make_context(name, arguments)


def test_the_flags_of_the_first_job_make_the_job_that_stands_above_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(example_row() + "\n", encoding="utf-8")
    (line,) = [line for line in beginning("kubectl nhx submit") if "--resources-server" in line]
    made = call(*shlex.split(line)[2:], "--dry-run")
    assert made.exit_code == 0, made.output
    (job,) = [each for each in yaml.safe_load_all(made.output) if each["kind"] == "AgentEvalJob"]
    by_flags, written = AgentEvalJob.model_validate(job).spec, first_job().spec
    asked_for = {"num_repeats": by_flags.target.gym.num_repeats, "concurrency": by_flags.target.gym.concurrency}
    assert by_flags.target.gym == written.target.gym.model_copy(update=asked_for)
    assert by_flags.policy == written.policy


def first_job() -> AgentEvalJob:
    (text,) = Page(README).yaml()
    return AgentEvalJob.model_validate(yaml.safe_load(text))


def example_row() -> str:
    (row,) = re.findall(r"^```json\n(.*?)\n```$", README, re.MULTILINE | re.DOTALL)
    return row


def test_the_first_job_says_how_many_rollouts_it_asks_for() -> None:
    assert f"# 5 rows x {first_job().spec.target.gym.num_repeats} = " in README
    row = json.loads(example_row())
    assert row["responses_create_params"]["input"] and row["options"] and row["expected_answer"]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("line", sorted({*beginning("make"), *beginning("make", CONTRIBUTING)}))
def test_a_line_of_make_names_a_target_and_variables_that_it_reads(line: str) -> None:
    _, target, *variables = line.split()
    assert target in targets()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"$({variable.partition('=')[0]})" in makefile for variable in variables)


def test_a_line_of_the_local_cluster_is_understood_by_it() -> None:
    found = [line for line in lines(README) if "-m devcluster" in line]
    assert found
    for line in found:
        variable, *_ = line.split()
        assert variable.startswith("REGISTRY=")
        devcluster.parser().parse_args(shlex.split(line.partition("-m devcluster ")[2]))


def value(path: str) -> Any:
    """Raises KeyError for a value that the chart does not have."""
    found: Any = VALUES
    for name in re.sub(r"\[\d+\]", ".", path).strip(".").split("."):
        found = {"name": None} if found == [] else found[name]
    return found


def test_the_charts_values_have_these_names_and_defaults() -> None:
    table = README.partition("| value | |\n|---|---|\n")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(named) > 10
    for name in [*named, *re.findall(r"--set '?([^\s=]+)=", README), *re.findall(r"SET=([^\s=`]+)=", README)]:
        value(name)
    assert value("sandbox.mode") == "Auto" and value("sandbox.isolation") == "Kernel"
    assert value("sandbox.runtimeClassName") == "gvisor" and value("canary.enabled") is True
    assert value("resources.gymHost")["limits"]["memory"] == "3Gi"


def test_the_transcript_has_the_columns_and_the_words_of_the_program() -> None:
    block = README.partition("$ kubectl get aej -n nhx-demo -w\n")[2].partition("```")[0].splitlines()
    header = [column["name"].upper() for column in crds.JOB_COLUMNS if "priority" not in column]
    assert block[0].split() == ["NAME", *header]
    starts = {name: block[0].index(name) for name in block[0].split()}
    phases: dict[str, list[str]] = {}
    for row in block[1:]:
        cells = {name: row[start:].split("  ")[0].strip() for name, start in starts.items()}
        phases.setdefault(cells["NAME"], []).append(Phase(cells["PHASE"]))
        assert cells["PLACEMENT"] in {"", *Placement} and re.fullmatch(r"(\d+/\d+)?", cells["PROGRESS"]), row
        assert re.fullmatch(r"(\d\.\d\d)?", cells["REWARD"]) and re.fullmatch(r"(\d+m)?\d+s", cells["AGE"]), row
    order = list(Phase)
    assert len(phases) == 2
    for seen in phases.values():
        assert seen == sorted(seen, key=order.index) and seen[-1] == Phase.SUCCEEDED


def test_all_phases_are_named() -> None:
    sentence = README.partition("Phases are ")[2].partition(". ")[0]
    named = re.sub(r"\([^)]*\)", "", sentence.replace("\n", " ")).replace(" and ", ", ")
    assert [word.strip() for word in named.split(",")] == list(Phase)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_paths_that_a_contributor_is_sent_to_exist() -> None:
    paths = [name for name in re.findall(r"`([\w./-]+/[\w./-]*)`", CONTRIBUTING)]
    assert len(paths) >= 4
    for path in paths:
        assert (ROOT / path).exists(), path
