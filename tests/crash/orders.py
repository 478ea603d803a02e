"""The orders for a generation of the crash test: its file, its work, and its death.

The order is one line of JSON that the test writes and the child program reads.
"""

from __future__ import annotations

import json
from typing import NamedTuple

POINTS = {
    "append": "before events are handed to the log",
    "hand": "while the log has them, after a few steps of the event loop",
    "flush": "they are written and not committed",
    "commit": "they are committed, and nobody has been told",
    "sync": "they are committed, and about to be synced",
    "synced": "they are synced, and nobody has been told",
    "stored": "the session knows it, and has shown nothing",
    "publish": "followers may see them, and nobody has been answered",
    "perform": "before an effect",
    "performed": "after an effect",
    "reply": "the client has its answer",
}
"""Points at which a child kills itself, and the facts that hold there."""

OF_A_FILE = frozenset({"flush", "commit", "sync", "synced"})
"""Points that a log in a database does not have: they are in the server then."""

AT_A_TIME = "time"
"""The child is killed from outside, wherever it is."""


class Order(NamedTuple):
    """One generation: a process that runs a node on a log file until it is killed, or until all is settled."""

    path: str
    """Path of the file, or the address of the database."""
    seed: int
    generation: int
    profile: str
    durability: str
    last: bool = False
    """Ask for nothing new; end when nothing is owed."""
    point: str = AT_A_TIME
    passage: int = 0
    """At which passage of the point."""
    within_s: float = 10.0
    """Time at which the child is killed from outside, if it still lives."""

    def line(self) -> bytes:
        return json.dumps(self).encode() + b"\n"


def read_order(line: bytes) -> Order:
    return Order(*json.loads(line))
