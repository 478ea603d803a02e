"""How much of the machine must die before a commit can be lost.

Takes nothing, gives the levels and SQLite's setting for each. Never weakens an append that asked for
`durable=True`: such an append is on the disk when it returns, at every level.

At every level a returned append survives the death of this process, also by `kill -9`: a commit hands its
pages to the operating system before it returns. The levels differ in what the death of the machine (power,
kernel) may take of the appends that did not ask for `durable=True`.
"""

from __future__ import annotations

from enum import StrEnum


class Durability(StrEnum):
    """What an append without `durable=True` may lose when the machine dies."""

    FULL = "full"
    """Nothing. Every commit is synced to the disk before it returns."""
    NORMAL = "normal"
    """What came after the last sync. A durable append and a checkpoint sync; what is lost is a suffix."""
    MEMORY = "memory"
    """The same, and the log itself never asks for a sync that nobody needs to keep a durable append."""


SYNC_FULL = "FULL"
SYNC_NORMAL = "NORMAL"
SYNC_OFF = "OFF"


def sync_for(level: Durability, *, durable: bool, may_restart: bool) -> str:
    """The `PRAGMA synchronous` of one commit.

    A synced commit covers the unsynced ones before it: they lie in front of it in the same write-ahead log,
    and one sync of that file writes them all. Those that are no longer in the file were copied into the
    database by a checkpoint, which syncs both files before the write-ahead log may be written from its
    start again.

    The first commit that does so (`may_restart`) is never OFF: NORMAL syncs the new header before the frames
    behind it. Without that, frames of the old round could be read as valid after the machine died, on top of
    a newer database, and a durable event would be gone.
    """
    if durable or level is Durability.FULL:
        return SYNC_FULL
    if level is Durability.NORMAL or may_restart:
        return SYNC_NORMAL
    return SYNC_OFF
