"""One reader of one session: all frames that the client is sent about it, in one order.

A reader is a follower of the log with its own fold, so any number of readers can run independently and each
receives everything. It has no task: its driver (`pages`, or a `Carrier`) requests the next page, which is available
or has to be waited for, and is woken when a page may be available.

Theory of operation
-------------------
The log decides the order, and frames that are not in the log (responses, errors) wait for the event that they must
not overtake. A session begins in the states of `subscription`, and each reader goes through those that its
subscription has not passed yet:

    history   events that the client requested again, then the running state
    answer    the response to `session/load` or a similar request, sent by the first reader that gets here
    gate      nothing, until the client reports that it is ready, if it is a client that does; then the current
              state, the open permission requests, and the settlement of those that the client was asked before
    live      new events

    A1  No frame of a session is sent before the response that tells the client about the session, except for the
        history that the protocol puts before it (G6).
    A2  A cursor moves past an event only with the last frame of that event.
    A3  A reopened session sends open permission requests again, under the ids that the client knows. Responses to
        the client's own prompts that are in the history are sent with the opening (`prompt_methods.owed_upto`), so
        a new reader responds only to prompts that end after the history.
    A4  A reader ends between pages, which end between events, so the next one continues without a gap and without
        a repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from enum import Enum, auto
from typing import NamedTuple
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import checkpoint

from turnwire.errors import PositionLost, SessionNotFound, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.log.rules import check_position
from turnwire.runtime.follow import Cursor
from turnwire.runtime.session import Readable
from turnwire.runtime.tail import Tail
from turnwire.server.acp.client_state import ClientState
from turnwire.server.acp.frame_writer import Fold, FramePage, FrameWriter, PlainRuns, WriterMode
from turnwire.server.acp.subscription import (
    READABLE,
    QueueReader,
    Signal,
    Start,
    Subscription,
    SubscriptionState,
    ToldOn,
    Wake,
    Woken,
    step,
)
from turnwire.server.daemon import Daemon
from turnwire.server.readers.fanout import Lost, start_at
from turnwire.session.codec import check_readable
from turnwire.wire.jsonrpc import Notification, encode, raw
from turnwire.wire.methods import STATE_RESYNC_REQUIRED

HARMLESS = raw({"sessionUpdate": "session_info_update"})
"""An update without effect. Some clients open a session's stream only after a frame that names the session."""


class Feed:
    """A follower of the log that can be polled without waiting. It holds at most one page."""

    __slots__ = ("_bodies", "_cursor", "_first", "_is_watching", "_wake", "error", "is_behind", "is_over")

    def __init__(self, cursor: Cursor | None, wake: Woken, error: TurnwireError | None = None) -> None:
        self._cursor = cursor
        self._wake = wake
        self._bodies: list[bytes] = []
        """The rest of the page."""
        self._first = 0
        """The offset of the first event in the page."""
        self._is_watching = False
        self.is_behind = False
        """True if the next events are no longer in memory; call `read`."""
        self.is_over = cursor is None
        """True if no more events follow."""
        self.error = error
        """The reason why no more events follow; None if the session ended."""

    @classmethod
    def open(cls, daemon: Daemon, session: Readable, after: Position, wake: Woken) -> Feed:
        """Follow a session from a position; if its log does not have the position, the feed is over."""
        try:
            return cls(Cursor(daemon.log, session.tail, session.session_id, after, daemon.limits), wake)
        except PositionLost as lost:
            return cls(None, wake, lost)

    @property
    def next_offset(self) -> int | None:
        """The offset of the next event; None if no event is available yet."""
        if not self._bodies and not self.is_over and not self.is_behind:
            self._look()
        return self._first if self._bodies else None

    def look(self, upto: int) -> tuple[int, list[bytes]]:
        """Return the next offset, which must not be None, and all available events up to `upto`."""
        first = self._first
        return first, self._bodies[: upto + 1 - first]

    def take(self, upto: int) -> None:
        """Remove all events up to `upto`."""
        del self._bodies[: upto + 1 - self._first]
        self._first = upto + 1

    def _look(self) -> None:
        """Fetch events from memory; if there are none, register to be woken."""
        cursor = self._cursor
        assert cursor is not None, "one that is not over has a place"
        bodies = cursor.take()
        if bodies:
            self._hold(bodies)
        elif bodies is None:
            self.is_behind = True
        elif cursor.tail.is_over:
            self.is_over = True
        elif not self._is_watching:
            self._is_watching = True
            cursor.tail.watch(self._come)

    def _come(self) -> None:
        self._is_watching = False
        self._wake.set()

    def _hold(self, bodies: list[bytes]) -> None:
        assert self._cursor is not None, "what is held was taken behind a place"
        self._bodies, self._first = bodies, self._cursor.offset - len(bodies) + 1

    async def read(self) -> None:
        """Fetch events that are no longer in memory. Does not raise errors of the log; `error` holds them."""
        assert self._cursor is not None, "who is behind has a place"
        try:
            bodies = await self._cursor.read()
            check_readable(bodies)
            self._hold(bodies)
        except TurnwireError as error:
            self.error, self.is_over = error, True
        self.is_behind = False

    def close(self) -> None:
        """Stop following."""
        if self._is_watching and self._cursor is not None:
            self._cursor.tail.watch_no_more(self._come)


class Need(Enum):
    """The precondition for a reader's next page."""

    BEGIN = auto()
    """The reader must look up the session's position; requires waiting."""
    READ = auto()
    """The reader must read the log; requires waiting."""
    WAKE = auto()
    """The reader must be woken."""
    NOTHING = auto()
    """The reader has returned its last page."""


class Reader:
    """A reader. `is_stream`: its frames go to the session's own stream, else to the connection's.

    The caller of `enter` must call `leave`, and `given` after each page.
    """

    __slots__ = ("_after", "_client", "_is_stream", "_queued", "_run", "_subscription", "_wake")

    def __init__(
        self,
        client: ClientState,
        subscription: Subscription,
        after: Position | None,
        wake: Woken,
        *,
        is_stream: bool,
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._after = after
        self._is_stream = is_stream
        self._wake = wake
        self._queued = subscription.queue.open(wake)
        self._run: _Run | None = None
        """None between two openings of the session."""

    def enter(self) -> None:
        """Register the reader, which counts for the client's offers and as a user who can answer."""
        client, subscription = self._client, self._subscription
        client.daemon.clients.stream_opened(subscription.session_id, client.who, None)
        self._queued = subscription.queue.open(self._wake)
        subscription.queue.enter(self._queued)
        subscription.add_reader(self._wake, is_stream=self._is_stream)

    def leave(self) -> None:
        """Unregister the reader."""
        client, subscription = self._client, self._subscription
        self._end_run()
        subscription.remove_reader(self._wake, is_stream=self._is_stream)
        subscription.queue.leave(self._queued)
        client.daemon.clients.stream_ended(subscription.session_id, client.who, None)

    def next(self) -> FramePage | Need:
        """Return the next page, which may be empty, or what the reader waits for.

        Raises the log's error if the log cannot continue.
        """
        while not self._is_over():
            run = self._run
            if run is None:
                return self._between()
            if run.is_stale():
                self._end_run()
                continue
            page = run.step()
            if page is not None:
                return page
            if not run.has_lost_its_place():
                return Need.READ if run.feed.is_behind else Need.WAKE
            self._end_run()
        return Need.NOTHING

    def given(self) -> None:
        """Record that all frames of the last page were passed on."""
        if self._run is not None:
            self._run.page_delivered()

    async def prepare(self, need: Need) -> None:
        """Wait until the need is met. Raises `PositionLost`, `SessionNotFound`."""
        if need is Need.BEGIN:
            self._run = await self._begin(self._queued)
        elif self._run is not None:
            await self._run.feed.read()

    def _is_over(self) -> bool:
        return self._subscription.state is SubscriptionState.OVER or self._queued.is_late or self._gives_way()

    def _between(self) -> FramePage | Need:
        state = self._subscription.state
        if state in READABLE and not self._waits_its_turn():
            return Need.BEGIN
        if state is SubscriptionState.DETACHED and (frame := self._queued.next()) is not None:
            # A detached client still receives its pending responses.
            return FramePage.of([frame])
        return Need.WAKE

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run, self._after = None, None

    def _waits_its_turn(self) -> bool:
        return self._is_stream and self._client.told_on(self._subscription) is not ToldOn.OWN

    def _gives_way(self) -> bool:
        return not self._is_stream and self._client.told_on(self._subscription) is ToldOn.HANDED_OVER

    async def _begin(self, queued: QueueReader) -> _Run:
        subscription, node = self._subscription, self._client.daemon.node
        start, generation = subscription.start, subscription.generation
        assert start is not None, "readers begin only where the client is attached"
        after = self._after
        if after is None:
            head = await node.head(subscription.session_id)
        else:
            head, _, _ = await start_at(node, subscription.session_id, *after)
            check_position(head, after)
        first = head.first - 1
        told = subscription.cursor if after is None else after.offset
        if told < first:
            subscription.put(resync(subscription.session_id, Lost("trimmed", told, first + 1)), 0)
        told = max(told, first)
        session = await node.peek(subscription.session_id)
        fold = Fold.begin(session, self._client.dialect, first, told)
        feed = Feed.open(self._client.daemon, session, Position(head.epoch, fold.offset), self._wake)
        # The start of the session's agent may be before this position.
        subscription.agent_started()
        source = _Source(session, fold, feed, queued, _runs.setdefault(session.tail, PlainRuns()))
        return _Run(
            self._client, subscription, _Opening(start, generation, told), source, is_stream=self._is_stream
        )


async def pages(
    client: ClientState, subscription: Subscription, after: Position | None
) -> AsyncGenerator[FramePage]:
    """Yield all frames for the session's own stream, until the session or the connection ends.

    Raises `PositionLost`.
    """
    wake = Wake()
    reader = Reader(client, subscription, after, wake, is_stream=True)
    reader.enter()
    try:
        while (found := reader.next()) is not Need.NOTHING:
            if isinstance(found, FramePage):
                if found.frames:
                    yield found
                else:
                    await checkpoint()
                reader.given()
            elif found is Need.WAKE:
                await wake.wait()
            else:
                await reader.prepare(found)
    finally:
        reader.leave()


class Carrier:
    """Sender of a session on the connection's stream: a reader that has a task only while it waits for the log.

    Implements `Woken`.
    """

    __slots__ = (
        "_client",
        "_ended",
        "_is_called",
        "_is_in",
        "_is_over",
        "_page",
        "_reader",
        "_subscription",
        "_waiting",
    )

    def __init__(
        self, client: ClientState, subscription: Subscription, ended: Callable[[Subscription], None]
    ) -> None:
        """`ended`: called when the carrier ends without an error."""
        self._client = client
        self._subscription = subscription
        self._ended = ended
        self._reader = Reader(client, subscription, None, self, is_stream=False)
        self._page: tuple[FramePage, int] | None = None
        """The page that waits for room, and its generation."""
        self._is_in = False
        self._is_over = False
        self._is_called = False
        self._waiting: anyio.CancelScope | None = None
        """The waiting task, if any."""
        self.set()

    def set(self) -> None:
        if not self._is_called and self._waiting is None:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._look)

    def cancel(self) -> None:
        """Stop; the connection ends."""
        self._is_over = True
        if self._waiting is None:
            self._end(is_done=False)
        else:
            self._waiting.cancel()

    def _look(self) -> None:
        self._is_called = False
        if self._waiting is not None or self._subscription.carrier is not self:
            return
        is_done = False
        with self._client.guarded():
            if not self._is_in:
                self._is_in = True
                self._reader.enter()
            try:
                self._act(self._tell())
            except TurnwireError as error:
                self._refuse(error)
                raise
            is_done = True
        if not is_done:
            self._end(is_done=False)

    def _act(self, need: Need | None) -> None:
        if need is None:
            self.set()
        elif need is Need.NOTHING:
            self._end(is_done=True)
        elif need is not Need.WAKE:
            self._waiting = self._client.start(self._wait, need)

    def _tell(self) -> Need | None:
        """Queue pages while there is room. Return the need, or None to yield to other tasks before continuing."""
        queue = self._client.queue
        while True:
            if self._page is None:
                found = self._reader.next()
                if not isinstance(found, FramePage):
                    return found
                self._page = found, self._subscription.generation
            page, generation = self._page
            if page.frames:
                if not queue.has_room(self):
                    return Need.WAKE
                if generation >= self._subscription.paused_generation:
                    queue.put_all(page.frames)
            self._page = None
            self._reader.given()
            if not page.frames:
                return None

    def _refuse(self, error: TurnwireError) -> None:
        """Fail the client's request, since no other reader would respond to it. No automatic retry follows."""
        if self._subscription.refuse(error):
            self._client.start(self._client.leave, self._subscription)

    async def _wait(self, need: Need | None) -> None:
        is_done = False
        try:
            while need not in (Need.WAKE, Need.NOTHING) and not self._is_over:
                await (checkpoint() if need is None else self._reader.prepare(need))
                need = self._tell()
            is_done = not self._is_over
        except TurnwireError as error:
            self._refuse(error)
            raise
        finally:
            self._waiting = None
            if not is_done or need is Need.NOTHING:
                self._end(is_done=is_done)

    def _end(self, *, is_done: bool) -> None:
        if self._subscription.carrier is not self:
            return
        if self._is_in:
            self._is_in = False
            self._reader.leave()
        self._subscription.carrier = None
        # A failed carrier would fail again at once; it is retried when a reader comes or goes.
        if is_done:
            self._ended(self._subscription)


def resync(session_id: SessionId, lost: Lost) -> bytes:
    """Return the notification for a cursor that cannot be honoured, or for missed events that are trimmed.

    The client loads the session again.
    """
    told = {
        "sessionId": session_id,
        "reason": lost.reason,
        "lastDeliveredId": lost.last,
        "earliestAvailableId": lost.earliest,
    }
    return encode(Notification(STATE_RESYNC_REQUIRED, raw(told)))


class _Opening(NamedTuple):
    """The opening of the session that a reader sends."""

    start: Start
    generation: int
    told: int
    """The last event that the client has."""


class _Source(NamedTuple):
    """The sources of a reader's frames, and its fold of the earlier events."""

    session: Readable
    fold: Fold
    feed: Feed
    queued: QueueReader
    runs: PlainRuns


_runs: WeakKeyDictionary[Tail, PlainRuns] = WeakKeyDictionary()


class _Run:
    """A reader's run from one opening of its session to the next."""

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
        """True until a frame is returned."""
        self._runs.enter()
        self._state = subscription.state
        """Steps that other readers have completed are not repeated. If the opening is stale, no step is made."""

    def close(self) -> None:
        """Stop reading."""
        self._runs.leave()
        self.feed.close()

    def is_stale(self) -> bool:
        """Return whether the session was reopened or closed."""
        return self._subscription.generation != self._generation or self._queued.is_late

    def has_lost_its_place(self) -> bool:
        """Return whether the log was trimmed while this reader stalled. Raises any other error of the log.

        A session that ended is neither: responses about it still follow.
        """
        error = self.feed.error
        if error is not None and not isinstance(error, SessionNotFound | PositionLost):
            raise error
        return isinstance(error, PositionLost)

    def step(self) -> FramePage | None:
        """Return the next page; None if none is available now."""
        # A frame that waits for an event that will never come must not wait.
        has_ended = self.feed.next_offset is None and self.feed.is_over
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
        """Record that all frames of the last step were sent."""
        if self._subscription.generation == self._generation:
            self._subscription.delivered(self._offset if self._offset > self._told else 0, self._queued.position)

    def _is_gate_open(self) -> bool:
        return self._subscription.gate.is_open and self._offset >= self._told

    def _take_upto(self, offset: int) -> int:
        """Return the last event that can be sent together with the next one, before another step is due."""
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
        # A limit may be before `offset` if the log was trimmed meanwhile.
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
            # Events that are not sent to the client have no frame, so the end of the history is marked separately.
            page.add(self._offset, [b""])
        elif not (page.frames or self._is_stream or self._client.is_merged) and self._is_silent:
            return FramePage.of(self._writer.greet([HARMLESS]))
        return page

    def _greet(self) -> FramePage:
        self._state = step(self._state, Signal.GREETED)
        # A client without the history must know the children before it receives their updates.
        frames = self._writer.children() if self._start.after > 0 and not self._start.resumes else []
        frames += self._writer.greet(self._subscription.greet())
        frames += self._writer.settled_requests({each.request_id for each in self._session.state.permissions})
        if self._start.asks:
            frames += self._writer.open_requests()
        return FramePage.of(frames)
