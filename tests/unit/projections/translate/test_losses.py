"""The list of losses: complete, known to the code, and the same in the papers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from turnwire.projections.translate.losses import LOSSES, Direction

ROOT = Path(__file__).resolve().parents[4]
PROJECTIONS = ROOT / "src" / "turnwire" / "projections"
BY_DESIGN = {"client_files", "outcome_unknown", "not_asked_for"}
"""Losses that come about where no translator counts: in requests, or by leaving something out altogether."""


def counted() -> set[str]:
    """Every code that the code counts: `losses["code"] += …`."""
    found: set[str] = set()
    for path in (*PROJECTIONS.glob("translate/*.py"), *PROJECTIONS.glob("encoder/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
                owner, key = ast.unparse(node.target.value), node.target.slice
                if owner.endswith("losses") and isinstance(key, ast.Constant):
                    found.add(str(key.value))
    return found


def test_codes_are_unique() -> None:
    assert len({each.code for each in LOSSES}) == len(LOSSES)


def test_what_is_counted_is_listed_and_what_is_listed_is_counted() -> None:
    assert counted() | BY_DESIGN == {each.code for each in LOSSES}


@pytest.mark.guarantee("G11")
def test_the_papers_list_every_loss_in_the_words_of_the_code() -> None:
    paper = (ROOT / "docs" / "dialects.md").read_text(encoding="utf-8")
    for direction in Direction:
        section = re.split(r"^### ", paper.split(f"### {direction}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
        rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", section, re.MULTILINE)
        assert rows == [(each.code, each.what, each.instead) for each in LOSSES if each.direction is direction]


def test_every_row_that_a_test_names_is_in_the_papers() -> None:
    paper = (ROOT / "docs" / "dialects.md").read_text(encoding="utf-8")
    listed = {int(each) for each in re.findall(r"^\| (\d+) \|", paper, re.MULTILINE)}
    tests = [*Path(__file__).parent.glob("test_*.py"), *Path(__file__).parents[1].glob("encoder/test_*.py")]
    named = {
        int(number)
        for path in tests
        for row in re.findall(r"def test_rows?_([\d_]*\d)", path.read_text(encoding="utf-8"))
        for number in row.split("_")
    }
    assert named <= listed == set(range(1, 35))
