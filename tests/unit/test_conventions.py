"""What holds for all of the package's code, and no tool checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nhx_gym_operator

PACKAGE = Path(nhx_gym_operator.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
SHORTENED = re.compile(
    r"(?<![.\w])(target\.gym|tasks\.(dataset|taskset|limit|taskIds)|models\[|results\.(persistent|objectStore)"
    r"|source\.(http|s3))"
)
SPEAKERS = ("api", "controller", "evaluator", "gym_host", "cli", "client", "submission")
"""Who tells a user of fields."""
ASKED = ("evaluator", "gym_host", "in_pods", "in_gym")
"""What runs in a job's pods: the gateway and all others who are shown a token, and who have one."""
COMPARING = Path("in_pods/tokens.py")
"""The one place where a credential is compared."""
CREDENTIAL = re.compile(r"^_?tokens$|(^|_)(token|secrets?|password|credentials?|authorization)$")
"""A name in capitals is that of a field or a file; `total_tokens` are a model's."""
HEADERS = ("Authorization", "Proxy-Authorization")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def nodes(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    for folder in folders:
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            name = file.relative_to(PACKAGE)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                yield f"{name}:{getattr(node, 'lineno', 0)}", node


def test_a_message_names_a_field_by_its_whole_path() -> None:
    texts = {where: node.value for where, node in nodes(*SPEAKERS) if isinstance(node, ast.Constant)}
    texts = {where: text for where, text in texts.items() if isinstance(text, str)}
    assert any("spec.target.gym." in text for text in texts.values())
    assert {where: text for where, text in texts.items() if SHORTENED.search(text)} == {}


def test_a_page_names_a_field_by_its_whole_path() -> None:
    lines = {
        f"{page.name}:{number}": line
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    }
    assert any("spec.target.gym." in line for line in lines.values())
    assert {where: line for where, line in lines.items() if SHORTENED.search(line)} == {}


def test_a_page_says_by_name_which_python_installs_from_a_checkout() -> None:
    """An older `python` has an older pip, which reports conflicting dependencies instead."""
    lines = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()]
    installing = [line for line in lines if "install '.[" in line]
    assert installing and all(line.startswith("python3.12 -m venv") for line in installing)


def test_imports_inside_the_package_are_relative() -> None:
    imports = [(where, node) for where, node in nodes(".") if isinstance(node, ast.ImportFrom)]
    assert any(node.level for _, node in imports)
    assert [where for where, node in imports if not node.level and str(node.module).startswith(PACKAGE.name)] == []


def is_credential(node: ast.AST, known: set[str]) -> bool:
    """Whether an expression holds one by a name, which may be of `known`, or reads one from a request."""
    for part in ast.walk(node):
        name = getattr(part, "id", None) or getattr(part, "attr", None) or ""
        if name in known or CREDENTIAL.search(name):
            return True
        if isinstance(part, ast.Constant) and part.value in HEADERS:
            return True
    return False


def made_of(node: ast.AST) -> ast.AST:
    """What a value is made of. Of a call that is what is called, with texts of the code: what becomes of a token in
    `f(token)` is not known. A record with one in it is no credential."""
    if isinstance(node, ast.Await):
        return made_of(node.value)
    if isinstance(node, ast.Tuple | ast.Dict | ast.List):
        return ast.Tuple([])
    if isinstance(node, ast.Call):
        texts = [argument for argument in node.args if isinstance(argument, ast.Constant)]
        called = node.func
        return ast.Tuple([made_of(called.value) if isinstance(called, ast.Attribute) else called, *texts])
    return node


def credentials_of(function: ast.AST) -> set[str]:
    """A function's variables that were made of a credential, or of another one of them."""
    known: set[str] = set()
    while True:
        before = len(known)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
                targets, value = [node.target], node.value
            else:
                continue
            if is_credential(made_of(value), known):
                known |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        if len(known) == before:
            return known


def compared(node: ast.AST) -> list[ast.AST]:
    """What a node compares by its value. What is compared with a text of the code is no secret."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of, by = node.func.value, node.func.attr
        return [of, *node.args] if by in ("startswith", "endswith", "__eq__", "compare_digest") else []
    if not isinstance(node, ast.Compare) or all(isinstance(by, ast.Is | ast.IsNot) for by in node.ops):
        return []
    sides = [node.left, *node.comparators]
    return [] if any(isinstance(side, ast.Constant) for side in sides) else sides


def open_comparisons(tree: ast.AST) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for function in functions
        for known in [credentials_of(function)]
        for node in ast.walk(function)
        if any(is_credential(side, known) for side in compared(node))
    ]


def test_a_credential_is_compared_in_constant_time_by_one_function_and_nowhere_else() -> None:
    trees = {
        file.relative_to(PACKAGE): ast.parse(file.read_text(encoding="utf-8"))
        for folder in ASKED
        for file in sorted((PACKAGE / folder).rglob("*.py"))
    }
    assert "return hmac.compare_digest(" in ast.unparse(trees.pop(COMPARING))
    assert {name: found for name, tree in trees.items() if (found := open_comparisons(tree))} == {}
    asking = {str(name) for name, tree in trees.items() if "is_same(" in ast.unparse(tree)}
    assert asking == {"evaluator/http_api.py", "gym_host/server.py"}


@pytest.mark.parametrize(
    "line",
    [
        "return given == token",
        "return tokens.progress.encode() != given",
        "return self._authorization == given",
        "return given in self._tokens.values()",
        "return hmac.compare_digest(given, token)",
        "return given.startswith(token)",
        "mine = request.headers.get('Authorization', '').removeprefix('Bearer ').encode(); return mine in known",
        "mine = _proxy_password(request); other = mine.strip(); return other == known[0]",
        "return request.headers['Proxy-Authorization'] == known",
    ],
)
def test_an_open_comparison_of_a_credential_is_found(line: str) -> None:
    assert open_comparisons(ast.parse(f"def f():\n    {line}"))


@pytest.mark.parametrize(
    "line",
    [
        "return 'Authorization' in request.headers",
        "return token is None or usage.input_tokens == 3 and len(found) == 1",
        "headers = {'Authorization': token}; answer = ask(url, headers); return answer.status == 200",
        "return 'token' == TOKEN_FILE",
    ],
)
def test_what_compares_no_credential_is_not_taken_for_it(line: str) -> None:
    assert open_comparisons(ast.parse(f"def f():\n    {line}")) == []
