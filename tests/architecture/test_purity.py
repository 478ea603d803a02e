"""`wire`, `session`, `projections` and the modules under them decide and translate; they never act.

Clock, randomness, input and output enter only as arguments, so that the same inputs give the same events on every
machine and after every restart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "turnwire"
PURE = ("wire", "session", "projections", "errors.py", "limits.py", "ids.py")
FORBIDDEN_IMPORTS = {
    "anyio",
    "asyncio",
    "datetime",
    "logging",
    "os",
    "pathlib",
    "random",
    "secrets",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
    "uuid",
}
FORBIDDEN_CALLS = {"open", "print", "input"}


def pure_files(package: Path) -> Iterator[Path]:
    for name in PURE:
        path = package / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def impurities(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of everything in this module that reaches outside."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
            yield from ((node.lineno, name) for name in names if name in FORBIDDEN_IMPORTS)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            name = (node.module or "").split(".")[0]
            if name in FORBIDDEN_IMPORTS:
                yield node.lineno, name
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            yield node.lineno, f"{node.func.id}()"


def test_pure_modules_reach_nothing_outside() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name} in a pure module; take its result as an argument"
        for path in pure_files(PACKAGE)
        for line, name in impurities(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_every_pure_part_is_there_to_be_checked() -> None:
    assert [name for name in PURE if not (PACKAGE / name).exists()] == []


@pytest.mark.parametrize("name", sorted(FORBIDDEN_IMPORTS))
def test_a_forbidden_import_is_found_in_every_form(name: str) -> None:
    top = f"import {name}\nfrom {name} import x\nimport {name}.sub as y\n"
    inner = f"def f():\n    from {name}.sub import z\n"
    assert list(impurities(top + inner)) == [(1, name), (2, name), (3, name), (5, name)]


@pytest.mark.parametrize("name", sorted(FORBIDDEN_CALLS))
def test_a_forbidden_call_is_found(name: str) -> None:
    assert list(impurities(f"def f():\n    return {name}('x')\n")) == [(2, f"{name}()")]


def test_names_that_only_look_alike_pass() -> None:
    text = "from .time import Stamp\nfrom turnwire.session import os\nimport timeit_like\nlink.open()\nprinter(1)\n"
    assert list(impurities(text)) == []
