"""The fan is whole: every number on every pair is shown by a test, or a row of `exclusions.py` says why not."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.fan.exclusions import ROWS, Row
from tests.fan.matrix import NUMBERS, PAIRS, Pair

ROOT = Path(__file__).resolve().parents[2]
FAN = sorted(Path(__file__).parent.glob("test_*.py"))


@cache
def shown() -> dict[tuple[str, Pair], list[str]]:
    """Which tests show a number on a pair."""
    found: dict[tuple[str, Pair], list[str]] = defaultdict(list)
    for path in FAN:
        module = import_module(f"tests.fan.{path.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_"):
                for number, pair in _claims(test):
                    found[number, pair].append(f"{path.stem}::{name}")
    return found


def _claims(test: Any) -> list[tuple[str, Pair]]:
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    numbers = [number for each in marks if each.name == "requirement" for number in each.args]
    pairs = [
        pair for each in marks if each.name == "parametrize" and each.args[0] == "pair" for pair in each.args[1]
    ]
    return [(number, pair) for number in numbers for pair in pairs]


def test_every_number_on_every_pair_is_shown_or_left_out_for_a_reason() -> None:
    missing = [
        f"{number} {pair}"
        for number in NUMBERS
        for pair in PAIRS
        if (number, pair) not in shown() and not any(row.covers(number, pair) for row in ROWS)
    ]
    assert missing == [], "write a test, or a row that says why there is none"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.numbers[0]}-{'-'.join(row.why.split()[:6])}")
def test_each_reason_is_used_for_all_that_it_names_and_hides_no_test(row: Row) -> None:
    named = [(number, pair) for number in row.numbers for pair in PAIRS if row.covers(number, pair)]
    assert {number for number, _ in named} == set(row.numbers), "a row is about pairs that there are"
    assert [f"{number} {pair}" for number, pair in named if (number, pair) in shown()] == []
    others = [each for each in ROWS if each is not row]
    twice = [f"{number} {pair}" for number, pair in named if any(each.covers(number, pair) for each in others)]
    assert twice == [], "one reason is enough"


@pytest.mark.parametrize("row", [each for each in ROWS if each.shown], ids=lambda row: row.numbers[0])
def test_what_is_shown_elsewhere_is_shown_there_under_its_number(row: Row) -> None:
    path, _, name = row.shown.partition("::")
    tree = ast.parse((ROOT / path).read_bytes())
    tests = [each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    [test] = [each for each in tests if each.name == name]
    marked = " ".join(ast.unparse(each) for each in test.decorator_list)
    assert all(f"'{number}'" in marked for number in row.numbers)


def test_numbers_are_those_of_the_two_parts_of_the_lifecycle_that_a_client_can_see() -> None:
    assert (len(NUMBERS), NUMBERS[0], NUMBERS[55], NUMBERS[56], NUMBERS[-1]) == (61, "R1", "R56", "R70", "R74")
    strangers = {number for number, _ in shown()} - set(NUMBERS)
    assert strangers == set()
