"""No circular imports: at every level of the tree, the children of a folder can be ordered.

The children of a folder are its modules and its folders. An import from inside one child into another is an edge
between the two; the edges must have no cycle. The order is not written down anywhere; its existence is enough.

An import for type checking only counts as well: a reader of one must read the other. `MAY_NAME` lists the few
exceptions, where two classes have each other as attributes, each with its reason.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
SOURCES = [SOURCE, *sorted(ROOT.glob("packages/*/src"))]

Dotted = tuple[str, ...]
Arrows = dict[str, set[str]]

MAY_NAME = {
    ("turnwire.agent.session", "turnwire.agent.live_session"): (
        "what an author sees of a session hands everything on to the session itself, which makes it"
    ),
    ("turnwire.agent.session", "turnwire.agent.turn"): (
        "`Session.running` and `Turn.session` are public: an author goes from either to the other"
    ),
    ("turnwire.agent.live_session", "turnwire.agent.turns"): (
        "a session has its turns, given by who brings it up; what runs them is made of sessions"
    ),
}
"""Modules that may import each other's types despite the cycle, and the reason."""


def modules(source: Path) -> dict[Dotted, Path]:
    """Return every module of the package by its dotted parts; a folder stands for its `__init__`."""
    paths = sorted(source.rglob("*.py"))
    parts = {path: path.relative_to(source).with_suffix("").parts for path in paths}
    return {each[:-1] if each[-1] == "__init__" else each: path for path, each in parts.items()}


class Import(NamedTuple):
    """One internal import."""

    there: Dotted
    is_for_types: bool


def typed_only(tree: ast.Module) -> set[ast.AST]:
    """Return all statements below `if TYPE_CHECKING:`."""
    guards = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    return {inner for guard in guards for each in guard.body for inner in ast.walk(each)}


def imported(path: Path, here: Dotted, known: dict[Dotted, Path]) -> Iterator[Import]:
    """Return our modules that a module imports, anywhere in it."""
    package = here if path.name == "__init__.py" else here[:-1]
    tree = ast.parse(path.read_bytes())
    for_types = typed_only(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = (*start, *(node.module.split(".") if node.module else ()))
            named = [(*base, alias.name) for alias in node.names]
        else:
            continue
        for each in named:
            # `from a.b import c` names the module a.b.c, or something in the module a.b.
            found = each if each in known else each[:-1]
            if found in known and found != here:
                yield Import(found, node in for_types)


def arrows(source: Path) -> dict[Dotted, Arrows]:
    """For each folder: which of its children import which other children."""
    known = modules(source)
    found: defaultdict[Dotted, Arrows] = defaultdict(dict)
    for here, path in known.items():
        for there, is_for_types in imported(path, here, known):
            shared = next((n for n, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
            # A folder's `__init__` re-exports its children, so it is above them and has no siblings.
            if shared is not None and not (is_for_types and (".".join(here), ".".join(there)) in MAY_NAME):
                found[here[:shared]].setdefault(here[shared], set()).add(there[shared])
    return found


def circle(children: Arrows) -> list[str]:
    """Return one cycle among the children of a folder, as the way around; empty if there is none."""
    done: set[str] = set()

    def walk(child: str, way: list[str]) -> list[str]:
        if child in way:
            return [*way[way.index(child) :], child]
        if child in done:
            return []
        for other in sorted(children.get(child, ())):
            if found := walk(other, [*way, child]):
                return found
        done.add(child)
        return []

    ways = (walk(child, []) for child in sorted(children))
    return next(filter(None, ways), list[str]())


def complaints(source: Path) -> list[str]:
    return [
        f"{'/'.join(folder)}: {' → '.join(found)} → …; let one of them not know the other"
        for folder, children in sorted(arrows(source).items())
        if (found := circle(children))
    ]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.parent.name)
def test_nothing_imports_in_a_circle(source: Path) -> None:
    assert complaints(source) == []


@pytest.mark.parametrize("pair", MAY_NAME)
def test_who_may_name_the_other_does_and_only_for_types(pair: tuple[str, str]) -> None:
    here, there = (tuple(each.split(".")) for each in pair)
    known = modules(SOURCE)
    found = [each.is_for_types for each in imported(known[here], here, known) if each.there == there]
    assert found == [True], "it need not be in MAY_NAME"


@pytest.mark.parametrize(
    ("files", "is_circle"),
    [
        ({"a/x.py": "from turnwire.b import y", "b/y.py": ""}, False),
        ({"a/x.py": "from turnwire.b import y", "b/y.py": "", "b/z.py": "from turnwire.a import x"}, True),
        ({"a/x.py": "from turnwire.a.y import f", "a/y.py": "from turnwire.a.x import g"}, True),
        ({"a/x.py": "from .y import f", "a/y.py": "def f():\n    from .x import g"}, True),
        ({"a/x.py": "if TYPE_CHECKING:\n    from turnwire.a.y import F", "a/y.py": "import turnwire.a.x"}, True),
        ({"a/x.py": "if TYPE_CHECKING:\n    from turnwire.a.y import F", "a/y.py": ""}, False),
        (
            {
                "agent/session.py": "if TYPE_CHECKING:\n    from turnwire.agent.turn import Turn",
                "agent/turn.py": "from turnwire.agent.session import Session",
            },
            False,
        ),
        (
            {
                "agent/session.py": "from turnwire.agent.turn import Turn",
                "agent/turn.py": "from turnwire.agent.session import Session",
            },
            True,
        ),
        ({"a/x.py": "if TYPE_CHECKING:\n    from turnwire.b.y import F", "b/y.py": "import turnwire.a.x"}, True),
        (
            {"a/m/x.py": "if TYPE_CHECKING:\n    from turnwire.a.y import F", "a/y.py": "import turnwire.a.m.x"},
            True,
        ),
        ({"a/m/x.py": "from turnwire.a.top import f", "a/top.py": "from turnwire.a.m.x import g"}, True),
        (
            {"a/m/x.py": "from turnwire.a.top import f", "a/top.py": "from turnwire.b.n import g", "b/n.py": ""},
            False,
        ),
        (
            {"a/__init__.py": "from turnwire.a.x import f", "a/x.py": "from turnwire.a.y import f", "a/y.py": ""},
            False,
        ),
        ({"a/x.py": "from turnwire.b import f", "b/__init__.py": "from turnwire.a.x import g"}, True),
    ],
)
def test_a_circle_is_found_and_an_order_passes(tmp_path: Path, files: dict[str, str], is_circle: bool) -> None:
    for name, text in files.items():
        path = tmp_path / "turnwire" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert bool(complaints(tmp_path)) is is_circle
