"""Where a client stands in a session that it has opened: one enum, and one table of what may follow what.

Pure: a state and a signal give the next state, or `LocalProtocolError`. Nothing else in `server.acp` decides what
comes behind what.

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

from collections.abc import Mapping
from enum import StrEnum

from turnwire.errors import LocalProtocolError


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
