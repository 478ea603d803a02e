"""Write `docs/requirements.md` from `docs/requirements.toml`.

Takes the TOML, gives one table per group; `--check` writes nothing and fails when the page is not what the
TOML says. Never judges a status: `tests/architecture/test_requirements.py` does that.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Literal

import msgspec

from pages import keep, table

DOCS = Path(__file__).resolve().parents[1] / "docs"
SOURCE = DOCS / "requirements.toml"
PAGE = DOCS / "requirements.md"

HEAD = """\
# Requirements

Written by `scripts/write_requirements.py` from [requirements.toml](requirements.toml); edit that file.

A number is *covered* when tests name it and show all of it, *partial* when they show a part, *planned*
when no test names it yet. `grep -rnE 'requirement\\(.*"R7"' tests src` lists the tests of a number.
The guarantees are explained in [guarantees.md](guarantees.md), the words in [glossary.md](glossary.md).
"""


class Requirement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One numbered sentence."""

    number: str
    status: Literal["planned", "partial", "covered"]
    where: list[str]
    sentence: str
    note: str = ""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requirements under one heading."""

    title: str
    requirement: list[Requirement]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    group: list[Group]


def render(source: Source) -> str:
    """The page for these requirements."""
    counts = Counter(each.status for group in source.group for each in group.requirement)
    total = f"{counts['covered']} covered, {counts['partial']} partial, {counts['planned']} planned."
    return "\n".join([HEAD, total, *(line for group in source.group for line in _table(group))]) + "\n"


def _table(group: Group) -> list[str]:
    rows = [[each.number, _cell(each), each.status, ", ".join(each.where)] for each in group.requirement]
    return table(group.title, ["number", "requirement", "status", "from"], rows)


def _cell(requirement: Requirement) -> str:
    missing = f" *Missing: {requirement.note}*" if requirement.note else ""
    return requirement.sentence + missing


if __name__ == "__main__":
    page = render(msgspec.toml.decode(SOURCE.read_bytes(), type=Source))
    sys.exit(keep(__file__, sys.argv[1:], PAGE, SOURCE, page))
