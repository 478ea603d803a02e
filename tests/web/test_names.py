"""The names in the TypeScript package match the daemon's; its build tools are recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path

from turnwire.errors import tree
from turnwire.projections.envelope import OMITTED, TYPES

SOURCES = Path(__file__).resolve().parents[2] / "web" / "client" / "src"


def members(text: str, interface: str) -> set[str]:
    """The names of an interface's own members."""
    body = text.split(f"export interface {interface} {{\n")[1].split("\n}\n")[0]
    return set(re.findall(r"^  (\w+):", body, flags=re.MULTILINE))


def test_every_type_of_event_has_its_members() -> None:
    events = (SOURCES / "events.ts").read_text()
    assert members(events, "EventMembers") == {*TYPES.values(), OMITTED}


def test_every_class_of_error_is_the_daemons_by_name_and_code() -> None:
    table = (SOURCES / "errors.ts").read_text().split("BY_CODE")[1].split("};")[0]
    ours = dict(re.findall(r"^  (\w+): (\w+),", table, flags=re.MULTILINE))
    theirs = {each.code: {kind.__name__ for kind in each.__mro__} for each in tree()}
    assert len(ours) > 30
    assert [code for code, kind in ours.items() if kind not in theirs.get(code, set())] == []


def test_the_lock_file_says_what_is_installed_and_not_from_where() -> None:
    packages = json.loads((SOURCES.parents[1] / "package-lock.json").read_text())["packages"]
    foreign = {
        name: each for name, each in packages.items() if name.startswith("node_modules/") and "link" not in each
    }
    assert foreign
    assert [name for name, each in foreign.items() if "integrity" not in each] == []
    assert [name for name, each in packages.items() if "://" in each.get("resolved", "")] == []
