"""Write `docs/checklists.md` from `docs/checklists.toml`.

Takes the TOML, gives one table per group; `--check` writes nothing and fails when the page is not what the TOML
says. Never judges an entry: `tests/architecture/test_checklists.py` does that.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from pages import keep, table

DOCS = Path(__file__).resolve().parents[1] / "docs"
SOURCE = DOCS / "checklists.toml"
PAGE = DOCS / "checklists.md"

HEAD = """\
# The rules of ACP, one by one

Written by `scripts/write_checklists.py` from [checklists.toml](checklists.toml); edit that file.

ACP binds agents and clients. turnwire is the agent to its clients and the client to its agents, so both sides are
its own. A rule is shown by the tests that stand beside it, or it says why it needs none here. The rules are in our
words; how each version says a thing is in [dialects.md](dialects.md), and the transports are in [acp.md](acp.md).
"""


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One numbered rule."""

    number: str
    level: str
    side: str
    rule: str
    tests: list[str] = []
    exempt: str = ""
    missing: str = ""
    unjudged: str = ""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules under one heading."""

    version: int
    title: str
    item: list[Item]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    group: list[Group]


def render(source: Source) -> str:
    """The page for these rules."""
    lines = [HEAD, *(_count(version, source) for version in (1, 2))]
    for group in source.group:
        rows = [[each.number, f"{each.level}, {each.side}", each.rule, _shown(each)] for each in group.item]
        lines += table(f"v{group.version}: {group.title}", ["number", "binds", "rule", "shown by"], rows)
    return "\n".join(lines) + "\n"


def _count(version: int, source: Source) -> str:
    items = [item for group in source.group if group.version == version for item in group.item]
    exempt = sum(bool(each.exempt) for each in items)
    gaps = sum(bool(each.missing) for each in items)
    shown = f"{len(items) - exempt} shown by tests, {gaps} of them with a gap"
    return f"- v{version}: {len(items)} rules, {shown}, {exempt} exempt"


def _shown(item: Item) -> str:
    gap = f" *Missing: {item.missing}.*" if item.missing else ""
    if item.exempt:
        return f"*{item.exempt}*{gap}"
    return "<br>".join(_link(each) for each in item.tests) + gap


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{path})"


if __name__ == "__main__":
    page = render(msgspec.toml.decode(SOURCE.read_bytes(), type=Source))
    sys.exit(keep(__file__, sys.argv[1:], PAGE, SOURCE, page))
