"""Turns as REST shows them, for the routes that show the same.

Takes a session's view; gives the structs that answers are made of. `state` has the words of the contract that older
clients know; `detailState` has ours.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.ending import CANCELLED
from turnwire.core.events import Origin
from turnwire.core.turn import TurnState
from turnwire.core.view import View
from turnwire.core.view.turns import TurnError, TurnRecord
from turnwire.errors import (
    LimitExceeded,
    LogFull,
    LogUnavailable,
    PromptNotFound,
    SessionClosed,
    SessionNotFound,
    TurnwireError,
    UnknownClient,
)
from turnwire.ids import ClientId, Epoch, PromptId, RequestId, SessionId

READS: tuple[type[TurnwireError], ...] = (SessionNotFound, LogUnavailable)
"""What every route that reads a session may be refused with."""
ACTS: tuple[type[TurnwireError], ...] = (*READS, SessionClosed, UnknownClient, LimitExceeded, LogFull)
"""What every route that acts on a session may be refused with."""

CompatState: TypeAlias = Literal["idle", "queued", "running", "completed", "cancelled", "error"]
DetailState: TypeAlias = Literal[
    "queued", "running", "requires_action", "cancelling", "completed", "cancelled", "error"
]

_OPEN: dict[TurnState, DetailState] = {
    TurnState.QUEUED: "queued",
    TurnState.RUNNING: "running",
    TurnState.REQUIRES_ACTION: "requires_action",
    TurnState.CANCELLING: "cancelling",
    TurnState.JOINED: "running",
}
_COMPAT: dict[DetailState, CompatState] = {
    "queued": "queued",
    "running": "running",
    "requires_action": "running",
    "cancelling": "running",
    "completed": "completed",
    "cancelled": "cancelled",
    "error": "error",
}


class PromptReceipt(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An accepted prompt. A reader who starts after `lastEventId` sees all of its turn."""

    prompt_id: PromptId
    last_event_id: int
    event_epoch: Epoch
    queued: bool = False
    """It waits for its turn."""
    repeated: bool = False
    """It was accepted before, with the same idempotency key."""


class TurnTimes(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """When a turn was where, and how it ended."""

    queued_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    stop_reason: str | None = None
    error: TurnError | None = None


class PromptStatus(TurnTimes, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where one prompt stands."""

    session_id: SessionId
    prompt_id: PromptId
    state: DetailState
    last_event_id: int
    """The newest event that this answer knows of."""
    suspected_complete: bool = False
    """The agent seems to be done without having said so; a suspicion, not an end."""
    reasons: list[str] = []
    """What the turn waits for, or what speaks for the suspicion."""


class TurnStatus(TurnTimes, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A turn. Without one, `state` is `idle` and there is no prompt."""

    session_id: SessionId
    prompt_id: PromptId | None
    state: CompatState
    detail_state: DetailState | None = None
    prompt_text: str | None = None
    result_text: str | None = None
    """The agent's last message in it."""
    usage: Raw | UnsetType = UNSET
    origin: Origin | None = None
    """Who began it."""
    author: str | None = None
    originator_client_id: ClientId | None = None
    prompt_request_id: RequestId | None = None
    cancelled_by: str | None = None
    joined_into: PromptId | None = None
    """The running turn that the agent took it into."""


def find_record(view: View, prompt_id: str) -> TurnRecord:
    """Raises `PromptNotFound`."""
    record = view.turns.get(PromptId(prompt_id))
    if record is None:
        raise PromptNotFound("the session has no prompt with this id; GET …/turns lists them all")
    return record


def detail_state(record: TurnRecord) -> DetailState:
    """Where the turn stands, in our words."""
    if record.outcome is None:
        return _OPEN[record.state]
    if record.outcome.error is not None:
        return "error"
    return "cancelled" if record.outcome.stop_reason == CANCELLED else "completed"


def turn_status(session_id: SessionId, view: View, record: TurnRecord) -> TurnStatus:
    """One turn with its words."""
    detail, outcome = detail_state(record), record.outcome
    return TurnStatus(
        session_id=session_id,
        prompt_id=record.prompt_id,
        state=_COMPAT[detail],
        detail_state=detail,
        queued_at=queued_at(record),
        started_at=record.started_at,
        ended_at=record.ended_at,
        stop_reason=None if outcome is None else outcome.stop_reason,
        error=None if outcome is None else outcome.error,
        prompt_text=view.user_text(record.prompt_id) or "",
        result_text=view.result_text(record.prompt_id),
        usage=UNSET if outcome is None else outcome.usage,
        origin=record.origin,
        author=record.author,
        originator_client_id=record.client_id,
        prompt_request_id=record.prompt_request_id,
        cancelled_by=record.cancelled_by,
        joined_into=record.joined_into,
    )


def idle_status(session_id: SessionId) -> TurnStatus:
    """No turn."""
    return TurnStatus(session_id=session_id, prompt_id=None, state="idle")


def queued_at(record: TurnRecord) -> int | None:
    """When the session took the prompt; a turn that the agent began was never anywhere before its start."""
    return record.accepted_at if record.accepted_at is not None else record.started_at
