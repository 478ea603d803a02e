"""One reader of one session: everything that the client is sent of it, in one order.

A reader is a follower of the log with a fold of its own, so any number of them cost nobody anything and each sees
everything.

Theory of operation
-------------------
The log decides the order, and what is in no log (answers, refusals) waits behind the event that it must not
overtake. A session begins in the states of `subscription`, and each reader goes through those that its
subscription has not left behind:

    history   events that the client asked to hear again, then the running state
    answer    the answer to `session/load` or its like, put out by the first reader that comes here
    gate      nothing, until the client says that it is ready, if it is one that does; then what is now, the
              permission requests that are open, and that those are not which the client was asked before
    live      whatever comes

    A1  No frame of a session is given before the answer that the client learns of the session from, but for the
        history that the protocol puts in front of it (G6).
    A2  A cursor stands behind an event only with its last frame.
    A3  A session that is opened anew asks what is open anew, under the ids that the client knows. What the history
        answers of the client's own prompts is put out with the opening (`prompt_methods.owed_upto`), so a reader
        that begins answers only what comes behind the history.
    A4  A reader ends between pages, which end between events, so the next one goes on without a gap and without a
        repeat.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import anyio

from turnwire.errors import PositionLost, SessionNotFound, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.log.rules import check_position
from turnwire.runtime.node import Node
from turnwire.runtime.session import Session
from turnwire.server.acp.client_state import ClientState
from turnwire.server.acp.frame_queue import QueueReader, Wake
from turnwire.server.acp.frame_writer import Fold, FramePage, FrameWriter, WriterMode
from turnwire.server.acp.plain_updates import PlainRuns
from turnwire.server.acp.subscription import READABLE, Signal, Start, Subscription, SubscriptionState, ToldOn, step
from turnwire.server.streams.session_stream import Lost
from turnwire.wire.jsonrpc import Notification, encode, raw
from turnwire.wire.methods import STATE_RESYNC_REQUIRED

HARMLESS = raw({"sessionUpdate": "session_info_update"})
"""Changes nothing. Some clients open a session's stream only when something names the session."""


class Feed:
    """A follower of the log that can be looked at without waiting.

    It follows in a task of its own, which waits until its page is taken: one page is held at most, and no event is
    dropped. Its reader waits for other things as well, so it has the reader's wake-up.
    """

    def __init__(self, node: Node, session_id: SessionId, after: Position, wake: Wake) -> None:
        self._node = node
        self._session_id = session_id
        self._after = after
        self._wake = wake
        self._bodies: list[bytes] = []
        """What is left of the page."""
        self._first = 0
        """The offset of its first event."""
        self._taken = Wake()
        self.scope = anyio.CancelScope()
        """Cancel it to stop following."""
        self.is_over = False
        """There will be no more."""
        self.error: TurnwireError | None = None
        """Why there will be no more, if it is not that the session ended."""

    @property
    def next_offset(self) -> int | None:
        """The offset of the next event; none if there is none yet."""
        return self._first if self._bodies else None

    def look(self, upto: int) -> tuple[int, list[bytes]]:
        """The offset of the next event, and all that are here up to `upto`. Call it if `next_offset` is one."""
        first = self._first
        return first, self._bodies[: upto + 1 - first]

    def take(self, upto: int) -> None:
        """All up to `upto` are taken."""
        del self._bodies[: upto + 1 - self._first]
        self._first = upto + 1
        if not self._bodies:
            self._taken.set()

    async def run(self) -> None:
        """Follow until the scope is cancelled or the session ends."""
        try:
            with self.scope:
                async with aclosing(self._node.follow(self._session_id, self._after)) as pages:
                    async for page in pages:
                        self._bodies, self._first = page.frames, page.offset - len(page.frames) + 1
                        self._wake.set()
                        while self._bodies:
                            await self._taken.wait()
        except TurnwireError as error:
            self.error = error
        finally:
            self.is_over = True
            self._wake.set()


class Reader:
    """One reader. `is_stream`: its frames go to a stream of the session's own, else to the connection's."""

    def __init__(
        self, client: ClientState, subscription: Subscription, after: Position | None, *, is_stream: bool
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._after = after
        self._is_stream = is_stream
        self._wake = Wake()

    async def pages(self) -> AsyncGenerator[FramePage]:
        """All that the client is sent, until the session or the connection ends. Raises `PositionLost`."""
        subscription = self._subscription
        with self._present() as queued:
            while not (subscription.state is SubscriptionState.OVER or queued.is_late or self._gives_way()):
                if subscription.state in READABLE and not self._waits_its_turn():
                    run = await self._begin(queued)
                    with run.reading():
                        while not run.is_stale() and not self._gives_way():
                            page = run.step()
                            if page is not None:
                                if page.frames:
                                    yield page
                                run.page_delivered()
                            elif run.has_lost_its_place():
                                break
                            else:
                                await self._wake.wait()
                    self._after = None
                elif subscription.state is SubscriptionState.DETACHED and (frame := queued.next()) is not None:
                    # A client that left is still owed its answers.
                    yield FramePage.of([frame])
                else:
                    await self._wake.wait()

    @contextmanager
    def _present(self) -> Generator[QueueReader]:
        """Meanwhile this reader counts: for the client's offers, and as somebody who is there to answer."""
        client, subscription = self._client, self._subscription
        attending = client.daemon.clients.streaming(subscription.session_id, client.who)
        with attending, subscription.queue.open(self._wake) as queued:
            subscription.add_reader(self._wake, is_stream=self._is_stream)
            try:
                yield queued
            finally:
                subscription.remove_reader(self._wake, is_stream=self._is_stream)

    def _waits_its_turn(self) -> bool:
        return self._is_stream and self._client.told_on(self._subscription) is not ToldOn.OWN

    def _gives_way(self) -> bool:
        return not self._is_stream and self._client.told_on(self._subscription) is ToldOn.HANDED_OVER

    async def _begin(self, queued: QueueReader) -> _Run:
        subscription, node = self._subscription, self._client.daemon.node
        start, generation = subscription.start, subscription.generation
        assert start is not None, "readers begin only where the client is attached"
        head = await node.head(subscription.session_id)
        after, first = self._after, head.first - 1
        if after is not None:
            check_position(head, after)
        told = subscription.cursor if after is None else after.offset
        if told < first:
            subscription.put(resync(subscription.session_id, Lost("trimmed", told, first + 1)), 0)
        told = max(told, first)
        session = await node.session(subscription.session_id)
        fold = Fold.begin(session, self._client.dialect, first, told)
        feed = Feed(node, subscription.session_id, Position(head.epoch, fold.offset), self._wake)
        self._client.start(feed.run)
        # The start of its agent may lie before this place.
        subscription.agent_wake.set()
        source = _Source(session, fold, feed, queued, _runs.setdefault(session, PlainRuns()))
        return _Run(
            self._client, subscription, _Opening(start, generation, told), source, is_stream=self._is_stream
        )


def resync(session_id: SessionId, lost: Lost) -> bytes:
    """What a client is told whose cursor cannot be honoured, or that has missed what the log has no more.

    It loads the session anew.
    """
    told = {
        "sessionId": session_id,
        "reason": lost.reason,
        "lastDeliveredId": lost.last,
        "earliestAvailableId": lost.earliest,
    }
    return encode(Notification(STATE_RESYNC_REQUIRED, raw(told)))


class _Opening(NamedTuple):
    """The opening of the session that a reader tells."""

    start: Start
    generation: int
    told: int
    """The last event that the client has."""


class _Source(NamedTuple):
    """Where a reader has the frames from, and what it knows of the events before."""

    session: Session
    fold: Fold
    feed: Feed
    queued: QueueReader
    runs: PlainRuns


_runs: WeakKeyDictionary[Session, PlainRuns] = WeakKeyDictionary()


class _Run:
    """A reader between two openings of its session."""

    def __init__(
        self,
        client: ClientState,
        subscription: Subscription,
        opening: _Opening,
        source: _Source,
        *,
        is_stream: bool,
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._start, self._generation, self._told = opening
        self._session, fold, self.feed, self._queued, self._runs = source
        self._is_stream = is_stream
        self._writer = FrameWriter(client, subscription, fold, self._runs)
        self._offset = fold.offset
        self._is_silent = True
        """Nothing was given yet."""
        self._state = subscription.state
        """What other readers have left behind is not done again. If the opening is stale, no step is made."""

    @contextmanager
    def reading(self) -> Generator[None]:
        """It is read meanwhile, and followed no longer."""
        try:
            with self._runs.reading():
                yield
        finally:
            self.feed.scope.cancel()

    def is_stale(self) -> bool:
        """The session was opened anew, or closed."""
        return self._subscription.generation != self._generation or self._queued.is_late

    def has_lost_its_place(self) -> bool:
        """The log was trimmed while this reader stalled. Raises why else the log cannot go on.

        A session that ended is neither: answers about it still come.
        """
        error = self.feed.error
        if error is not None and not isinstance(error, SessionNotFound | PositionLost):
            raise error
        return isinstance(error, PositionLost)

    def step(self) -> FramePage | None:
        """What to give next; none if there is nothing now."""
        # What waits behind an event that will never come waits for nothing.
        has_ended = self.feed.is_over and self.feed.next_offset is None
        frame = self._queued.next(upto=None if has_ended else self._offset)
        if frame is not None:
            return FramePage.of([frame])
        if self._state is SubscriptionState.HISTORY and self._offset >= self._start.head:
            return self._end_history()
        if self._state is SubscriptionState.ANSWER:
            self._subscription.answer()
            self._state = step(self._state, Signal.ANSWERED)
            return FramePage([], [])
        if self._state is SubscriptionState.GATE and self._is_gate_open():
            return self._greet()
        offset = self.feed.next_offset
        if offset is None or (self._state is SubscriptionState.GATE and offset > max(self._start.head, self._told)):
            return None
        return self._events(self._take_upto(offset))

    def page_delivered(self) -> None:
        """All frames of the last step were given."""
        if self._subscription.generation == self._generation:
            self._subscription.delivered(self._offset if self._offset > self._told else 0, self._queued.position)

    def _is_gate_open(self) -> bool:
        return self._subscription.gate.is_set() and self._offset >= self._told

    def _take_upto(self, offset: int) -> int:
        """The last event that can be told in one go with the next, before there is something else to do."""
        ends = [offset + self._client.daemon.limits.page_events]
        if self._state is SubscriptionState.HISTORY:
            ends.append(self._start.head)
        elif self._state is SubscriptionState.GATE:
            ends.append(max(self._start.head, self._told))
        if offset <= self._told:
            ends.append(self._told)
        if (behind := self._queued.next_after) is not None:
            ends.append(behind)
        if (behind := self._subscription.next_behind) is not None:
            ends.append(behind)
        # What the log has forgotten meanwhile may lie behind.
        return max(offset, min(ends))

    def _events(self, upto: int) -> FramePage:
        first, bodies = self.feed.look(upto)
        mode = WriterMode.LIVE
        if first <= self._told:
            mode = WriterMode.QUIET
        elif self._state is SubscriptionState.HISTORY:
            mode = WriterMode.RESUME if self._start.resumes else WriterMode.REPLAY
        page = self._writer.take(first, bodies, mode)
        self._offset = self._writer.offset
        self.feed.take(self._offset)
        if mode is WriterMode.QUIET and self._offset == self._told:
            self._writer.fold().keep(self._session, self._client.dialect)
        self._is_silent = self._is_silent and not page.frames
        return page

    def _end_history(self) -> FramePage:
        self._state = step(self._state, Signal.TOLD)
        page = FramePage.of(self._writer.state() if self._start.tells_state else [])
        if self._is_stream and self._offset > 0:
            # Events that are told to nobody have no frame, so the end of the history is marked by itself.
            page.add(self._offset, [b""])
        elif not (page.frames or self._is_stream or self._client.is_merged) and self._is_silent:
            return FramePage.of(self._writer.greet([HARMLESS]))
        return page

    def _greet(self) -> FramePage:
        self._state = step(self._state, Signal.GREETED)
        # Who has not heard the history must know the children before it hears them.
        frames = self._writer.children() if self._start.after > 0 and not self._start.resumes else []
        frames += self._writer.greet(self._subscription.greet())
        frames += self._writer.settled_requests({each.request_id for each in self._session.state.permissions})
        if self._start.asks:
            frames += self._writer.open_requests()
        return FramePage.of(frames)
