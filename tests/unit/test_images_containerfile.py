import pytest

from devcluster.images import building, containerfile
from devcluster.report import DevclusterError

TEXT = """\
# a comment
FROM debian AS runtime
RUN apt-get update \\
 # why
 && apt-get install python3

FROM runtime AS tools
COPY lock /src/lock

FROM tools AS other
COPY other.txt /

FROM runtime AS app
COPY --from=tools /opt/env /opt/env
COPY code/__init__.py code/api /opt/code/
"""


@pytest.fixture
def context(tmp_path):
    (tmp_path / "lock").write_text("aiohttp")
    (tmp_path / "other.txt").write_text("other")
    (tmp_path / "code/api").mkdir(parents=True)
    (tmp_path / "code/__init__.py").write_text("")
    (tmp_path / "code/api/wire.py").write_text("A = 1")
    return tmp_path


def fingerprint(context, text=TEXT, stage="app", base="sha"):
    return containerfile.fingerprint(containerfile.parse(text), stage, context, base)


def test_a_stage_needs_its_parent_and_the_stages_it_copies_from():
    stages = containerfile.parse(TEXT)
    assert containerfile.below(stages, "app") == ["runtime", "tools"]
    assert containerfile.below(stages, "runtime") == []
    assert stages["app"].files == ["code/__init__.py", "code/api"]


def test_a_stage_is_a_containerfile_of_its_own_on_the_images_below_it():
    stage = containerfile.parse(TEXT)["app"]
    assert stage.text({"runtime": "localhost/runtime:1", "tools": "localhost/tools:2"}) == (
        "FROM localhost/runtime:1 AS app\n"
        "COPY --from=localhost/tools:2 /opt/env /opt/env\n"
        "COPY code/__init__.py code/api /opt/code/\n"
    )


def test_a_continued_instruction_is_one_line_without_its_comments():
    assert containerfile.parse(TEXT)["runtime"].lines[1] == "RUN apt-get update  && apt-get install python3"


def test_a_change_of_a_copied_file_is_seen(context):
    before = fingerprint(context)
    (context / "code/api/wire.py").write_text("A = 2")
    assert fingerprint(context) != before


def test_a_change_in_a_stage_below_is_seen(context):
    before = fingerprint(context)
    (context / "lock").write_text("aiohttp 4")
    assert fingerprint(context) != before


def test_a_new_base_image_is_seen(context):
    assert fingerprint(context, base="another") != fingerprint(context)


def test_what_another_stage_is_made_of_does_not_matter(context):
    before = fingerprint(context)
    (context / "other.txt").write_text("changed")
    changed = TEXT.replace("COPY other.txt /", "COPY other.txt /elsewhere")
    assert fingerprint(context, text=changed) == before


def test_compiled_files_do_not_matter(context):
    before = fingerprint(context)
    (context / "code/api/__pycache__").mkdir()
    (context / "code/api/__pycache__/wire.pyc").write_bytes(b"compiled")
    assert fingerprint(context) == before


@pytest.mark.parametrize(
    ("text", "stage", "message"),
    [
        (TEXT + "COPY nowhere.txt /\n", "app", r"copies nowhere\.txt"),
        (TEXT, "web", "no stage 'web'; it has runtime, tools, other, app"),
        ("FROM debian\n", "app", "write `FROM IMAGE AS NAME`, not 'FROM debian'"),
        ("RUN true\n", "app", "'RUN true' stands before the first FROM"),
    ],
)
def test_a_mistake_is_named(context, text, stage, message):
    with pytest.raises(DevclusterError, match=message):
        fingerprint(context, text, stage)


def test_the_images_are_stages_of_the_real_containerfile():
    stages = containerfile.parse(building.CONTAINERFILE.read_text())
    assert set(building.NAMES) <= stages.keys()
    assert set(building.ESTIMATES) <= stages.keys()
