"""Text of a peer made safe for a report: for any file, any terminal, any XML."""

from __future__ import annotations

import re

ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that are invalid in XML or UTF-8, or that control a terminal. Line ends and tabs are allowed."""
LONGEST = 300
"""Maximum characters of a peer's text inside our messages."""


def plain(words: str) -> str:
    return ODD.sub("\N{REPLACEMENT CHARACTER}", words)


def quoted(words: object) -> str:
    """Return a peer's text on one line; empty without text."""
    if not isinstance(words, str):
        return ""
    line = " ".join(plain(words).split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
