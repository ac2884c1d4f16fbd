"""docs/custom-environments.md shows what examples/capitals holds, and every manifest on it is one that is accepted."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.tags import parse_tag
from sandboxed_gym.environment_package import load_environment_package

from nhx_gym_operator.api.fileset import FileSet
from nhx_gym_operator.api.job import AgentEvalJob
from nhx_gym_operator.gym_host.requirements import Installed, RequirementError, check
from support.cli_values import call
from support.page import Page

ROOT = Path(__file__).resolve().parents[2]
PAGE = Page.read(ROOT / "docs/custom-environments.md")
EXAMPLE = ROOT / "examples/capitals"
TAGS = parse_tag("py3-none-any")


def example_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def test_the_page_shows_the_examples_files_letter_by_letter():
    shown = PAGE.files()
    first, second = EXAMPLE, EXAMPLE / "wheels"
    # The second part goes over the same paths as the first: where one stands again, it is the wheels' own.
    seen: set[str] = set()
    for path, text in shown:
        later = path in seen or not (first / path).exists()
        assert (second if later else first).joinpath(path).read_text() == text, path
        seen.add(path)
    on_page = {(first / path) for path, _ in shown if (first / path).exists()}
    on_page |= {(second / path) for path, _ in shown if (second / path).exists()}
    unchanged = second / "environment/resources_servers/capitals/configs/capitals.yaml"
    assert unchanged.read_text() == (first / unchanged.relative_to(second)).read_text()
    assert on_page | {unchanged} == example_files(EXAMPLE)


def test_every_manifest_on_the_page_is_one_of_this_api():
    manifests = [each for text in PAGE.yaml() for each in yaml.safe_load_all(text) if "kind" in each]
    assert {each["kind"] for each in manifests} == {"FileSet", "AgentEvalJob"}
    for manifest in manifests:
        model = FileSet if manifest["kind"] == "FileSet" else AgentEvalJob
        read = model.model_validate(manifest)
        # What the API would drop is a field that it does not have.
        assert manifest["spec"].keys() <= read.to_dict()["spec"].keys()
    sources = [each["spec"]["source"] for each in manifests if each["kind"] == "FileSet"]
    assert {kind for source in sources for kind in source} == {
        "configMap",
        "persistentVolumeClaim",
        "http",
        "s3",
        "image",
    }


def test_the_plain_package_is_valid_and_asks_for_nothing_that_the_image_lacks(tmp_path: Path):
    load_environment_package(EXAMPLE / "environment")
    check(EXAMPLE / "environment", Installed([str(tmp_path)]), TAGS)


@pytest.fixture
def with_wheels(tmp_path: Path) -> Path:
    """The second package, with its wheel built by the page's own command."""
    folder = tmp_path / "capitals"
    shutil.copytree(EXAMPLE / "wheels", folder)
    uv, options, *rest = PAGE.commands("wheels").split(maxsplit=2)
    command = [str(Path(sys.executable).with_name(uv)), options, "--offline", "--python", sys.executable]
    done = subprocess.run([*command, *rest[0].split()], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return folder / "environment"


def test_the_package_with_wheels_is_valid_and_closed(with_wheels: Path, tmp_path: Path):
    package = load_environment_package(with_wheels)
    (wheel,) = (file.name for file in package.wheel_files)
    assert wheel == "near_enough-1.0.0-py3-none-any.whl"
    check(with_wheels, Installed([str(tmp_path)]), TAGS)
    (with_wheels / "wheels" / wheel).unlink()
    with pytest.raises(RequirementError, match=r"requirements\.txt, line 2: 'near-enough>=1'"):
        check(with_wheels, Installed([str(tmp_path)]), TAGS)


def test_the_folder_with_wheels_is_one_that_the_pages_command_submits(
    with_wheels: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(with_wheels.parent)
    shutil.copy(EXAMPLE / "rows.jsonl", "rows.jsonl")
    submit, *_ = PAGE.commands("run-with-wheels").replace("\\\n", "").splitlines()
    kubectl, nhx, *arguments = shlex.split(submit)
    assert (kubectl, nhx) == ("kubectl", "nhx")

    result = call(*arguments, "--dry-run")

    assert result.exit_code == 0, result.output
    made = {each["kind"]: each for each in yaml.safe_load_all(result.output)}
    gym = AgentEvalJob.model_validate(made["AgentEvalJob"]).spec.target.gym
    files = FileSet.model_validate(made["FileSet"])
    assert gym.environment and gym.environment.file_set.name == files.metadata.name
    assert files.spec.source.config_map
    paths = {item.path for item in files.spec.source.config_map.items or []}
    assert paths == {path.relative_to(with_wheels).as_posix() for path in example_files(with_wheels)}
    assert "wheels/near_enough-1.0.0-py3-none-any.whl" in paths


def test_no_page_waits_for_a_good_end_alone():
    """A job that fails never has the condition, and the command would wait to its timeout."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert "condition=Complete" not in page.read_text(), page.name


def test_the_library_scores_by_nearness(with_wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with zipfile.ZipFile(next((with_wheels / "wheels").glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    from near_enough import nearness

    assert nearness("Lima", "It is Lima.") == 1.0
    assert nearness("Lima", "\\boxed{Lima}") == 1.0
    assert 0.0 < nearness("Nairobi", "Nairoby, I think") < 1.0
    assert nearness("Oslo", "") == 0.0
