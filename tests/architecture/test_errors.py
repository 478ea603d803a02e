"""The exception tree and its drawing are one and the same, and every error is a failure on every surface.

Looks at `turnwire.errors` itself and, in the syntax trees of all other modules, for exceptions that are
defined outside it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path

import pytest

from turnwire import errors
from turnwire.errors import SessionBusy, TurnwireError, kind_of, tree

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "turnwire"
DRAWN = re.compile(r"^ {4}(?P<lead>(?:│  |   )*(?:[├└]─ )?)(?P<name>[A-Z][A-Za-z]+)(?: {2,}\S.*)?$")
BUILTIN_ERRORS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}


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
    known = BUILTIN_ERRORS | {each.__name__ for each in tree()}
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and any(_last_name(base) in known for base in node.bases)
    ]


def _last_name(base: ast.expr) -> str:
    return ast.unparse(base).rpartition(".")[2]


def test_the_tree_is_every_error_of_the_module() -> None:
    defined = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, BaseException)}
    assert set(tree()) == defined


def test_codes_are_unique_slugs_of_each_class_itself() -> None:
    classes = list(tree())
    assert [each.__name__ for each in classes if "code" not in vars(each)] == []
    assert [each.code for each in classes if not re.fullmatch(r"[a-z]+(_[a-z]+)*", each.code)] == []
    codes = [each.code for each in classes]
    assert sorted(codes) == sorted(set(codes))


def test_the_drawing_shows_the_classes() -> None:
    real = [
        (each.__name__, each.__base__.__name__ if each is not TurnwireError and each.__base__ else "")
        for each in tree()
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


def test_every_error_is_a_failure_on_every_surface() -> None:
    wrong = {
        each.__name__: (each.http_status, each.jsonrpc_code, each.exit_status)
        for each in tree()
        if not (
            400 <= each.http_status < 600 and -32768 <= each.jsonrpc_code <= -32000 and 64 <= each.exit_status <= 78
        )
    }
    assert wrong == {}


def test_a_foreign_error_is_an_internal_one_to_the_outside() -> None:
    assert kind_of(KeyError("secret")) is TurnwireError
    assert kind_of(SessionBusy("wait for the turn to end")) is SessionBusy


def test_no_exception_is_defined_outside_the_tree() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in {"errors.py", "testing"}
        if (names := strays(path.read_text(encoding="utf-8")))
    }
    assert found == {}, "define them in `turnwire.errors`, where the drawing can show them"


@pytest.mark.parametrize("base", ["Exception", "ValueError", "LogError", "errors.SessionError"])
def test_an_exception_outside_the_tree_is_found(base: str) -> None:
    assert strays(f"class Fine(Protocol): ...\nclass Stray({base}): ...\n") == ["Stray"]
