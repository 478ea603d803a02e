"""One reader of one session: everything that the client is sent of it, in one order.

Takes a seat and perhaps a cursor; gives frames for as long as it is read. A reader is a follower of the log with a
fold of its own, so any number of them cost nobody anything and each sees everything.

Theory of operation
-------------------
The log decides the order, and what is in no log (answers, refusals) waits behind the event that it must not
overtake. A session begins in steps, and each reader goes through those that are still to be made:

    history   events that the client asked to hear again, then the running state
    answer    the answer to `session/load` or its like, put out by the first reader that comes here
    gate      nothing, until the client says that it is ready, if it is one that does
    greeting  what is now, questions that are open, and that those are not which the client was asked before
    live      whatever comes

    A1  No frame of a session is given before the answer that the client learns of the session from, but for the
        history that the protocol puts in front of it (G6).
    A2  A cursor stands behind an event only with its last frame.
    A3  A session that is opened anew asks what is open anew, under the ids that the client knows. What the history
        answers of the client's own prompts is put out with the opening (`repeating`), so a reader that begins
        answers only what comes behind the history.
    A4  A reader ends between pages, which end between events, so the next one goes on without a gap and without a
        repeat.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from enum import Enum, auto
from typing import NamedTuple

from turnwire.errors import PositionLost, SessionNotFound
from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.log.rules import check_position
from turnwire.runtime.session import Session
from turnwire.server.acp import folds
from turnwire.server.acp.feed import Feed
from turnwire.server.acp.front import Front
from turnwire.server.acp.notes import NoteReader
from turnwire.server.acp.seat import Seat, Start
from turnwire.server.acp.teller import Mode, SessionFrame, Teller
from turnwire.server.acp.wake import Wake
from turnwire.server.streams.following import Lost
from turnwire.wire.jsonrpc import Notification, encode, raw

HARMLESS = raw({"sessionUpdate": "session_info_update"})
"""Changes nothing. Some clients open a session's stream only when something names the session."""

AT_ONCE = 256
"""Events that are told in one go: enough to make one write of many, and few enough to keep nobody waiting."""
RESYNC = "_turnwire/state_resync_required"
"""Told to a client that missed what the log has forgotten: it loads the session anew."""


class _Step(Enum):
    HISTORY = auto()
    ANSWER = auto()
    GATE = auto()
    LIVE = auto()


class Reader:
    """One reader. `is_stream`: its frames go to a stream of the session's own, else to the connection's."""

    def __init__(self, front: Front, seat: Seat, after: Position | None, *, is_stream: bool) -> None:
        self._front = front
        self._seat = seat
        self._after = after
        self._is_stream = is_stream
        self._wake = Wake()

    async def pages(self) -> AsyncGenerator[list[SessionFrame]]:
        """All that the client is sent, until the session or the connection ends. Raises `PositionLost`."""
        seat = self._seat
        with self._present() as notes:
            while not (seat.is_over or notes.is_late or self._gives_way()):
                if seat.start is None or seat.is_paused or (self._is_stream and seat.carriers > seat.streams):
                    # Another reader goes on until it gives way; a client that left is still owed its answers.
                    note = notes.next() if seat.start is None else None
                    if note is not None:
                        yield [SessionFrame(None, note)]
                    else:
                        await self._wake.wait()
                    continue
                run = await self._begin(seat.start, notes)
                try:
                    while not run.is_stale() and not self._gives_way():
                        page = run.step()
                        if page is not None:
                            if page:
                                yield page
                            run.given()
                        elif run.has_lost_its_place():
                            break
                        else:
                            await self._wake.wait()
                finally:
                    run.feed.scope.cancel()
                self._after = None

    @contextmanager
    def _present(self) -> Generator[NoteReader]:
        """Meanwhile this reader counts: for the client's offers, and as somebody who is there to answer."""
        front, seat = self._front, self._seat
        attending = front.daemon.clients.streaming(seat.session_id, front.who)
        with attending, seat.notes.open(self._wake) as notes:
            seat.enter(self._wake, is_stream=self._is_stream)
            front.carriers_changed(seat)
            try:
                yield notes
            finally:
                seat.leave(self._wake, is_stream=self._is_stream)
                front.carriers_changed(seat)

    def _gives_way(self) -> bool:
        """A session is told on the connection's stream while that is read, and until it has one of its own."""
        front = self._front
        has_own = self._seat.streams > 0 and not front.is_merged
        return not self._is_stream and (has_own or not front.notes.has_readers)

    async def _begin(self, start: Start, notes: NoteReader) -> _Run:
        head = await self._front.daemon.node.head(self._seat.session_id)
        after, first = self._after, head.first - 1
        if after is not None:
            check_position(head, after)
        told = self._seat.cursor if after is None else after.offset
        if told < first:
            self._seat.note(resync(self._seat.session_id, Lost("trimmed", told, first + 1)), 0)
        told = max(told, first)
        session = await self._front.daemon.node.session(self._seat.session_id)
        fold = folds.begin(session, self._front.dialect, first, told)
        begin = Position(head.epoch, fold.offset)
        feed = Feed(self._front.daemon.node, self._seat.session_id, begin, self._wake)
        self._front.start(feed.run)
        # The start of its agent may lie before this place.
        self._seat.agent_wake.set()
        return _Run(self._front, self._seat, start, _Source(session, fold, feed), notes, told, self._is_stream)


def resync(session_id: SessionId, lost: Lost) -> bytes:
    """What a client is told whose cursor cannot be honoured, or that has missed what the log has no more."""
    told = {
        "sessionId": session_id,
        "reason": lost.reason,
        "lastDeliveredId": lost.last,
        "earliestAvailableId": lost.earliest,
    }
    return encode(Notification(RESYNC, raw(told)))


class _Source(NamedTuple):
    """Where a reader has the events from, and what it knows of those before."""

    session: Session
    fold: folds.Fold
    feed: Feed


class _Run:
    """A reader between two openings of its session."""

    def __init__(
        self,
        front: Front,
        seat: Seat,
        start: Start,
        source: _Source,
        notes: NoteReader,
        told: int,
        is_stream: bool,
    ) -> None:
        self.feed = source.feed
        self._session = source.session
        self._front = front
        self._seat = seat
        self._start = start
        self._notes = notes
        self._told = told
        self._is_stream = is_stream
        self._teller = Teller(front, seat, source.fold)
        self._version = seat.version
        self._offset = source.fold.offset
        self._is_silent = True
        """Nothing was given yet."""
        self._step = _Step.HISTORY
        if seat.is_answered:
            self._step = _Step.LIVE if seat.is_greeted else _Step.GATE

    def is_stale(self) -> bool:
        """The session was opened anew, or closed."""
        return self._seat.version != self._version or self._notes.is_late

    def has_lost_its_place(self) -> bool:
        """The log was trimmed while this reader stalled. Raises why else the log cannot go on.

        A session that ended is neither: answers about it still come.
        """
        error = self.feed.error
        if error is not None and not isinstance(error, SessionNotFound | PositionLost):
            raise error
        return isinstance(error, PositionLost)

    def step(self) -> list[SessionFrame] | None:
        """What to give next; none if there is nothing now."""
        # What waits behind an event that will never come waits for nothing.
        has_ended = self.feed.is_over and self.feed.next_offset is None
        note = self._notes.next(upto=None if has_ended else self._offset)
        if note is not None:
            return [SessionFrame(None, note)]
        if self._step is _Step.HISTORY and self._offset >= self._start.head:
            return self._end_history()
        if self._step is _Step.ANSWER:
            self._seat.answer()
            self._step = _Step.GATE
            return []
        if self._step is _Step.GATE and self._seat.is_ready and self._offset >= self._told:
            return self._greet()
        offset = self.feed.next_offset
        if offset is None or (self._step is _Step.GATE and offset > max(self._start.head, self._told)):
            return None
        return self._events(self._take_upto(offset))

    def given(self) -> None:
        """All frames of the last step were given."""
        if self._seat.version == self._version:
            self._seat.given(self._offset if self._offset > self._told else 0, self._notes.position)

    def _take_upto(self, offset: int) -> int:
        """The last event that can be told in one go with the next, before there is something else to do."""
        ends = [offset + AT_ONCE - 1]
        if self._step is _Step.HISTORY:
            ends.append(self._start.head)
        elif self._step is _Step.GATE:
            ends.append(max(self._start.head, self._told))
        if offset <= self._told:
            ends.append(self._told)
        if (behind := self._notes.next_after) is not None:
            ends.append(behind)
        # What the log has forgotten meanwhile may lie behind.
        return max(offset, min(ends))

    def _events(self, upto: int) -> list[SessionFrame]:
        first, bodies = self.feed.take(upto)
        mode = Mode.LIVE
        if first <= self._told:
            mode = Mode.QUIET
        elif self._step is _Step.HISTORY:
            mode = Mode.RESUME if self._start.resumes else Mode.REPLAY
        page = self._teller.take(first, bodies, mode)
        self._offset = first + len(bodies) - 1
        if mode is Mode.QUIET and self._offset == self._told:
            folds.keep(self._session, self._front.dialect, self._teller.fold(self._offset))
        self._is_silent = self._is_silent and not page
        return page

    def _end_history(self) -> list[SessionFrame]:
        self._step = _Step.ANSWER
        frames = self._teller.state() if self._start.tells_state else []
        page = [SessionFrame(None, each) for each in frames]
        if self._is_stream and self._offset > 0:
            # Events that are told to nobody have no frame, so the end of the history is marked by itself.
            page.append(SessionFrame(self._offset, b""))
        if not frames and self._is_silent and not self._is_stream and not self._front.is_merged:
            page += [SessionFrame(None, each) for each in self._teller.greet([HARMLESS])]
        return page

    def _greet(self) -> list[SessionFrame]:
        self._step = _Step.LIVE
        frames = [] if self._seat.is_greeted else self._teller.greet(self._start.greeting)
        frames += self._teller.settled_questions({each.request_id for each in self._session.state.permissions})
        if self._start.asks:
            frames += self._teller.open_questions()
        self._seat.is_greeted = True
        return [SessionFrame(None, each) for each in frames]
