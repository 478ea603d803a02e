"""Write `docs/troubleshooting.md` from `docs/troubleshooting.toml`.

Takes the TOML, gives one table per group; `--check` writes nothing and fails when the page is not what the TOML
says. Never judges an entry: `tests/cli/test_mistakes.py` makes each mistake and reads what is told.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

import msgspec

from pages import keep, table

DOCS = Path(__file__).resolve().parents[1] / "docs"
SOURCE = DOCS / "troubleshooting.toml"
PAGE = DOCS / "troubleshooting.md"

HEAD = """\
# What went wrong, and what to do

Written by `scripts/write_troubleshooting.py` from [troubleshooting.toml](troubleshooting.toml); edit that file.

A test makes each of these mistakes and reads what is told. Look for the words that you see; … stands for anything.
Exit codes are in [cli.md](cli.md). When nothing is wrong and nothing happens, `turnwire explain SESSION` says why.
"""


class Place(StrEnum):
    """Where a mistake is made."""

    SHELL = "shell"
    HANDLER = "handler"
    AGENT = "agent"
    CLIENT = "client"
    EDITOR = "editor"


class Mistake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that people do, and what they are told."""

    typed: str
    told: str
    instead: str
    code: int | None = None
    place: Place = Place.SHELL
    before: str = ""
    frame: str = ""
    initialized: bool = False


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mistakes under one heading."""

    title: str
    mistake: list[Mistake]
    daemon: bool = False


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    group: list[Group]


def read() -> Source:
    """The mistakes as they are written down."""
    return msgspec.toml.decode(SOURCE.read_bytes(), type=Source)


def render(source: Source) -> str:
    """The page for these mistakes."""
    lines = [HEAD.rstrip("\n")]
    for group in source.group:
        rows = [[_typed(each), _told(each), each.instead] for each in group.mistake]
        lines += table(group.title, ["you did", "you are told", "do"], rows)
    return "\n".join(lines) + "\n"


def _typed(mistake: Mistake) -> str:
    if mistake.place is Place.EDITOR:
        return mistake.typed
    # A file that has to be there first is part of what one did.
    first = [mistake.before] if mistake.before.startswith("echo") else []
    return "<br>".join(_code(line) for part in [*first, mistake.typed] for line in part.split("\n"))


def _told(mistake: Mistake) -> str:
    code = "" if mistake.code is None else f" ({mistake.code})"
    return _code(mistake.told) + code


def _code(text: str) -> str:
    """Text in backticks, whatever it holds."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    sys.exit(keep(__file__, sys.argv[1:], PAGE, SOURCE, render(read())))
