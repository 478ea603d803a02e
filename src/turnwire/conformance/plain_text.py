"""Text of a peer as a report can hold it, whatever the peer has put in: any file, any terminal, any XML."""

from __future__ import annotations

import re

ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""What XML cannot hold, or no UTF-8 has, or steers a terminal. A line may end, and have tabs."""
LONGEST = 300
"""Characters of a peer's words inside of ours."""


def plain(words: str) -> str:
    return ODD.sub("\N{REPLACEMENT CHARACTER}", words)


def quoted(words: object) -> str:
    """A peer's words on one line of ours; empty where there are none."""
    if not isinstance(words, str):
        return ""
    line = " ".join(plain(words).split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
