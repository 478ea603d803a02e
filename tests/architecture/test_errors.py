"""The exception tree, its drawing and the table of problems are one and the same.

Looks at `turnwire.errors` itself and, in the syntax trees of all other modules, for exceptions that are
defined outside it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnwire import errors
from turnwire.errors import SessionBusy, TurnwireError
from turnwire.problems import PROBLEMS, problem

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "turnwire"
DRAWN = re.compile(r"^ {4}(?P<lead>(?:│  |   )*(?:[├└]─ )?)(?P<name>[A-Z][A-Za-z]+)(?: {2,}\S.*)?$")
BUILTIN_ERRORS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}


def tree(root: type[TurnwireError]) -> Iterator[type[TurnwireError]]:
    """`root` and everything under it that turnwire defines; tests may define their own."""
    yield root
    for each in root.__subclasses__():
        if each.__module__.startswith("turnwire."):
            yield from tree(each)


def drawn(docstring: str) -> list[tuple[str, str]]:
    """Name and parent of each class in the drawing, in its order."""
    found: list[tuple[str, str]] = []
    above: list[str] = []
    for line in inspect.cleandoc(docstring).splitlines():
        if match := DRAWN.match(line):
            depth = len(match["lead"]) // 3
            found.append((match["name"], above[depth - 1] if depth else ""))
            above[depth:] = [match["name"]]
    return found


def strays(text: str) -> list[str]:
    """Classes in a module that are exceptions: they derive from a builtin one or from one of ours."""
    known = BUILTIN_ERRORS | {each.__name__ for each in tree(TurnwireError)}
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and any(_last_name(base) in known for base in node.bases)
    ]


def _last_name(base: ast.expr) -> str:
    return ast.unparse(base).rpartition(".")[2]


def test_every_error_has_a_problem_and_nothing_else_has() -> None:
    assert set(PROBLEMS) == set(tree(TurnwireError))


def test_codes_are_unique_slugs_of_each_class_itself() -> None:
    classes = list(tree(TurnwireError))
    assert [each.__name__ for each in classes if "code" not in vars(each)] == []
    assert [each.code for each in classes if not re.fullmatch(r"[a-z]+(_[a-z]+)*", each.code)] == []
    codes = [each.code for each in classes]
    assert sorted(codes) == sorted(set(codes))


def test_the_drawing_shows_the_classes() -> None:
    real = [
        (each.__name__, each.__base__.__name__ if each is not TurnwireError and each.__base__ else "")
        for each in tree(TurnwireError)
    ]
    assert sorted(drawn(errors.__doc__ or "")) == sorted(real)


def test_the_drawing_is_read_with_its_depth() -> None:
    drawing = """First line.

        Top        what it is
        ├─ One
        │  └─ Two
        │     └─ Three    why
        └─ Four

    Prose about Top.
    """
    expected = [("Top", ""), ("One", "Top"), ("Two", "One"), ("Three", "Two"), ("Four", "Top")]
    assert drawn(drawing) == expected


def test_every_problem_is_a_failure_on_every_surface() -> None:
    wrong = {
        each.__name__: what
        for each, what in PROBLEMS.items()
        if not (400 <= what.http < 600 and -32768 <= what.jsonrpc <= -32000 and 64 <= what.exit <= 78)
    }
    assert wrong == {}


def test_a_foreign_error_is_an_internal_one_to_the_outside() -> None:
    assert problem(KeyError("secret")) == PROBLEMS[TurnwireError]
    assert problem(SessionBusy("wait for the turn to end")) == PROBLEMS[SessionBusy]


def test_no_exception_is_defined_outside_the_tree() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in {"errors", "testing"}
        if (names := strays(path.read_text(encoding="utf-8")))
    }
    assert found == {}, "define them in `turnwire.errors`, where the drawing and PROBLEMS can hold them"


@pytest.mark.parametrize("base", ["Exception", "ValueError", "LogError", "errors.SessionError"])
def test_an_exception_outside_the_tree_is_found(base: str) -> None:
    assert strays(f"class Fine(Protocol): ...\nclass Stray({base}): ...\n") == ["Stray"]
