"""Every numbered rule of ACP v1 and v2 has tests that exist, or a reason why it needs none.

Reads `docs/checklists.toml` and finds the named tests in the syntax tree, so that a test that was renamed, removed
or switched off is noticed whether or not it was selected.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = {
    1: [*map(str, range(1, 75)), "74a", *map(str, range(75, 105))],
    2: [*map(str, range(1, 62))],
}
LEVELS = {"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"}
SIDES = {"agent", "client", "both", "reader", "batch reader", "adapter", "SDK"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: str
    level: str
    side: str
    rule: str
    tests: list[str] = []
    exempt: str = ""
    missing: str = ""
    unjudged: str = ""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    title: str
    item: list[Item]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    group: list[Group]


def groups() -> list[Group]:
    return msgspec.toml.decode((ROOT / "docs" / "checklists.toml").read_bytes(), type=Source).group


@cache
def runnable_in(path: Path) -> frozenset[str]:
    """The tests of a module that are not switched off."""
    if not path.is_file():
        return frozenset()
    found = (each for each in ast.parse(path.read_bytes()).body if isinstance(each, Function) and is_on(each))
    return frozenset(each.name for each in found)


def is_on(test: Function) -> bool:
    marks = {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in test.decorator_list}
    return test.name.startswith("test_") and not marks & {"skip", "xfail"}


def number_complaints(listed: list[Group]) -> list[str]:
    """Numbers that are missing, doubled or not of the list, and lists that are not in order."""
    complaints: list[str] = []
    for version, wanted in NUMBERS.items():
        found = [item.number for group in listed if group.version == version for item in group.item]
        complaints += [f"v{version} {each} is missing; add it" for each in wanted if each not in found]
        complaints += [f"v{version} {each} is no number of the list" for each in found if each not in wanted]
        complaints += [f"v{version} {each} stands twice; keep one" for each in wanted if found.count(each) > 1]
        if not complaints and found != wanted:
            complaints.append(f"v{version} is not in order")
    return complaints


def item_complaints(item: Item, root: Path) -> list[str]:
    """What is wrong with one entry, in words that say what to do."""
    complaints: list[str] = []
    if item.level not in LEVELS or item.side not in SIDES:
        complaints.append(f"`level` is one of {sorted(LEVELS)}, `side` one of {sorted(SIDES)}")
    if not item.rule.endswith("."):
        complaints.append("the rule does not end")
    if bool(item.tests) == bool(item.exempt):
        complaints.append("give either tests or the reason why it is exempt")
    if item.exempt and (len(item.exempt.split()) < 4 or not item.exempt.endswith(".")):
        complaints.append("the exemption gives no reason; write a sentence")
    if item.unjudged and (len(item.unjudged.split()) < 4 or not item.unjudged.endswith(".")):
        complaints.append("`unjudged` gives no reason; write a sentence")
    if len(set(item.tests)) != len(item.tests):
        complaints.append("a test is named twice")
    for test in item.tests:
        path, _, name = test.partition("::")
        if name not in runnable_in(root / path):
            complaints.append(f"{test} is not there, or is switched off; name a test that runs")
    return [f"{item.number}: {each}" for each in complaints]


def test_every_number_of_both_lists_is_there_once() -> None:
    assert number_complaints(groups()) == []


def test_every_rule_has_tests_that_exist_or_a_reason() -> None:
    complaints = [
        f"v{group.version} {each}"
        for group in groups()
        for item in group.item
        for each in item_complaints(item, ROOT)
    ]
    assert complaints == []


def test_the_page_is_current() -> None:
    command = [sys.executable, "scripts/write_checklists.py", "--check"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stderr) == (0, "")


def made_up(number: str = "1", /, **changed: object) -> Item:
    whole = {"number": number, "level": "MUST", "side": "both", "rule": "A rule.", "tests": ["t.py::test_a"]}
    return msgspec.convert(whole | changed, Item)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"level": "COULD"}, "`level` is one of"),
        ({"side": "server"}, "`level` is one of"),
        ({"rule": "A rule"}, "the rule does not end"),
        ({"tests": []}, "give either tests"),
        ({"exempt": "It is about drawing on screens."}, "give either tests"),
        ({"tests": [], "exempt": "No."}, "the exemption gives no reason"),
        ({"tests": ["t.py::test_a", "t.py::test_a"]}, "a test is named twice"),
        ({"tests": ["t.py::test_b"]}, "t.py::test_b is not there, or is switched off"),
        ({"tests": ["t.py::test_c"]}, "t.py::test_c is not there"),
        ({"tests": ["u.py::test_a"]}, "u.py::test_a is not there"),
        ({"tests": ["t.py"]}, "t.py is not there"),
    ],
)
def test_an_entry_with_a_flaw_is_refused(tmp_path: Path, change: dict[str, object], complaint: str) -> None:
    (tmp_path / "t.py").write_text("async def test_a(): ...\n@pytest.mark.skip(reason='x')\ndef test_b(): ...\n")
    assert item_complaints(made_up(), tmp_path) == []
    [found] = item_complaints(made_up(**change), tmp_path)
    assert found.startswith(f"1: {complaint}")


def whole_lists() -> list[Group]:
    return [Group(version, "All", [made_up(each) for each in NUMBERS[version]]) for version in (1, 2)]


def test_a_list_with_a_flaw_in_its_numbers_is_refused() -> None:
    first, second = whole_lists()
    assert number_complaints([first, second]) == []
    assert number_complaints([Group(1, "All", first.item[1:]), second]) == ["v1 1 is missing; add it"]
    doubled = Group(2, "All", [*second.item, second.item[0]])
    assert number_complaints([first, doubled]) == ["v2 1 stands twice; keep one"]
    strange = Group(2, "All", [*second.item, made_up("62")])
    assert number_complaints([first, strange]) == ["v2 62 is no number of the list"]
    assert number_complaints([Group(1, "All", first.item[::-1]), second]) == ["v1 is not in order"]
