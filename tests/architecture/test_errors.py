"""Every exception is defined in `turnwire.errors`: no other module defines one."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import pytest

from turnwire import errors
from turnwire.errors import tree

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "turnwire"
BUILTIN_ERRORS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}


def strays(text: str) -> list[str]:
    """Return classes in a module that are exceptions: they derive from a builtin one or from one of ours."""
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


def test_no_exception_is_defined_outside_the_tree() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in {"errors.py", "testing"}
        if (names := strays(path.read_text(encoding="utf-8")))
    }
    assert found == {}, "define them in `turnwire.errors`, where clients and the table of tests find them"


@pytest.mark.parametrize("base", ["Exception", "ValueError", "LogError", "errors.SessionError"])
def test_an_exception_outside_the_tree_is_found(base: str) -> None:
    assert strays(f"class Fine(Protocol): ...\nclass Stray({base}): ...\n") == ["Stray"]
