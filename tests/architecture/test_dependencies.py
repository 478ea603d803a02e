"""Only the public API of dependencies is used, and each has a lower and an upper bound."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = [REPOSITORY / "src", *sorted((REPOSITORY / "packages").glob("*/src"))]
PROJECTS = [REPOSITORY / "pyproject.toml", *sorted((REPOSITORY / "packages").glob("*/pyproject.toml"))]
DOCUMENTED = {"_asdict", "_fields", "_make", "_replace", "_exit", "_srcfile"}
"""Names with an underscore that Python's documentation describes: of named tuples, `os` and `logging`."""
UNDOCUMENTED = {"uvicorn.protocols", "uvicorn.server", "starlette._utils"}
"""Modules without an underscore that their library does not document."""


def imported(node: ast.AST) -> Iterator[str]:
    """Dotted names that an absolute import brings in."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_private(name: str) -> bool:
    first, *rest = name.split(".")
    if first in sys.stdlib_module_names or first.startswith("turnwire"):
        return False
    return any(part.startswith("_") and not part.startswith("__") for part in rest) or any(
        name == each or name.startswith(f"{each}.") for each in UNDOCUMENTED
    )


def reached(node: ast.AST) -> Iterator[str]:
    """Private names that an expression reads, sets or deletes on an object, directly or through `getattr`."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
        yield from (str(each.value) for each in node.args[1:2] if isinstance(each, ast.Constant))


def defined(node: ast.AST) -> Iterator[str]:
    """Names that a statement defines: classes, functions, variables, attributes of `self` and slots."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
        yield node.attr


def foreign(trees: Mapping[str, ast.Module]) -> list[str]:
    """Accesses to private names that none of the files defines, so that they belong to a dependency."""
    own, found = set(DOCUMENTED), list[tuple[str, str]]()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            own.update(defined(node))
            private = (name for name in reached(node) if name.startswith("_") and not name.startswith("__"))
            found += ((f"{path}:{getattr(node, 'lineno', 0)}", name) for name in private)
    return [f"{place}: {name}" for place, name in found if name not in own]


def test_no_private_attribute_of_a_dependency_is_used() -> None:
    trees = {
        str(path.relative_to(REPOSITORY)): ast.parse(path.read_bytes())
        for source in SOURCES
        for path in sorted(source.rglob("*.py"))
    }
    assert foreign(trees) == []


def test_private_attributes_of_dependencies_are_recognised() -> None:
    lines = """
class Server(Base):
    def __init__(self):
        self._own = 1
        self._own, row._replace(a=1), thing.__class__

    def run(self, server):
        server._theirs = getattr(server, "_hidden", None)
"""
    assert foreign({"a.py": ast.parse(lines)}) == ["a.py:8: _theirs", "a.py:8: _hidden"]


def test_no_private_part_of_a_dependency_is_imported() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{getattr(node, 'lineno', 0)}: {name}"
        for source in SOURCES
        for path in sorted(source.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        for name in imported(node)
        if is_private(name)
    ]
    assert found == []


def test_private_imports_are_recognised() -> None:
    lines = (
        "import uvicorn.server\nfrom starlette._utils import x\nfrom h2 import _y\nimport anyio.abc\nimport _thread"
    )
    names = [name for node in ast.walk(ast.parse(lines)) for name in imported(node)]
    assert [name for name in names if is_private(name)] == ["uvicorn.server", "starlette._utils.x", "h2._y"]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.parent.name)
def test_every_dependency_has_two_bounds(project: Path) -> None:
    declared: dict[str, Any] = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    groups = [declared["dependencies"], *declared.get("optional-dependencies", {}).values()]
    required = [each.split(";")[0] for group in groups for each in group]
    unbounded = [each for each in required if "==" not in each and not (">=" in each and ",<" in each)]
    assert unbounded == []
