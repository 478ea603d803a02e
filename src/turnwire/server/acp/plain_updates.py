"""Updates that are passed on unchanged: found among stored events, and framed, without decoding them.

Consecutive stored events are grouped into runs that differ only in the payload; their frames are the same for every
client of the session. Each client's writer decides whether the client may receive them. This module does not
interpret events: those outside a run go to the fold.

Theory of operation
-------------------
Chunks of a message arrive many per millisecond, and their stored forms share a prefix (the kind) and a suffix (the
turn and the time). So one of them is decoded, and its neighbours are compared with its prefix and suffix.

    U1  Between such a prefix and a suffix that starts with the turn there is one payload and nothing else
        (`codec.around_update`).
    U2  A run has no echo, no members next to the update, no child session and no names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import DecodeError, json

from turnwire.projections.envelope import StoredUpdate
from turnwire.session.codec import STORED_UPDATE, around_update, end_of_run

KEPT: Final = 4096
"""Frames cached per session for its other readers: some pages of the log."""
END: Final = b"}}"
"""The end of a plain update's frame."""


_read_stored = json.Decoder(StoredUpdate).decode


def read_update(body: bytes) -> StoredUpdate | None:
    """Return the stored update, or None for another event, or for a malformed one, which the codec will report."""
    if not body.startswith(STORED_UPDATE):
        return None
    try:
        return _read_stored(body)
    except (DecodeError, UnicodeDecodeError):
        return None


class Splice(NamedTuple):
    """The stored prefix and suffix of a plain update's payload."""

    kind: str
    before: bytes
    behind: bytes

    def end(self, bodies: Sequence[bytes], start: int) -> int:
        """Return the end of the run of events with this prefix and suffix. The event at `start` has them."""
        return end_of_run(bodies, start + 1, self.before, self.behind)

    def frames(self, head: bytes, bodies: Sequence[bytes]) -> list[bytes]:
        """Return the frames of a run. `head`: the start of the session's update frames."""
        before, behind, end = len(self.before), -len(self.behind), END
        return [head + body[before:behind] + end for body in bodies]


def find_splice(body: bytes) -> Splice | None:
    """Return the prefix and suffix of a plain update, or None for any other event."""
    stored = read_update(body)
    if stored is None or stored.prompt_id is None:
        return None
    before, behind = around_update(stored.kind, stored.prompt_id, stored.at)
    # A stored event with more members, or with its members in another order, does not match.
    is_plain = body == b"%b%b%b" % (before, stored.update, behind)
    return Splice(stored.kind, before, behind) if is_plain else None


class PlainRun(NamedTuple):
    """A run of updates of one kind."""

    kind: str
    frames: list[bytes]


class PlainRuns:
    """The newest runs of one session, built by the first reader that reaches them and reused by all others.

    Readers of live events reach the same positions, whatever their dialect. A single reader caches nothing.
    """

    def __init__(self) -> None:
        self._readers = 0
        self._kept: OrderedDict[int, PlainRun] = OrderedDict()
        """Runs keyed by the offset of their first update."""
        self._size = 0
        """The number of cached frames."""

    def get(self, offset: int) -> PlainRun | None:
        """Return the run that begins with this event, as long as it was when cached."""
        return self._kept.get(offset)

    def keep(self, offset: int, run: PlainRun) -> None:
        """Cache a new run that begins with this event, for the other readers."""
        if self._readers > 1:
            self._kept[offset] = run
            self._size += len(run.frames)
            while self._size > KEPT:
                self._size -= len(self._kept.popitem(last=False)[1].frames)

    def enter(self) -> None:
        """Count one more reader."""
        self._readers += 1

    def leave(self) -> None:
        """Count one reader less; a last one needs no cache."""
        self._readers -= 1
        if self._readers <= 1:
            self._kept.clear()
            self._size = 0
