"""What an environment needs and neither it nor the image has is refused by file and line."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.tags import parse_tag

from nhx_gym_operator.gym_host.requirements import Installed, RequirementError, check

TAGS = frozenset().union(*map(parse_tag, ("cp313-cp313-manylinux_2_17_x86_64", "py3-none-any", "cp313-abi3-any")))
MANIFEST = "format: {}\nconfig_paths: [resources_servers/tiny/configs/tiny.yaml]\nmetadata: {{name: tiny}}\n"
LIST = "resources_servers/tiny/requirements.txt"


def distribution(site: Path, name: str, version: str, *requires: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(metadata(name, version, requires))


def metadata(name: str, version: str, requires: tuple[str, ...]) -> str:
    lines = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {each}" for each in requires),
    ]
    return "\n".join(lines) + "\n"


def wheel(
    environment: Path,
    name: str,
    version: str,
    *requires: str,
    tag: str = "py3-none-any",
    files: Mapping[str, str] | None = None,
) -> None:
    (environment / "wheels").mkdir(exist_ok=True)
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(environment / f"wheels/{name}-{version}-{tag}.whl", "w") as opened:
        opened.writestr(f"{about}/METADATA", metadata(name, version, requires))
        opened.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        opened.writestr(f"{about}/RECORD", "")
        for path, text in (files or {}).items():
            opened.writestr(path, text)


@pytest.fixture
def image(tmp_path: Path) -> Installed:
    site = tmp_path / "site"
    distribution(site, "nemo-gym", "0.5.0", "black; extra == 'dev'")
    distribution(site, "numpy", "2.3.1")
    distribution(site, "fancy-lib", "1.0", "numpy>=2; extra == 'fast'", "nowhere; extra == 'slow'")
    return Installed([str(site)])


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    root = tmp_path / "environment"
    (root / "resources_servers/tiny").mkdir(parents=True)
    (root / "nemo-environment.yaml").write_text(MANIFEST.format("wheels-v1"))
    return root


def problem(environment: Path, image: Installed) -> str:
    with pytest.raises(RequirementError) as refusal:
        check(environment, image, TAGS)
    return str(refusal.value)


@pytest.mark.parametrize(
    "line",
    [
        "-e nemo-gym[dev] @ ../../",
        "-e ../../",
        "nemo_gym[dev]",
        "numpy",
        "numpy>=2,<3  # a comment",
        "Fancy.Lib[fast]==1.0",
        "winthing; sys_platform == 'win32'",
        "--index-url https://example.org/simple",
        "# numpy==1",
        "",
    ],
)
def test_what_the_image_has_may_be_required(line: str, environment: Path, image: Installed) -> None:
    (environment / LIST).write_text(f"{line}\n")
    check(environment, image, TAGS)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("requests>=2", "'requests>=2'"),
        ("numpy==2.2.6", "'numpy==2.2.6', and the image has 2.3.1"),
        ("fancy-lib[slow]", "'fancy-lib[slow]'"),
        ("tiny @ git+https://example.org/tiny.git", "is to be fetched"),
        ("./local-folder", "no requirement by name"),
        ("-r missing.txt", "missing.txt"),
        ("-r ../../../../etc/passwd", "etc/passwd"),
    ],
)
def test_what_only_an_index_could_meet_is_refused_by_its_line(
    line: str, words: str, environment: Path, image: Installed
) -> None:
    (environment / LIST).write_text(f"-e nemo-gym[dev] @ ../../\n# what else\n{line}\n")
    found = problem(environment, image)
    assert words in found and f"{LIST}, line 3" in found and "wheels/" in found


def test_lists_that_a_list_includes_are_read_and_a_circle_ends(environment: Path, image: Installed) -> None:
    (environment / LIST).write_text("-r more.txt\n")
    (environment / LIST).with_name("more.txt").write_text("numpy\n-r requirements.txt\nrequests\n")
    assert "more.txt, line 3: 'requests'" in problem(environment, image)


def test_a_projects_own_list_is_read_by_line(environment: Path, image: Installed) -> None:
    project = environment / "responses_api_agents/mine/pyproject.toml"
    project.parent.mkdir(parents=True)
    project.write_text('[project]\nname = "mine"\nversion = "1"\ndependencies = [\n  "numpy",\n  "httpx2>=9",\n]\n')
    assert "responses_api_agents/mine/pyproject.toml, line 6: 'httpx2>=9'" in problem(environment, image)


def test_wheels_of_the_package_meet_its_lists(environment: Path, image: Installed) -> None:
    (environment / LIST).write_text("requests[socks]>=2\nnumpy==1.0\n")
    wheel(environment, "requests", "2.5", "urllib3>=1", "pysocks; extra == 'socks'")
    wheel(environment, "urllib3", "1.26")
    wheel(environment, "pysocks", "1.7")
    wheel(environment, "numpy", "1.0", tag="cp313-cp313-manylinux_2_17_x86_64")
    check(environment, image, TAGS)


def test_a_wheel_is_not_helped_by_the_image(environment: Path, image: Installed) -> None:
    """uv installs the wheels from among themselves alone."""
    wheel(environment, "tiny", "1.0", "numpy>=2", "other; extra == 'x'")
    assert "wheels/tiny-1.0-py3-none-any.whl requires 'numpy>=2'" in problem(environment, image)
    wheel(environment, "numpy", "1.9")
    assert "wheels/ has 1.9" in problem(environment, image)


def test_a_wheel_goes_before_the_image(environment: Path, image: Installed) -> None:
    (environment / LIST).write_text("numpy>=2\n")
    wheel(environment, "numpy", "1.9")
    assert f"{LIST}, line 1: 'numpy>=2', and wheels/ has 1.9" in problem(environment, image)


def test_wheels_that_nothing_installs_meet_nothing(environment: Path, image: Installed) -> None:
    (environment / LIST).write_text("requests\n")
    wheel(environment, "requests", "2.5")
    check(environment, image, TAGS)
    (environment / "nemo-environment.yaml").write_text(MANIFEST.format("native-v1"))
    assert f"{LIST}, line 1: 'requests'" in problem(environment, image)


def test_a_wheel_for_another_python_and_one_that_is_none_are_refused_by_name(
    environment: Path, image: Installed
) -> None:
    wheel(environment, "tiny", "1.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    assert "wheels/tiny-1.0-cp312" in problem(environment, image)
    (environment / "wheels/tiny-1.0-py3-none-any.whl").write_text("no wheel")
    assert "wheels/tiny-1.0-py3-none-any.whl is no wheel" in problem(environment, image)
    (environment / "wheels/tiny.whl").write_text("")
    assert "wheels/tiny.whl is not named as a wheel" in problem(environment, image)
