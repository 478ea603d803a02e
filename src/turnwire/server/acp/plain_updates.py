"""Updates that are passed on as they are: found among stored events, and framed, without decoding them.

Takes the stored forms of events that follow each other; gives runs of them in which nothing differs but the
payload, and their frames, which are the same for every client of the session. Who may be given them is for each
client's writer to say. Never decides what an event means: what is in no run is left to the fold.

Theory of operation
-------------------
Pieces of a message come many in a millisecond, and what is stored of them begins alike (the kind) and ends alike
(the turn and the time). So one of them is decoded, and its neighbours are held against its beginning and its end.

    U1  Between such a beginning and an end that starts with the turn lies a payload and nothing else
        (`codec.around_update`).
    U2  A run holds no echo, nothing beside the update, no child session and no names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import DecodeError, json

from turnwire.core.codec import STORED_UPDATE, around_update, end_of_run
from turnwire.core.envelope import StoredUpdate

KEPT: Final = 4096
"""Frames of a session that are kept for its other readers: some pages of the log."""
END: Final = b"}}"
"""How the frame of a plain update ends."""


_read_stored = json.Decoder(StoredUpdate).decode


def read_update(body: bytes) -> StoredUpdate | None:
    """The update that is stored so; none if it is another event, or one of which the codec says what is wrong."""
    if not body.startswith(STORED_UPDATE):
        return None
    try:
        return _read_stored(body)
    except (DecodeError, UnicodeDecodeError):
        return None


class Splice(NamedTuple):
    """What is stored around the payload of a plain update."""

    kind: str
    before: bytes
    behind: bytes

    def end(self, bodies: Sequence[bytes], start: int) -> int:
        """Where the run of those ends that are stored alike. The first of them is."""
        return end_of_run(bodies, start + 1, self.before, self.behind)

    def frames(self, head: bytes, bodies: Sequence[bytes]) -> list[bytes]:
        """The frames of a run. `head`: how an update of the session begins."""
        before, behind, end = len(self.before), -len(self.behind), END
        return [head + body[before:behind] + end for body in bodies]


def find_splice(body: bytes) -> Splice | None:
    """What is around the payload, if it is a plain update."""
    stored = read_update(body)
    if stored is None or stored.prompt_id is None:
        return None
    before, behind = around_update(stored.kind, stored.prompt_id, stored.at)
    # One with more to tell, or whose members are stored in another order, is longer or does not begin and end so.
    is_plain = body == b"%b%b%b" % (before, stored.update, behind)
    return Splice(stored.kind, before, behind) if is_plain else None


class PlainRun(NamedTuple):
    """A run of updates of one kind."""

    kind: str
    frames: list[bytes]


class PlainRuns:
    """The newest runs of one session, made by the first reader that comes to them and taken by all others.

    Readers in the present come to the same places, whatever they speak. One reader alone keeps nothing.
    """

    def __init__(self) -> None:
        self._readers = 0
        self._kept: OrderedDict[int, PlainRun] = OrderedDict()
        """By the offset of the first update."""
        self._size = 0
        """How many frames they have."""

    def get(self, offset: int) -> PlainRun | None:
        """The run that begins with this event, as far as it was known then."""
        return self._kept.get(offset)

    def keep(self, offset: int, run: PlainRun) -> None:
        """A run that begins with this event and is not kept, for the other readers."""
        if self._readers > 1:
            self._kept[offset] = run
            self._size += len(run.frames)
            while self._size > KEPT:
                self._size -= len(self._kept.popitem(last=False)[1].frames)

    def enter(self) -> None:
        """One reader more."""
        self._readers += 1

    def leave(self) -> None:
        """One reader less."""
        self._readers -= 1
        if self._readers <= 1:
            self._kept.clear()
            self._size = 0
