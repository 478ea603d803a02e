"""One session at one client: where the client stands in it, since when, from where, and who reads it.

Gives every reader of the client the same beginning and remembers how far they came, so that the next one goes on
there. What comes behind what is one table; nothing else in `server.acp` decides it. The log is read by `reader`.

Theory of operation
-------------------
A client that opens a session hears it in one order, whichever method it used and however many streams it reads:
the history that it asked for, the answer to its request, nothing until it is ready (if it is one that says when),
then what is now and whatever comes. On the way it can leave, come back, lose its socket and be told to wait.

The same table is stepped by two. A subscription stands where the foremost of its readers does, so that a reader
that comes later does not begin from the start. Each reader steps for itself from there: two streams of one session
both tell the history, and only the first of them that is through puts the answer out.

    M1  The answer comes once for each opening, behind the history: `ANSWERED` leads only out of `ANSWER`.
    M2  What is now is told once for each opening, behind the answer: `GREETED` leads only out of `GATE`.
    M3  A pause loses nothing and repeats nothing: `RESUMED` leads back to where `PAUSED` was said.
    M4  Opened anew, a session begins anew, whatever it was doing.
    M5  `OVER` has no way out. Signals that are on their way when a connection ends do no harm there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, StrEnum, auto
from typing import NamedTuple, Protocol

from msgspec import Raw

from turnwire.errors import LocalProtocolError, TurnwireError
from turnwire.ids import ClientId, Epoch, SessionId
from turnwire.server.acp.frame_queue import FrameQueue, Woken

# -- the table -----------------------------------------------------------------------------------------------


class SubscriptionState(StrEnum):
    DETACHED = "detached"
    """The client is not attached. It is given nothing of the log, only answers that it is still owed."""
    HISTORY = "history"
    """What it asked to hear again is told."""
    ANSWER = "answer"
    """The history is told, and the answer is next. A subscription is here only while it puts the answer out."""
    GATE = "gate"
    """Answered. Nothing new is told before the client is ready for it."""
    LIVE = "live"
    """It knows what is now, and is told what comes."""
    HISTORY_PAUSED = "history_paused"
    """As `HISTORY`, but nothing is given until the client says from where, or another socket does without."""
    GATE_PAUSED = "gate_paused"
    LIVE_PAUSED = "live_paused"
    OVER = "over"
    """The connection has ended."""


class Signal(StrEnum):
    OPENED = "opened"
    """The client is attached, or attached anew."""
    TOLD = "told"
    """All of the history was given."""
    ANSWERED = "answered"
    """The answer to the request that opened the session is out."""
    GREETED = "greeted"
    """The client was ready, and what is now was given."""
    PAUSED = "paused"
    """A new socket took the connection up and will say from where each session goes on."""
    RESUMED = "resumed"
    """It goes on where it stood after all."""
    CLOSED = "closed"
    """The client is not attached any more."""
    ENDED = "ended"
    """The connection ends."""


_DETACHED, _HISTORY, _ANSWER = SubscriptionState.DETACHED, SubscriptionState.HISTORY, SubscriptionState.ANSWER
_GATE, _LIVE, _OVER = SubscriptionState.GATE, SubscriptionState.LIVE, SubscriptionState.OVER
_HISTORY_PAUSED, _GATE_PAUSED = SubscriptionState.HISTORY_PAUSED, SubscriptionState.GATE_PAUSED
_LIVE_PAUSED = SubscriptionState.LIVE_PAUSED

_ANYWHERE: Mapping[Signal, SubscriptionState] = {
    Signal.OPENED: _HISTORY,
    Signal.CLOSED: _DETACHED,
    Signal.ENDED: _OVER,
}
"""What a client or its connection may do at any time."""

NEXT: Mapping[SubscriptionState, Mapping[Signal, SubscriptionState]] = {
    # All sessions of a connection are paused and resumed together, also those that the client has left.
    _DETACHED: {**_ANYWHERE, Signal.PAUSED: _DETACHED, Signal.RESUMED: _DETACHED},
    _HISTORY: {**_ANYWHERE, Signal.TOLD: _ANSWER, Signal.PAUSED: _HISTORY_PAUSED, Signal.RESUMED: _HISTORY},
    # The answer is put out without waiting for anything, so nothing else can come here.
    _ANSWER: {Signal.ANSWERED: _GATE},
    _GATE: {**_ANYWHERE, Signal.GREETED: _LIVE, Signal.PAUSED: _GATE_PAUSED, Signal.RESUMED: _GATE},
    _LIVE: {**_ANYWHERE, Signal.PAUSED: _LIVE_PAUSED, Signal.RESUMED: _LIVE},
    _HISTORY_PAUSED: {**_ANYWHERE, Signal.PAUSED: _HISTORY_PAUSED, Signal.RESUMED: _HISTORY},
    _GATE_PAUSED: {**_ANYWHERE, Signal.PAUSED: _GATE_PAUSED, Signal.RESUMED: _GATE},
    _LIVE_PAUSED: {**_ANYWHERE, Signal.PAUSED: _LIVE_PAUSED, Signal.RESUMED: _LIVE},
    _OVER: dict.fromkeys((Signal.OPENED, Signal.CLOSED, Signal.ENDED, Signal.PAUSED, Signal.RESUMED), _OVER),
}

READABLE = frozenset({_HISTORY, _ANSWER, _GATE, _LIVE})
"""The states in which readers are given what the log has."""

PAUSED = frozenset({_HISTORY_PAUSED, _GATE_PAUSED, _LIVE_PAUSED})
"""The states in which they are given nothing."""

ATTACHED = READABLE | PAUSED
"""The states in which the log knows the client."""

UNANSWERED = frozenset({_HISTORY, _ANSWER, _HISTORY_PAUSED})
"""The states in which the client waits for the answer to its opening the session."""


def step(state: SubscriptionState, signal: Signal) -> SubscriptionState:
    """The state after a signal. Raises `LocalProtocolError` when the table does not allow it."""
    following = NEXT[state].get(signal)
    if following is None:
        raise LocalProtocolError(
            f"a subscription that is {state.value!r} cannot take {signal.value!r}",
            state=state.value,
            event=signal.value,
        )
    return following


# -- which stream tells it -----------------------------------------------------------------------------------


class ToldOn(Enum):
    """Which streams of a client tell a session. A session is told by one of the two kinds at a time."""

    NOTHING = auto()
    """Nobody reads it, and nobody has to."""
    OWN = auto()
    """The streams of the session's own."""
    CONNECTION = auto()
    """The connection's stream, by a reader that carries the session there or is to be started."""
    HANDED_OVER = auto()
    """That reader ends first. Streams of the session's own wait for it, so that nothing is told twice."""


def told_on(
    state: SubscriptionState, *, is_merged: bool, is_connection_read: bool, has_own: bool, is_carried: bool
) -> ToldOn:
    """Where a session is told.

    `is_merged`: the client has one stream for everything. `is_connection_read`: somebody reads the connection's
    stream. `has_own`: the session has a stream of its own. `is_carried`: a reader for the connection's stream is
    there.
    """
    if is_carried:
        gives_way = not is_connection_read or (has_own and not is_merged)
        return ToldOn.HANDED_OVER if gives_way else ToldOn.CONNECTION
    if has_own:
        return ToldOn.OWN
    # A client with several streams learns of the session by the answer, so it cannot have a stream of it before.
    is_wanted = state in (ATTACHED if is_merged else UNANSWERED)
    return ToldOn.CONNECTION if is_wanted and is_connection_read else ToldOn.NOTHING


# -- a session at a client -----------------------------------------------------------------------------------


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
    """Whether permission requests that are open already are asked."""
    resumes: bool = False
    """The client was there before: the history is what it missed, and told as it would have been told then."""
    answer: Callable[[], None] | None = None
    """Puts the answer out that the history comes before; none if it was put out before the start."""
    refuse: Callable[[TurnwireError], None] | None = None
    """Puts a refusal out in place of the answer, if the history cannot be told."""


class Ended(Protocol):
    """What is done for a subscription until it is ended."""

    def cancel(self) -> None:
        """It is wanted no more."""
        ...


class Lent(Ended, Woken, Protocol):
    """The same, and it hears of each agent that takes the session."""


class Gate:
    """What holds readers back until the client is ready. One for each opening."""

    __slots__ = ("is_open",)

    def __init__(self, *, is_open: bool = False) -> None:
        self.is_open = is_open


class Subscription:
    """A session at a client.

    Its readers come and go; where the client stands is kept here, in a state of the table.
    """

    def __init__(
        self, session_id: SessionId, most: int, changed: Callable[[Subscription], None] | None = None
    ) -> None:
        self.session_id = session_id
        self.state = SubscriptionState.DETACHED
        self.queue = FrameQueue(most)
        """What the client is sent of the session and no log has."""
        self.start: Start | None = None
        """None while the client is not attached."""
        self.gate = Gate()
        """Open once the client has processed the answer, or if it does not say when it has."""
        self._held: Callable[[Subscription], None] | None = None
        self.generation = 0
        """Counts openings, closings and pauses: a reader of another generation begins anew."""
        self.paused_generation = 0
        """Pages of readers before this generation are not given any more."""
        self.cursor = 0
        """The last event that a reader was given whole."""
        self.readers = 0
        """All its readers, also those that write to the connection's own stream."""
        self.streams = 0
        """Readers that write to a stream of this session alone."""
        self.carrier: Ended | None = None
        """What tells it on the connection's own stream, or is about to."""
        self.lending: Lent | None = None
        """What lends the client to the session's agent."""
        self._changed = changed
        self._wakes: list[Woken] = []
        self._behind_queue: Callable[[], object] | None = None
        self._last_queued = 0
        self._behind: list[tuple[int, Callable[[], None]]] = []
        """What is done behind events, and behind which."""

    @property
    def is_attached(self) -> bool:
        """Whether the log knows the client."""
        return self.state in ATTACHED

    def told_on(self, *, is_merged: bool, is_connection_read: bool) -> ToldOn:
        """Which streams of the client tell it."""
        return told_on(
            self.state,
            is_merged=is_merged,
            is_connection_read=is_connection_read,
            has_own=self.streams > 0,
            is_carried=self.readers > self.streams,
        )

    @property
    def client_id(self) -> ClientId | None:
        """What the log calls the client here; none while it is not attached."""
        return None if self.start is None else self.start.client_id

    # -- the client ----------------------------------------------------------------------------------------

    def open(self, start: Start, held: Callable[[Subscription], None] | None = None) -> None:
        """The client is attached. Readers begin, or begin anew.

        `held`: called when the answer is out, if they wait from there on until the client is ready.
        """
        self._act_behind()
        self.state = step(self.state, Signal.OPENED)
        if self.state is SubscriptionState.OVER:
            # A request that was under way when the connection ended.
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
        """The client is not attached any more. Readers stay, and are given nothing of the log."""
        self._leave(Signal.CLOSED)

    def end(self) -> None:
        """The connection is closed: readers end."""
        self._leave(Signal.ENDED)

    def _leave(self, signal: Signal) -> None:
        self._act_behind()
        self.state = step(self.state, signal)
        self.start = None
        self._begin_anew()
        self._tell_change()

    def pause(self) -> None:
        """Give nothing until the session is opened anew. What was given and not sent is not sent any more."""
        self._act_behind()
        self.state = step(self.state, Signal.PAUSED)
        self._begin_anew()
        self.paused_generation = self.generation

    def resume(self) -> None:
        """Readers go on where they stood, if they were paused."""
        before, self.state = self.state, step(self.state, Signal.RESUMED)
        if self.state is not before:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.generation += 1
        self.wake()

    def open_gate(self) -> None:
        """The client is ready: hold nothing back any more."""
        if not self.gate.is_open:
            self.gate.is_open = True
            self.wake()

    # -- what readers have done for all --------------------------------------------------------------------

    def answer(self) -> None:
        """A reader has told the history: put out the answer, unless one was faster."""
        if self.state is SubscriptionState.HISTORY:
            assert self.start is not None, "who is attached has a start"
            self.state = step(self.state, Signal.TOLD)
            if self.start.answer is not None:
                self.start.answer()
            self.state = step(self.state, Signal.ANSWERED)
            if self._held is not None:
                self._held(self)

    def refuse(self, error: TurnwireError) -> bool:
        """The history could not be told. If its answer is still awaited, it is refused, and the client leaves."""
        if self.state not in UNANSWERED or self.start is None or self.start.refuse is None:
            return False
        self.start.refuse(error)
        return True

    def greet(self) -> Sequence[Raw]:
        """A reader is behind the gate: the updates that say what is now, unless one was faster."""
        if self.state is not SubscriptionState.GATE:
            return ()
        assert self.start is not None, "who is attached has a start"
        self.state = step(self.state, Signal.GREETED)
        return self.start.greeting

    def delivered(self, offset: int, position: int) -> None:
        """A reader was given everything up to this event, and all queued frames before this one."""
        self.cursor = max(self.cursor, offset)
        if self._behind:
            self._act_behind(self.cursor)
        if self._behind_queue is not None and position >= self._last_queued:
            act, self._behind_queue = self._behind_queue, None
            act()

    # -- frames that are in no log -------------------------------------------------------------------------

    def put(self, frame: bytes, after: int) -> None:
        """A frame that is in no log, behind what the log has up to `after`."""
        self.queue.put(frame, after)
        self.wake()

    def call_behind_queue(self, act: Callable[[], object]) -> None:
        """Call `act` once a reader was given all queued frames that there are now."""
        self._behind_queue, self._last_queued = act, self.queue.end

    def behind(self, after: int, act: Callable[[], None]) -> None:
        """Call `act` once a reader was given all events up to this one; at once while none is given any."""
        if not self.readers or self.state is not SubscriptionState.LIVE or self.cursor >= after:
            act()
        else:
            self._behind.append((after, act))

    @property
    def next_behind(self) -> int | None:
        """The event that the first thing to do waits for; none if there is nothing."""
        return min((after for after, _ in self._behind), default=None)

    def _act_behind(self, offset: int | None = None) -> None:
        """Do what waits behind events up to this one, or all of it."""
        due = [each for each in self._behind if offset is None or each[0] <= offset]
        self._behind = [each for each in self._behind if each not in due]
        for _, act in due:
            act()

    def agent_started(self) -> None:
        """An agent has taken the session."""
        if self.lending is not None:
            self.lending.set()

    def stop(self) -> None:
        """Nothing is done for it any more."""
        for each in (self.carrier, self.lending):
            if each is not None:
                each.cancel()
        self.lending = None

    # -- readers -------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to look at, for all readers."""
        for each in self._wakes:
            each.set()

    def add_reader(self, wake: Woken, *, is_stream: bool) -> None:
        """A reader comes."""
        self._wakes.append(wake)
        self.readers += 1
        self.streams += is_stream
        self.wake()
        self._tell_change()

    def remove_reader(self, wake: Woken, *, is_stream: bool) -> None:
        """A reader goes."""
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
