"""One session at one client: since when, from where, and who reads it.

Takes what opening the session decided; gives every reader of the client the same beginning and remembers how far
they came, so that the next reader goes on there. Never reads the log itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import anyio
from msgspec import Raw

from turnwire.ids import ClientId, Epoch, SessionId
from turnwire.server.acp.notes import Notes
from turnwire.server.acp.wake import Wake


class Start(NamedTuple):
    """How a session begins for a client."""

    client_id: ClientId
    epoch: Epoch
    after: int
    """What the log has up to here is not told."""
    head: int
    """What it has up to here is history, and told before the answer."""
    tells_state: bool = False
    """Whether the running state is told behind the history."""
    greeting: Sequence[Raw] = ()
    """Updates that say what is now. Told behind the answer."""
    asks: bool = True
    """Whether questions that are open already are asked."""
    resumes: bool = False
    """The client was there before: the history is what it missed, and told as it would have been told then."""
    answer: Callable[[], None] | None = None
    """Puts the answer out that the history comes before; none if it was put out before the start."""


class Seat:
    """A session at a client."""

    def __init__(self, session_id: SessionId, most: int) -> None:
        self.session_id = session_id
        self.notes = Notes(most)
        self.start: Start | None = None
        """None while the client is not attached."""
        self.version = 0
        """Counts openings and closings: a reader of another version begins anew."""
        self.cursor = 0
        """The last event that a reader was given whole."""
        self.is_answered = False
        self.is_greeted = False
        self.is_ready = False
        """The client has processed the answer, or does not say when it has."""
        self.is_over = False
        """The connection is closed."""
        self.is_paused = False
        """The client will say from where its readers go on; until then they are given nothing."""
        self.paused_version = 0
        """Pages of readers before this version are not given any more."""
        self.streams = 0
        """Readers of this session alone."""
        self.carriers = 0
        """All its readers, also those that write to the connection's own stream."""
        self.is_carried = False
        """It is told on the connection's own stream, or about to be."""
        self.agent_wake = Wake()
        """Set when an agent takes the session."""
        self.lending: anyio.CancelScope | None = None
        self._wakes: set[Wake] = set()
        self._leave: Callable[[], object] | None = None
        self._last_note = 0

    @property
    def client_id(self) -> ClientId | None:
        """What the log calls the client here; none while it is not attached."""
        return None if self.start is None else self.start.client_id

    def open(self, start: Start, *, is_gated: bool) -> None:
        """The client is attached. Readers begin, or begin anew."""
        self.start = start
        self.is_paused = False
        self.version += 1
        self.cursor = start.after
        self.is_answered = start.answer is None
        self.is_greeted = False
        self.is_ready = not is_gated
        self.wake()

    def close(self) -> None:
        """The client is not attached any more. Readers stay, and are given nothing of the log."""
        self.start = None
        self.version += 1
        self.wake()

    def end(self) -> None:
        """The connection is closed: readers end."""
        self.is_over = True
        self.close()

    def ready(self) -> None:
        """Hold nothing back any more."""
        if not self.is_ready:
            self.is_ready = True
            self.wake()

    def answer(self) -> None:
        """The history is told: put out the answer, once."""
        if not self.is_answered and self.start is not None:
            self.is_answered = True
            if self.start.answer is not None:
                self.start.answer()

    def note(self, frame: bytes, after: int) -> None:
        """A frame that is in no log, behind what the log has up to `after`."""
        self.notes.put(frame, after)
        self.wake()

    def leave_behind_notes(self, leave: Callable[[], object]) -> None:
        """Call `leave` once a reader was given all notes there are now."""
        self._leave, self._last_note = leave, self.notes.end

    def given(self, offset: int, note: int) -> None:
        """A reader was given everything up to this event, and all notes before this one."""
        self.cursor = max(self.cursor, offset)
        if self._leave is not None and note >= self._last_note:
            leave, self._leave = self._leave, None
            leave()

    def wake(self) -> None:
        """There is something to look at, for all readers."""
        for each in self._wakes:
            each.set()

    def enter(self, wake: Wake, *, is_stream: bool) -> None:
        """A reader comes."""
        self._wakes.add(wake)
        self.carriers += 1
        self.streams += is_stream
        self.wake()

    def leave(self, wake: Wake, *, is_stream: bool) -> None:
        """A reader goes."""
        self._wakes.discard(wake)
        self.carriers -= 1
        self.streams -= is_stream
        self.wake()


def pause(seat: Seat) -> None:
    """Give nothing until the session is opened anew. What was given and not sent is not sent any more."""
    seat.is_paused = True
    seat.version += 1
    seat.paused_version = seat.version
    seat.wake()


def go_on(seat: Seat) -> None:
    """Readers go on where they stood, if they were paused."""
    if seat.is_paused:
        seat.is_paused = False
        seat.version += 1
        seat.wake()
