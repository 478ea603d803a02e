"""The state machine of a turn: one table of legal transitions.

No other code decides the legality of a turn. `step` maps a turn's state and the kind of the next event to the next
state, or raises `LocalProtocolError`. It reads no payloads, no other turns, no clock and no dialect.

Theory of operation
-------------------
A turn is the work from an accepted prompt, or from an agent that starts by itself, to its end. The difficulty is
that four parties can end it: the agent (in three ways, possibly twice or not at all), a client that cancels, a
person who settles, and a crash. Each of them is an input. `session.decide` turns inputs into events, but only
events that this table allows can reach the log, because `session.evolve` steps the table for every event of a turn,
live and in recovery alike. So whatever the deciding code does, a turn cannot end twice, produce output after its
end, or start before it was accepted: the step raises, and nothing has been stored.

    I1  A turn begins once: with `PromptAccepted`, or with `TurnStarted` if the agent began it.
    I2  Exactly one of `TurnCompleted` and `TurnFailed` ends it. `ENDED` has no way out.
    I3  At most one turn of a session is active (running, requires_action, cancelling). `session.evolve` adds
        this to the table: a `TurnStarted` while another turn is active is rejected.
    I4  A queued prompt can be edited, moved and removed only while it is `QUEUED`.
    I5  A prompt that was injected into a running turn (`JOINED`) has no output: it only ends, with that turn.
    I6  Cancelling is not an end. In `CANCELLING` a turn still produces output, and ends when the agent ends it or
        dies.
    I7  A prompt that was offered to the agent while a turn runs (`OFFERED`) can no longer be edited. It joins that
        turn, becomes a separate turn once that has ended, or is rejected by the agent.
    I8  Updates after the end are not events of the turn; they are session events marked as late.

`scripts/draw_turn.py` draws docs/turn.md from `NEXT`; the table is the diagram's only source.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from turnwire.errors import LocalProtocolError
from turnwire.session.events import (
    CancelAsked,
    CancelEscalated,
    Event,
    PermissionRequested,
    PermissionResolved,
    PromptAccepted,
    PromptAnswered,
    PromptDequeued,
    PromptFinished,
    PromptInjected,
    PromptInserted,
    PromptOffered,
    PromptQueued,
    PromptSent,
    PromptUpdated,
    SessionUpdated,
    SteerDeclined,
    TurnBlocked,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
    TurnUnblocked,
    UserMessage,
)


class TurnState(StrEnum):
    NEW = "new"
    """Not in the log."""
    QUEUED = "queued"
    """Accepted, not started; the wait may be zero."""
    RUNNING = "running"
    REQUIRES_ACTION = "requires_action"
    CANCELLING = "cancelling"
    OFFERED = "offered"
    """The agent has received the prompt and has not placed it; another turn runs."""
    JOINED = "joined"
    ENDED = "ended"


_NEW, _QUEUED, _RUNNING = TurnState.NEW, TurnState.QUEUED, TurnState.RUNNING
_ACTION, _CANCELLING = TurnState.REQUIRES_ACTION, TurnState.CANCELLING
_OFFERED, _JOINED, _ENDED = TurnState.OFFERED, TurnState.JOINED, TurnState.ENDED

NEXT: Mapping[TurnState, Mapping[type[Event], TurnState]] = {
    _NEW: {
        PromptAccepted: _QUEUED,
        TurnStarted: _RUNNING,
    },
    _QUEUED: {
        PromptQueued: _QUEUED,
        PromptUpdated: _QUEUED,
        PromptDequeued: _QUEUED,
        PromptFinished: _QUEUED,
        UserMessage: _QUEUED,
        SteerDeclined: _QUEUED,
        PromptOffered: _OFFERED,
        PromptInjected: _JOINED,
        TurnStarted: _RUNNING,
        TurnCompleted: _ENDED,
        TurnFailed: _ENDED,
    },
    _OFFERED: {
        PromptSent: _OFFERED,
        PromptDequeued: _OFFERED,
        PromptFinished: _OFFERED,
        CancelAsked: _OFFERED,
        PromptInjected: _JOINED,
        TurnStarted: _RUNNING,
        TurnCompleted: _ENDED,
        TurnFailed: _ENDED,
    },
    _RUNNING: {
        PromptSent: _RUNNING,
        PromptAnswered: _RUNNING,
        PromptInserted: _RUNNING,
        UserMessage: _RUNNING,
        PromptFinished: _RUNNING,
        SessionUpdated: _RUNNING,
        PermissionRequested: _RUNNING,
        PermissionResolved: _RUNNING,
        TurnBlocked: _ACTION,
        CancelAsked: _CANCELLING,
        TurnCompleted: _ENDED,
        TurnFailed: _ENDED,
    },
    _ACTION: {
        PromptSent: _ACTION,
        PromptAnswered: _ACTION,
        PromptInserted: _ACTION,
        UserMessage: _ACTION,
        PromptFinished: _ACTION,
        SessionUpdated: _ACTION,
        PermissionRequested: _ACTION,
        PermissionResolved: _ACTION,
        # An agent may report that it is blocked before it sends the request; the request then adds the reason.
        TurnBlocked: _ACTION,
        TurnUnblocked: _RUNNING,
        CancelAsked: _CANCELLING,
        TurnCompleted: _ENDED,
        TurnFailed: _ENDED,
    },
    _CANCELLING: {
        PromptSent: _CANCELLING,
        PromptAnswered: _CANCELLING,
        PromptInserted: _CANCELLING,
        UserMessage: _CANCELLING,
        PromptFinished: _CANCELLING,
        SessionUpdated: _CANCELLING,
        PermissionRequested: _CANCELLING,
        PermissionResolved: _CANCELLING,
        CancelEscalated: _CANCELLING,
        TurnCompleted: _ENDED,
        TurnFailed: _ENDED,
    },
    _JOINED: {
        PromptSent: _JOINED,
        PromptAnswered: _JOINED,
        PromptInserted: _JOINED,
        PromptFinished: _JOINED,
        UserMessage: _JOINED,
        SessionUpdated: _JOINED,
        TurnCompleted: _ENDED,
        TurnFailed: _ENDED,
    },
    _ENDED: {},
}

ACTIVE: frozenset[TurnState] = frozenset({_RUNNING, _ACTION, _CANCELLING})
"""The states in which the agent works on a turn."""

TERMINAL: frozenset[type[Event]] = frozenset({TurnCompleted, TurnFailed})
"""The two terminal events."""


def step(state: TurnState, kind: type[Event]) -> TurnState:
    """Return the state after an event of `kind`. Raises `LocalProtocolError` if the table does not allow it."""
    following = NEXT[state].get(kind)
    if following is None:
        raise LocalProtocolError(
            f"a turn that is {state.value!r} cannot take {kind.__name__!r}",
            state=state.value,
            event=kind.__name__,
        )
    return following
