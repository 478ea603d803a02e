"""The size and the shape of the code: small files, small functions, small state, names that say something.

Each rule reads one module and gives complaints that say what to do. Each is shown to fail on a made-up
module. Exemptions are named here, each with its reason.
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
FILE_LINES, FUNCTION_LINES, STATE_FIELDS, PUBLIC_METHODS = 400, 50, 15, 12

EXEMPT_FROM_FILE_LINES: dict[str, str] = {}
EXEMPT_FROM_STATE_FIELDS = {
    "src/turnwire/limits.py": "one field per limit is the point of it",
    "src/turnwire/wire/schema/": "the fields are ACP's",
}
EXEMPT_FROM_NAMES = {"src/turnwire/wire/schema/": "the names are ACP's"}
FOREIGN_NAMES = {"data_received", "pipe_data_received"}
"""Methods whose name an interface of the standard library sets."""

BANNED_WORDS = {
    *("manager", "handler", "helper", "util", "service", "bridge"),
    *("processor", "data", "info", "impl", "abstract"),
}
WIDE = "Wide on purpose:"
"""A protocol whose docstring says this, with the reason, may have more methods."""

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


def classes(given: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(given.tree) if isinstance(node, ast.ClassDef))


def functions(given: Module) -> Iterator[Function]:
    return (node for node in ast.walk(given.tree) if isinstance(node, Function))


def at(given: Module, node: ast.ClassDef | Function) -> str:
    return f"{given.path}:{node.lineno}: {node.name}"


def name_of(node: ast.expr) -> str:
    """The last name of `a.b.C`, `C(…)` or `C[…]`."""
    while not isinstance(node, ast.Name | ast.Attribute):
        inner = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Subscript) else None
        if inner is None:
            return ""
        node = inner
    return node.id if isinstance(node, ast.Name) else node.attr


def file_is_short(given: Module) -> Iterator[str]:
    lines = len(given.text.splitlines())
    if lines > FILE_LINES and not given.is_exempt(EXEMPT_FROM_FILE_LINES):
        yield f"{given.path}: {lines} lines, at most {FILE_LINES}; split it by concept"


def functions_are_short(given: Module) -> Iterator[str]:
    for node in functions(given):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES and given.is_in("src"):
            yield f"{at(given, node)}: {lines} lines, at most {FUNCTION_LINES}; name its steps"


def state_is_small(given: Module) -> Iterator[str]:
    if not given.is_in("src") or given.is_exempt(EXEMPT_FROM_STATE_FIELDS):
        return
    for node in classes(given):
        kinds = {name_of(each) for each in (*node.bases, *node.decorator_list)}
        fields = [
            each for each in node.body if isinstance(each, ast.AnnAssign) and name_of(each.annotation) != "ClassVar"
        ]
        if kinds & {"dataclass", "Struct", "NamedTuple", "TypedDict"} and len(fields) > STATE_FIELDS:
            yield f"{at(given, node)}: {len(fields)} fields, at most {STATE_FIELDS}; group them"


def classes_are_narrow(given: Module) -> Iterator[str]:
    if not given.is_in("src"):
        return
    for node in classes(given):
        names = {each.name for each in node.body if isinstance(each, Function)}
        public = len([name for name in names if not name.startswith(("_", "test_"))])
        is_protocol = "Protocol" in {name_of(each) for each in node.bases}
        is_wide_on_purpose = is_protocol and WIDE in (ast.get_docstring(node) or "")
        if public > PUBLIC_METHODS and not is_wide_on_purpose:
            yield f"{at(given, node)}: {public} public methods, at most {PUBLIC_METHODS}; split it"


def module_says_its_job(given: Module) -> Iterator[str]:
    if not ast.get_docstring(given.tree):
        yield f"{given.path}: no docstring; say its job in one line"


def names_say_something(given: Module) -> Iterator[str]:
    if given.is_in("tests") or given.is_exempt(EXEMPT_FROM_NAMES):
        return
    stem = PurePosixPath(given.path).stem
    named = [
        (1, stem),
        *((node.lineno, node.name) for node in (*classes(given), *functions(given))),
    ]
    for line, name in named:
        if name not in FOREIGN_NAMES and (banned := banned_words(name)):
            yield f"{given.path}:{line}: `{name}` says {banned[0]!r}; name what it is or does"


def banned_words(name: str) -> list[str]:
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    found = [word for word in words if word in BANNED_WORDS or word.removesuffix("s") in BANNED_WORDS]
    return found + (["base"] if name[0].isupper() and words[:1] == ["base"] else [])


def init_only_exports(given: Module) -> Iterator[str]:
    if not given.path.endswith("/__init__.py"):
        return
    for index, node in enumerate(given.tree.body):
        is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_listing = isinstance(node, ast.Assign) and {name_of(each) for each in node.targets} <= {
            "__all__",
            "__version__",
        }
        if not (is_docstring or is_import or is_listing):
            yield f"{given.path}:{node.lineno}: code in `__init__.py`; move it to a module with a name"


def imports_are_named(given: Module) -> Iterator[str]:
    for node in ast.walk(given.tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            yield f"{given.path}:{node.lineno}: `import *`; name what you take"


def nothing_is_left_undone(given: Module) -> Iterator[str]:
    for number, line in enumerate(given.text.splitlines(), 1):
        if given.is_in("src") and (match := re.search(r"\b(NotImplementedError|TODO|FIXME|XXX)\b", line)):
            yield f"{given.path}:{number}: {match[0]}; finish it or leave it out"


Rule = Callable[[Module], Iterator[str]]
RULES: list[Rule] = [
    file_is_short,
    functions_are_short,
    state_is_small,
    classes_are_narrow,
    module_says_its_job,
    names_say_something,
    init_only_exports,
    imports_are_named,
    nothing_is_left_undone,
]


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    assert [complaint for given in modules() for complaint in rule(given)] == []


def test_every_exemption_is_of_something_that_exists() -> None:
    exempt = [*EXEMPT_FROM_FILE_LINES, *EXEMPT_FROM_STATE_FIELDS, *EXEMPT_FROM_NAMES]
    assert [path for path in exempt if not (ROOT / path).exists()] == []


def fields(count: int) -> str:
    return "".join(f"    f{number}: int\n" for number in range(count))


def methods(count: int) -> str:
    return "".join(f"    def m{number}(self): ...\n" for number in range(count))


SRC = "src/turnwire/core/turn.py"
BROKEN: list[tuple[Rule, str, str]] = [
    (file_is_short, "tests/unit/test_a.py", "x = 1\n" * 401),
    (functions_are_short, SRC, "async def f():\n" + "    x = 1\n" * 50),
    (state_is_small, SRC, "class S(msgspec.Struct, frozen=True):\n" + fields(16)),
    (state_is_small, SRC, "@dataclass(frozen=True)\nclass S:\n" + fields(16)),
    (classes_are_narrow, SRC, "class C:\n" + methods(13)),
    (classes_are_narrow, SRC, f'class C:\n    """{WIDE} but no protocol."""\n' + methods(13)),
    (classes_are_narrow, SRC, "class C(Protocol):\n" + methods(13)),
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
    (file_is_short, SRC, "x = 1\n" * 400),
    (functions_are_short, SRC, "def f():\n" + "    x = 1\n" * 49),
    (functions_are_short, "tests/unit/test_a.py", "def f():\n" + "    x = 1\n" * 60),
    (state_is_small, SRC, "class S(Struct):\n    KIND: ClassVar[str] = 'x'\n" + fields(15)),
    (state_is_small, "src/turnwire/wire/schema/v1.py", "class S(Struct):\n" + fields(16)),
    (classes_are_narrow, SRC, "class C:\n    def _private(self): ...\n" + methods(12)),
    (classes_are_narrow, SRC, f'class C(Protocol):\n    """{WIDE} one call per route."""\n' + methods(13)),
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
