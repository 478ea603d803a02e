"""One client's subscription to one session: its state, its cursor and its readers.

All readers of the client start at the same position, and the subscription records how far they have read, so that
the next reader continues there. The order of deliveries is defined by one table; nothing else in `server.acp`
decides it. The log is read by `reader`. Frames that are not in the log (responses, requests to the client, errors)
are in a `FrameQueue`.

Theory of operation
-------------------
A client that opens a session receives it in one order, whichever method it used and however many streams it reads:
the history that it requested, the response to its request, nothing until it is ready (if it is a client that
reports this), then the current state and new events. In between, the client can detach, come back, lose its socket
and be paused.

The same table is stepped by the subscription and by each reader. A subscription is in the state of its foremost
reader, so that a later reader does not begin from the start. Each reader steps on its own from there: two streams
of one session both send the history, and only the first one that finishes it sends the response.

    M1  The response is sent once per opening, after the history: `ANSWERED` leads only out of `ANSWER`.
    M2  The current state is sent once per opening, after the response: `GREETED` leads only out of `GATE`.
    M3  A pause loses nothing and repeats nothing: `RESUMED` leads back to the state that `PAUSED` interrupted.
    M4  Reopening a session starts again from the beginning, whatever its state was.
    M5  `OVER` is final. Signals in flight when a connection ends do no harm there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum, auto
from itertools import chain, islice
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from msgspec import Raw

from turnwire.errors import LocalProtocolError, TurnwireError
from turnwire.ids import ClientId, Epoch, SessionId

BEHIND = 4
"""Maximum number of queued pages for a slower reader. Only one is queued for the fastest: the log has the rest.
"""


# -- frames outside the log ----------------------------------------------------------------------------------


class Woken(Protocol):
    """The receiver of a wake-up."""

    def set(self) -> None:
        """Notify the receiver that there may be work. Must return quickly: the caller has others to notify."""
        ...


class Wake:
    """A wake-up that many set and one awaits. An asyncio event, for any number, is ten times as large."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiter."""
        self._is_set = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Return once `set` was called since the last return. Cancel-safe."""
        while not self._is_set:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        self._is_set = False


class Queued(NamedTuple):
    """A frame or a page of the log, and the offset of the event that it must not overtake; 0 for no event."""

    after: int
    frames: Sequence[bytes]
    is_logged: bool = False
    """True for a page of the log, which a returning client can receive again."""


class FrameQueue:
    """An ordered queue of frames. There are thousands, nearly all of them empty, with one reader or none.

    Each frame goes to every present reader, in order. Frames that arrive without a reader are held for the first
    one, up to a bound; beyond it the client is considered lost (`is_lost`). A reader that lags by more than the
    bound is dropped, so that it delays no other.
    """

    __slots__ = ("_first", "_held", "_most", "_read", "_readers", "_room", "is_lost")

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: list[Queued] = []
        self._first = 0
        """The number of entries dropped from `_held`, which is the position of its first entry."""
        self._read = 0
        """The first position that no reader has consumed."""
        self._readers: list[QueueReader] = []
        self._room: list[Woken] = []
        """Receivers that wait for room, each listed once."""
        self.is_lost = False
        """True once more frames wait than allowed: the client does not read."""

    @property
    def end(self) -> int:
        """The position of the next entry. A page has one position."""
        return self._first + len(self._held)

    @property
    def has_readers(self) -> bool:
        """True if the queue has a reader."""
        return bool(self._readers)

    def wake(self) -> None:
        """Wake all readers for something other than a frame."""
        for each in self._readers:
            each.wake.set()

    def put(self, frame: bytes, after: int = 0) -> None:
        """Pass a frame to all readers, or hold it for the first one."""
        self._put(Queued(after, (frame,)))

    def put_all(self, frames: Sequence[bytes]) -> None:
        """Pass a page of the log to all readers, or hold it for the first one. Call `has_room` before."""
        self._put(Queued(0, frames, is_logged=True))

    def _put(self, queued: Queued) -> None:
        self._held.append(queued)
        for each in list(self._readers):
            # Entries are held only for readers that are not late, so one that does not read costs the others
            # nothing.
            is_far = queued.is_logged and self._pages_from(each.position) > BEHIND
            if is_far or self.end - each.position > self._most:
                each.is_late = True
            each.wake.set()
        self._trim()
        if len(self._held) > self._most:
            self.is_lost = True

    def forget_logged(self) -> None:
        """Discard the held frames that are in the log."""
        # The entries stay, because readers store their position as a number.
        self._held = [each._replace(frames=()) if each.is_logged else each for each in self._held]

    def has_room(self, wake: Woken) -> bool:
        """Return whether the fastest reader has consumed all pages of the log. If not, `wake` is set later."""
        if not self._pages_from(self._fastest()):
            return True
        if wake not in self._room:
            self._room.append(wake)
        return False

    def open(self, wake: Woken) -> QueueReader:
        """Return a reader: the first one starts with the held frames, any other with the next frame."""
        return QueueReader(self, self.end if self._readers else self._read, wake)

    def since(self, position: int) -> Iterator[Queued]:
        """Return the held entries from this position on."""
        return islice(self._held, max(position - self._first, 0), None)

    def taken(self, position: int) -> None:
        """Record that a reader has consumed the entry at this position."""
        self._read = max(self._read, position + 1)
        self._trim()
        self._look_for_room()

    def enter(self, reader: QueueReader) -> None:
        """Register the reader."""
        self._readers.append(reader)
        # The reader may be ahead of all others, with nothing to consume.
        self._look_for_room()

    def leave(self, reader: QueueReader) -> None:
        """Unregister the reader; frames that only it has not read are dropped if others were faster."""
        self._readers.remove(reader)
        self._trim()

    def _look_for_room(self) -> None:
        if self._room:
            waiting, self._room = self._room, []
            for each in waiting:
                each.set()

    def _pages_from(self, position: int) -> int:
        return sum(each.is_logged for each in self.since(position))

    def _fastest(self) -> int:
        return max((each.position for each in self._readers), default=self._read)

    def _trim(self) -> None:
        in_time = (each.position for each in self._readers if not each.is_late)
        # Without a reader, unconsumed frames wait for the next one.
        keep = min(in_time, default=self._read)
        gone = min(max(keep - self._first, 0), len(self._held))
        del self._held[:gone]
        self._first += gone


class QueueReader:
    """A reader's position. Use it with `with`."""

    __slots__ = ("_queue", "is_late", "position", "wake")

    def __init__(self, queue: FrameQueue, position: int, wake: Woken) -> None:
        self._queue = queue
        self.position = position
        self.wake = wake
        self.is_late = False
        """True once the reader lags too far; it receives no more frames."""

    def next(self, upto: int | None = None) -> bytes | None:
        """Return the next frame; None if there is none, or if it must wait for an event after `upto`.

        Only for queues without pages of the log.
        """
        queued = None if self.is_late else next(self._queue.since(self.position), None)
        if queued is None or (upto is not None and queued.after > upto):
            return None
        self.position += 1
        self._queue.taken(self.position - 1)
        (frame,) = queued.frames
        return frame

    def rest(self) -> list[bytes]:
        """Return all available frames; may be empty although entries were consumed."""
        queued = [] if self.is_late else list(self._queue.since(self.position))
        if queued:
            self.position += len(queued)
            self._queue.taken(self.position - 1)
        return list(chain.from_iterable([each.frames for each in queued]))

    @property
    def next_after(self) -> int | None:
        """The offset of the event that the next frame waits for; None without a frame."""
        queued = None if self.is_late else next(self._queue.since(self.position), None)
        return None if queued is None else queued.after

    def __enter__(self) -> Self:
        self._queue.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.leave(self)


# -- the table -----------------------------------------------------------------------------------------------


class SubscriptionState(StrEnum):
    DETACHED = "detached"
    """The client is not attached. It receives no events, only responses that are still pending."""
    HISTORY = "history"
    """The requested history is being sent."""
    ANSWER = "answer"
    """The history is sent, and the response is next. Lasts only while the response is sent."""
    GATE = "gate"
    """The response is sent. No new event is sent before the client is ready."""
    LIVE = "live"
    """The client has the current state and receives new events."""
    HISTORY_PAUSED = "history_paused"
    """Like `HISTORY`, but paused until the client names a position, or a socket resumes without one."""
    GATE_PAUSED = "gate_paused"
    LIVE_PAUSED = "live_paused"
    OVER = "over"
    """The connection has ended."""


class Signal(StrEnum):
    OPENED = "opened"
    """The client was attached, or attached again."""
    TOLD = "told"
    """The whole history was sent."""
    ANSWERED = "answered"
    """The response to the request that opened the session was sent."""
    GREETED = "greeted"
    """The client was ready, and the current state was sent."""
    PAUSED = "paused"
    """A new socket resumed the connection and will name a position for each session."""
    RESUMED = "resumed"
    """The session continues where it stopped, without a position from the client."""
    CLOSED = "closed"
    """The client was detached."""
    ENDED = "ended"
    """The connection ended."""


_DETACHED, _HISTORY, _ANSWER = SubscriptionState.DETACHED, SubscriptionState.HISTORY, SubscriptionState.ANSWER
_GATE, _LIVE, _OVER = SubscriptionState.GATE, SubscriptionState.LIVE, SubscriptionState.OVER
_HISTORY_PAUSED, _GATE_PAUSED = SubscriptionState.HISTORY_PAUSED, SubscriptionState.GATE_PAUSED
_LIVE_PAUSED = SubscriptionState.LIVE_PAUSED

_ANYWHERE: Mapping[Signal, SubscriptionState] = {
    Signal.OPENED: _HISTORY,
    Signal.CLOSED: _DETACHED,
    Signal.ENDED: _OVER,
}
"""Transitions that a client or its connection can cause in any state."""

NEXT: Mapping[SubscriptionState, Mapping[Signal, SubscriptionState]] = {
    # All sessions of a connection are paused and resumed together, including those that the client has left.
    _DETACHED: {**_ANYWHERE, Signal.PAUSED: _DETACHED, Signal.RESUMED: _DETACHED},
    _HISTORY: {**_ANYWHERE, Signal.TOLD: _ANSWER, Signal.PAUSED: _HISTORY_PAUSED, Signal.RESUMED: _HISTORY},
    # The response is sent synchronously, so no other signal can occur here.
    _ANSWER: {Signal.ANSWERED: _GATE},
    _GATE: {**_ANYWHERE, Signal.GREETED: _LIVE, Signal.PAUSED: _GATE_PAUSED, Signal.RESUMED: _GATE},
    _LIVE: {**_ANYWHERE, Signal.PAUSED: _LIVE_PAUSED, Signal.RESUMED: _LIVE},
    _HISTORY_PAUSED: {**_ANYWHERE, Signal.PAUSED: _HISTORY_PAUSED, Signal.RESUMED: _HISTORY},
    _GATE_PAUSED: {**_ANYWHERE, Signal.PAUSED: _GATE_PAUSED, Signal.RESUMED: _GATE},
    _LIVE_PAUSED: {**_ANYWHERE, Signal.PAUSED: _LIVE_PAUSED, Signal.RESUMED: _LIVE},
    _OVER: dict.fromkeys((Signal.OPENED, Signal.CLOSED, Signal.ENDED, Signal.PAUSED, Signal.RESUMED), _OVER),
}

READABLE = frozenset({_HISTORY, _ANSWER, _GATE, _LIVE})
"""The states in which readers are sent events from the log."""

PAUSED = frozenset({_HISTORY_PAUSED, _GATE_PAUSED, _LIVE_PAUSED})
"""The states in which readers are sent nothing."""

ATTACHED = READABLE | PAUSED
"""The states in which the client is attached in the log."""

UNANSWERED = frozenset({_HISTORY, _ANSWER, _HISTORY_PAUSED})
"""The states in which the client waits for the response to its request to open the session."""


def step(state: SubscriptionState, signal: Signal) -> SubscriptionState:
    """Return the state after a signal. Raises `LocalProtocolError` if the table does not allow it."""
    following = NEXT[state].get(signal)
    if following is None:
        raise LocalProtocolError(
            f"a subscription that is {state.value!r} cannot take {signal.value!r}",
            state=state.value,
            event=signal.value,
        )
    return following


# -- stream selection ----------------------------------------------------------------------------------------


class ToldOn(Enum):
    """The streams of a client that carry a session. A session is carried by one kind of stream at a time."""

    NOTHING = auto()
    """No stream carries the session, and none has to."""
    OWN = auto()
    """The session's own streams."""
    CONNECTION = auto()
    """The connection's stream, through a reader that runs or is about to be started."""
    HANDED_OVER = auto()
    """None until the reader for the connection's stream has ended; the session's own streams wait for it, so that
    no frame is sent twice.
    """


def told_on(
    state: SubscriptionState, *, is_merged: bool, is_connection_read: bool, has_own: bool, is_carried: bool
) -> ToldOn:
    """Return the streams that carry a session.

    `is_merged`: the client has one stream for everything. `is_connection_read`: the connection's stream has a
    reader. `has_own`: the session has its own stream. `is_carried`: the session has a reader for the connection's
    stream.
    """
    if is_carried:
        gives_way = not is_connection_read or (has_own and not is_merged)
        return ToldOn.HANDED_OVER if gives_way else ToldOn.CONNECTION
    if has_own:
        return ToldOn.OWN
    # A client with several streams learns of the session from the response, so it cannot have opened a stream for
    # it before.
    is_wanted = state in (ATTACHED if is_merged else UNANSWERED)
    return ToldOn.CONNECTION if is_wanted and is_connection_read else ToldOn.NOTHING


# -- a session at a client -----------------------------------------------------------------------------------


class Start(NamedTuple):
    """The start of a session for a client."""

    client_id: ClientId
    epoch: Epoch
    after: int
    """Events up to this offset are not sent."""
    head: int
    """Events up to this offset are history and are sent before the response."""
    tells_state: bool = False
    """True if the running state is sent after the history."""
    greeting: Sequence[Raw] = ()
    """Updates with the current state, sent after the response."""
    asks: bool = True
    """True if permission requests that are already open are sent."""
    resumes: bool = False
    """The client was here before: the history is the part that it missed, encoded as it would have been live."""
    answer: Callable[[], None] | None = None
    """Sends the response that follows the history; None if it was sent before the start."""
    refuse: Callable[[TurnwireError], None] | None = None
    """Sends an error instead of the response if the history cannot be sent."""


class Ended(Protocol):
    """Work done for a subscription until it is cancelled."""

    def cancel(self) -> None:
        """Stop the work; it is no longer needed."""
        ...


class Lent(Ended, Woken, Protocol):
    """Work for a subscription that is also notified of each agent that starts to serve the session."""


class Gate:
    """The gate that holds readers until the client is ready. Each opening has one."""

    __slots__ = ("is_open",)

    def __init__(self, *, is_open: bool = False) -> None:
        self.is_open = is_open


class Subscription:
    """A session at a client.

    Readers come and go; the client's progress is stored here, as a state of the table.
    """

    def __init__(
        self, session_id: SessionId, most: int, changed: Callable[[Subscription], None] | None = None
    ) -> None:
        self.session_id = session_id
        self.state = SubscriptionState.DETACHED
        self.queue = FrameQueue(most)
        """Frames for the client about this session that are not in the log."""
        self.start: Start | None = None
        """None while the client is not attached."""
        self.gate = Gate()
        """Open once the client has processed the response, or if the client does not report that."""
        self._held: Callable[[Subscription], None] | None = None
        self.generation = 0
        """The number of openings, closings and pauses; a reader of another generation starts again."""
        self.paused_generation = 0
        """Pages of readers before this generation are discarded."""
        self.cursor = 0
        """The last event that was completely sent to a reader."""
        self.readers = 0
        """The number of readers, including those that write to the connection's stream."""
        self.streams = 0
        """The number of readers that write to a stream of this session alone."""
        self.carrier: Ended | None = None
        """The carrier that sends the session on the connection's stream, or is about to."""
        self.lending: Lent | None = None
        """The offer of the client's files and terminals to the session's agent."""
        self._changed = changed
        self._wakes: list[Woken] = []
        self._behind_queue: Callable[[], object] | None = None
        self._last_queued = 0
        self._behind: list[tuple[int, Callable[[], None]]] = []
        """Callbacks, each with the offset of the event that it runs after."""

    @property
    def is_attached(self) -> bool:
        """True if the client is attached in the log."""
        return self.state in ATTACHED

    def told_on(self, *, is_merged: bool, is_connection_read: bool) -> ToldOn:
        """Return the client's streams that carry the session."""
        return told_on(
            self.state,
            is_merged=is_merged,
            is_connection_read=is_connection_read,
            has_own=self.streams > 0,
            is_carried=self.readers > self.streams,
        )

    @property
    def client_id(self) -> ClientId | None:
        """The client's id in the session's log; None while it is not attached."""
        return None if self.start is None else self.start.client_id

    # -- the client ----------------------------------------------------------------------------------------

    def open(self, start: Start, held: Callable[[Subscription], None] | None = None) -> None:
        """Attach the client. Readers begin, or begin again.

        `held`: called when the response is sent, if readers then wait until the client is ready.
        """
        self._act_behind()
        self.state = step(self.state, Signal.OPENED)
        if self.state is SubscriptionState.OVER:
            # The request was in progress when the connection ended.
            return
        self.start = start
        self.cursor = start.after
        self._behind_queue = None
        self.gate, self._held = Gate(is_open=held is None), held
        if start.answer is None:
            self.answer()
        self._begin_anew()
        self._tell_change()

    def close(self) -> None:
        """Detach the client. Readers stay, and are sent no more events."""
        self._leave(Signal.CLOSED)

    def end(self) -> None:
        """End the readers; the connection is closed."""
        self._leave(Signal.ENDED)

    def _leave(self, signal: Signal) -> None:
        self._act_behind()
        self.state = step(self.state, signal)
        self.start = None
        self._begin_anew()
        self._tell_change()

    def pause(self) -> None:
        """Send nothing until the session is opened again. Frames not yet sent are discarded."""
        self._act_behind()
        self.state = step(self.state, Signal.PAUSED)
        self._begin_anew()
        self.paused_generation = self.generation

    def resume(self) -> None:
        """Let readers continue where they stopped, if they were paused."""
        before, self.state = self.state, step(self.state, Signal.RESUMED)
        if self.state is not before:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.generation += 1
        self.wake()

    def open_gate(self) -> None:
        """Release held frames; the client is ready."""
        if not self.gate.is_open:
            self.gate.is_open = True
            self.wake()

    # -- steps that readers do for all ---------------------------------------------------------------------

    def answer(self) -> None:
        """Send the response, unless another reader already has. Called by a reader that has sent the history."""
        if self.state is SubscriptionState.HISTORY:
            assert self.start is not None, "who is attached has a start"
            self.state = step(self.state, Signal.TOLD)
            if self.start.answer is not None:
                self.start.answer()
            self.state = step(self.state, Signal.ANSWERED)
            if self._held is not None:
                self._held(self)

    def refuse(self, error: TurnwireError) -> bool:
        """Send an error if the client still waits for the response, because the history could not be sent.

        Returns whether an error was sent; the caller then detaches the client.
        """
        if self.state not in UNANSWERED or self.start is None or self.start.refuse is None:
            return False
        self.start.refuse(error)
        return True

    def greet(self) -> Sequence[Raw]:
        """Return the updates with the current state, unless already sent. Called after the gate."""
        if self.state is not SubscriptionState.GATE:
            return ()
        assert self.start is not None, "who is attached has a start"
        self.state = step(self.state, Signal.GREETED)
        return self.start.greeting

    def delivered(self, offset: int, position: int) -> None:
        """Record that a reader was sent all events up to this one, and all queued frames before this position."""
        self.cursor = max(self.cursor, offset)
        if self._behind:
            self._act_behind(self.cursor)
        if self._behind_queue is not None and position >= self._last_queued:
            act, self._behind_queue = self._behind_queue, None
            act()

    # -- frames outside the log ----------------------------------------------------------------------------

    def put(self, frame: bytes, after: int) -> None:
        """Queue a frame that is not in the log, after the event at offset `after`."""
        self.queue.put(frame, after)
        self.wake()

    def call_behind_queue(self, act: Callable[[], object]) -> None:
        """Call `act` once a reader was sent all frames that are queued now."""
        self._behind_queue, self._last_queued = act, self.queue.end

    def behind(self, after: int, act: Callable[[], None]) -> None:
        """Call `act` once a reader was sent all events up to this one; now if no reader receives events."""
        if not self.readers or self.state is not SubscriptionState.LIVE or self.cursor >= after:
            act()
        else:
            self._behind.append((after, act))

    @property
    def next_behind(self) -> int | None:
        """The event that the earliest callback waits for; None without callbacks."""
        return min((after for after, _ in self._behind), default=None)

    def _act_behind(self, offset: int | None = None) -> None:
        """Run the callbacks for events up to this one, or all of them."""
        due = [each for each in self._behind if offset is None or each[0] <= offset]
        self._behind = [each for each in self._behind if each not in due]
        for _, act in due:
            act()

    def agent_started(self) -> None:
        """Notify the lending that an agent now serves the session."""
        if self.lending is not None:
            self.lending.set()

    def stop(self) -> None:
        """Cancel the work done for the subscription."""
        for each in (self.carrier, self.lending):
            if each is not None:
                each.cancel()
        self.lending = None

    # -- readers -------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake all readers."""
        for each in self._wakes:
            each.set()

    def add_reader(self, wake: Woken, *, is_stream: bool) -> None:
        """Add a reader."""
        self._wakes.append(wake)
        self.readers += 1
        self.streams += is_stream
        self.wake()
        self._tell_change()

    def remove_reader(self, wake: Woken, *, is_stream: bool) -> None:
        """Remove a reader."""
        self._wakes.remove(wake)
        self.readers -= 1
        self.streams -= is_stream
        if not self.readers:
            self._act_behind()
        self.wake()
        self._tell_change()

    def _tell_change(self) -> None:
        if self._changed is not None:
            self._changed(self)
