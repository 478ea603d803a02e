"""The shape of the code: modules that say their job, names that say something, nothing left undone.

Each rule reads one module and gives complaints that say what to do. Each is shown to fail on a made-up
module. Exemptions are named here, each with its reason. No rule counts lines, methods or fields: a ruler is met by
cutting, and a concept that was cut to fit is harder to read than a long file. `scripts/size_report.py` shows sizes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "scripts", "bench")

EXEMPT_FROM_NAMES = {"src/turnwire/wire/schema/": "the names are ACP's"}
FOREIGN_NAMES = {"data_received", "pipe_data_received"}
"""Methods whose name an interface of the standard library sets."""

BANNED_WORDS = {
    *("manager", "handler", "helper", "util", "service", "bridge"),
    *("processor", "data", "info", "impl", "abstract"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One file under a rule."""

    path: str
    text: str
    tree: ast.Module

    def is_in(self, *folders: str) -> bool:
        return self.path.startswith(tuple(f"{folder}/" for folder in folders))

    def is_exempt(self, exemptions: dict[str, str]) -> bool:
        return self.path.startswith(tuple(exemptions))


def module(path: str, text: str) -> Module:
    return Module(path, text, ast.parse(text))


@cache
def modules() -> tuple[Module, ...]:
    """Every file, read once for all rules."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths)


def classes(each: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(each.tree) if isinstance(node, ast.ClassDef))


def functions(each: Module) -> Iterator[Function]:
    return (node for node in ast.walk(each.tree) if isinstance(node, Function))


def name_of(node: ast.expr) -> str:
    """The last name of `a.b.C`, `C(…)` or `C[…]`."""
    while not isinstance(node, ast.Name | ast.Attribute):
        inner = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Subscript) else None
        if inner is None:
            return ""
        node = inner
    return node.id if isinstance(node, ast.Name) else node.attr


def module_says_its_job(each: Module) -> Iterator[str]:
    if not ast.get_docstring(each.tree):
        yield f"{each.path}: no docstring; say its job in one line"


def names_say_something(each: Module) -> Iterator[str]:
    if each.is_in("tests") or each.is_exempt(EXEMPT_FROM_NAMES):
        return
    stem = PurePosixPath(each.path).stem
    named = [
        (1, stem),
        *((node.lineno, node.name) for node in (*classes(each), *functions(each))),
    ]
    for line, name in named:
        if name not in FOREIGN_NAMES and (banned := banned_words(name)):
            yield f"{each.path}:{line}: `{name}` says {banned[0]!r}; name what it is or does"


def banned_words(name: str) -> list[str]:
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    found = [word for word in words if word in BANNED_WORDS or word.removesuffix("s") in BANNED_WORDS]
    return found + (["base"] if name[0].isupper() and words[:1] == ["base"] else [])


def init_only_exports(each: Module) -> Iterator[str]:
    if not each.path.endswith("/__init__.py"):
        return
    for index, node in enumerate(each.tree.body):
        is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_listing = isinstance(node, ast.Assign) and {name_of(each) for each in node.targets} <= {
            "__all__",
            "__version__",
        }
        if not (is_docstring or is_import or is_listing):
            yield f"{each.path}:{node.lineno}: code in `__init__.py`; move it to a module with a name"


def imports_are_named(each: Module) -> Iterator[str]:
    for node in ast.walk(each.tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            yield f"{each.path}:{node.lineno}: `import *`; name what you take"


def nothing_is_left_undone(each: Module) -> Iterator[str]:
    for number, line in enumerate(each.text.splitlines(), 1):
        if each.is_in("src") and (match := re.search(r"\b(NotImplementedError|TODO|FIXME|XXX)\b", line)):
            yield f"{each.path}:{number}: {match[0]}; finish it or leave it out"


Rule = Callable[[Module], Iterator[str]]
RULES: list[Rule] = [
    module_says_its_job,
    names_say_something,
    init_only_exports,
    imports_are_named,
    nothing_is_left_undone,
]


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    assert [complaint for each in modules() for complaint in rule(each)] == []


def test_every_exemption_is_of_something_that_exists() -> None:
    exempt = [*EXEMPT_FROM_NAMES]
    assert [path for path in exempt if not (ROOT / path).exists()] == []


SRC = "src/turnwire/core/turn.py"
BROKEN: list[tuple[Rule, str, str]] = [
    (module_says_its_job, "bench/__main__.py", "x = 1\n"),
    (names_say_something, SRC, "class TurnManager: ...\n"),
    (names_say_something, SRC, "class BaseLog: ...\n"),
    (names_say_something, SRC, "def read_data(): ...\n"),
    (names_say_something, SRC, "class HTTPHandlers: ...\n"),
    (names_say_something, "src/turnwire/core/turn_utils.py", ""),
    (init_only_exports, "src/turnwire/log/__init__.py", '"""Job."""\n\n\ndef f(): ...\n'),
    (init_only_exports, "src/turnwire/log/__init__.py", '"""Job."""\nLIMIT = 3\n'),
    (imports_are_named, "tests/unit/test_a.py", "from turnwire.errors import *\n"),
    (nothing_is_left_undone, SRC, "def f():\n    raise NotImplementedError\n"),
    (nothing_is_left_undone, SRC, "# TODO: later\n"),
]
SOUND: list[tuple[Rule, str, str]] = [
    (module_says_its_job, SRC, '"""Job."""\n'),
    (names_say_something, SRC, "class Metadata: ...\nclass Information: ...\ndef data_received(): ...\n"),
    (names_say_something, "src/turnwire/log/base.py", "class EventLog: ...\n"),
    (names_say_something, "src/turnwire/wire/schema/v1.py", "class SessionInfoUpdate: ...\n"),
    (
        init_only_exports,
        "src/turnwire/__init__.py",
        '"""Job."""\nfrom a import b\n__version__ = "1"\n__all__ = ["b"]\n',
    ),
    (imports_are_named, SRC, "from a import b\n"),
    (nothing_is_left_undone, SRC, "def method(self): ...\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN)
def test_a_module_that_breaks_the_rule_is_refused(rule: Rule, path: str, text: str) -> None:
    [complaint] = rule(module(path, text))
    assert complaint.startswith(path)


@pytest.mark.parametrize(("rule", "path", "text"), SOUND)
def test_a_module_that_keeps_the_rule_passes(rule: Rule, path: str, text: str) -> None:
    assert list(rule(module(path, text))) == []


def test_every_rule_is_shown_to_fail_and_to_pass() -> None:
    assert {rule for rule, _, _ in BROKEN} == {rule for rule, _, _ in SOUND} == set(RULES)
