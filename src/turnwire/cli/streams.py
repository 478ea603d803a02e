"""The standard streams of the process, however it was started.

Takes the streams as they are; gives them open, and the text of stdin. One that is closed is replaced by nothing at
all: whoever closed it wants to hear and say nothing there. Never raises for what stdin holds.
"""

from __future__ import annotations

import io
import os
import sys

from turnwire.cli.failing import tell


def open_closed_streams() -> None:
    """See that all three streams are there. Call it before anything else is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free: it is the stream's own, so that no file of ours is taken for it.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nothing, True)
            setattr(sys, name, os.fdopen(nothing, mode, encoding="utf-8", errors="backslashreplace"))


def read_stdin() -> str:
    """All of stdin. What is no text becomes a mark for it, and a note says so."""
    stdin = sys.stdin
    if isinstance(stdin, io.TextIOWrapper):
        stdin.reconfigure(errors="surrogateescape")
    given = stdin.read()
    text = given.encode(stdin.encoding, "surrogateescape").decode(stdin.encoding, "replace")
    if text != given:
        tell(f"stdin is not all {stdin.encoding.upper()} text; what is not is sent as U+FFFD")
    return text
