"""What the page on custom environments says of packages, held against what staging accepts and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from nhx_gym_operator.api.fileset import FileSetSpec
from nhx_gym_operator.evaluator.sources.errors import StagingError
from unit.test_evaluator_stage import stage

CONFIG = "resources_servers/echo/configs/echo.yaml"
WHEEL = "wheels/echo-1.0.0-py3-none-any.whl"
SERVER = "echo:\n  resources_servers:\n    echo:\n      entrypoint: app.py\n"


def manifest(form: str, *config_paths: str) -> str:
    paths = "".join(f"  - {path}\n" for path in config_paths or (CONFIG,))
    return f"format: {form}\nconfig_paths:\n{paths}metadata:\n  name: echo\n  description: Says it again.\n"


NATIVE = {
    "nemo-environment.yaml": manifest("native-v1"),
    "resources_servers/echo/app.py": "print('echo')\n",
    "resources_servers/echo/requirements.txt": "",
    CONFIG: SERVER,
}
WHEELS = {"nemo-environment.yaml": manifest("wheels-v1"), WHEEL: "PK", CONFIG: SERVER}


def staged(tmp_path: Path, files: dict[str, str]) -> Path:
    source, tree = tmp_path / "source", tmp_path / "tree"
    for name, text in files.items():
        file = source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    stage(source, tree)
    return tree


def refusal(tmp_path: Path, files: dict[str, str]) -> str:
    with pytest.raises(StagingError) as refused:
        staged(tmp_path, files)
    return str(refused.value)


@pytest.mark.parametrize("files", [NATIVE, WHEELS], ids=["native-v1", "wheels-v1"])
def test_a_package_of_either_format_is_staged_as_it_is(tmp_path: Path, files: dict[str, str]) -> None:
    tree = staged(tmp_path, files)
    assert {name: (tree / name).read_text() for name in files} == files


def test_another_format_is_refused_naming_those_that_exist(tmp_path: Path) -> None:
    message = refusal(tmp_path, NATIVE | {"nemo-environment.yaml": manifest("native-v9")})
    assert "nemo-environment.yaml" in message and "native-v1" in message and "wheels-v1" in message


@pytest.mark.parametrize("path", ["/etc/echo.yaml", "../echo.yaml", "resources_servers\\\\echo.yaml"])
def test_a_config_path_is_relative_to_the_root(tmp_path: Path, path: str) -> None:
    assert "config" in refusal(tmp_path, NATIVE | {"nemo-environment.yaml": manifest("native-v1", path)})


def test_a_config_path_names_a_file_of_the_package(tmp_path: Path) -> None:
    missing = "resources_servers/echo/configs/other.yaml"
    assert missing in refusal(tmp_path, NATIVE | {"nemo-environment.yaml": manifest("native-v1", missing)})


def test_a_native_packages_configs_lie_with_its_components(tmp_path: Path) -> None:
    files = NATIVE | {"configs/echo.yaml": SERVER, "nemo-environment.yaml": manifest("native-v1", "configs/echo.yaml")}
    message = refusal(tmp_path, files)
    assert "configs/echo.yaml" in message and "resources_servers/" in message and "responses_api_agents/" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wheels/deep/echo-1.0.0-py3-none-any.whl": "PK"}, "wheels/deep/"),
        ({"wheels/notes.txt": "x"}, "wheels/notes.txt"),
        ({WHEEL: None}, "wheels"),
    ],
    ids=["nested", "no wheel", "empty"],
)
def test_a_wheelhouse_is_flat_not_empty_and_holds_wheels_only(
    tmp_path: Path, change: dict[str, str | None], words: str
) -> None:
    files = {name: text for name, text in (WHEELS | change).items() if text is not None}
    assert words in refusal(tmp_path, files)


def test_models_are_the_operators_and_not_the_packages(tmp_path: Path) -> None:
    assert "responses_api_models/mine/app.py" in refusal(tmp_path, NATIVE | {"responses_api_models/mine/app.py": ""})


def test_rows_are_no_part_of_an_environment(tmp_path: Path) -> None:
    assert "resources_servers/echo/data/rows.jsonl" in refusal(
        tmp_path, NATIVE | {"resources_servers/echo/data/rows.jsonl": "{}"}
    )


def test_a_file_set_is_an_environment_unless_it_says_otherwise() -> None:
    assert FileSetSpec.model_fields["purpose"].get_default() == "environment"
