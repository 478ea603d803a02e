"""Turns in REST: all turns of a session, the current one, or the turn of one prompt.

`state` has the values that older clients know; `detailState` has the daemon's own. Other routes about prompts use
the same schemas.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

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
from turnwire.projections.view import View
from turnwire.projections.view.turns import TurnError, TurnRecord
from turnwire.server.access.tokens import Role
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.session.ending import CANCELLED
from turnwire.session.events import Origin
from turnwire.session.turn import TurnState

READS: tuple[type[TurnwireError], ...] = (SessionNotFound, LogUnavailable)
"""Errors of every route that reads a session."""
ACTS: tuple[type[TurnwireError], ...] = (*READS, SessionClosed, UnknownClient, LimitExceeded, LogFull)
"""Errors of every route that acts on a session."""

AT_ONCE = 10
"""Turns whose text is assembled in one step, before other tasks run: many turns are long and on many pages."""

CompatState: TypeAlias = Literal["idle", "queued", "running", "completed", "cancelled", "error"]
DetailState: TypeAlias = Literal[
    "queued", "running", "requires_action", "cancelling", "completed", "cancelled", "error"
]

_OPEN: dict[TurnState, DetailState] = {
    TurnState.QUEUED: "queued",
    TurnState.OFFERED: "queued",
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
    """An accepted prompt. A reader that starts after `lastEventId` sees the whole turn."""

    prompt_id: PromptId
    last_event_id: int
    event_epoch: Epoch
    queued: bool = False
    """True if the prompt waits for its turn."""
    repeated: bool = False
    """True if the prompt was accepted before with the same idempotency key."""
    outcome: Literal["injected", "queued", "started"] | None = None
    """Outcome of steering: added to the running turn (`injected`), waiting as the next turn (`queued`), or begun as
    a separate turn (`started`).
    """
    reason: str | None = None
    """Why the prompt was not added to the running turn: `not_offered`, `not_on_v2`, `declined`, `turn_ended`,
    `no_turn`, `not_at_work`, `agent_gone`; or `asked` if the agent has not answered yet.
    """


class TurnTimes(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Times of a turn's states, and its end."""

    queued_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    stop_reason: str | None = None
    error: TurnError | None = None


class PromptStatus(TurnTimes, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The status of one prompt."""

    session_id: SessionId
    prompt_id: PromptId
    state: DetailState
    last_event_id: int
    """The newest event that this answer includes."""
    suspected_complete: bool = False
    """True if the agent seems to be done but has not reported an end. A suspicion only: the turn has not ended."""
    reasons: list[str] = []
    """Reasons why the turn waits, or the evidence for the suspicion."""


class TurnStatus(TurnTimes, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A turn. If there is none, `state` is `idle` and the prompt is absent."""

    session_id: SessionId
    prompt_id: PromptId | None
    state: CompatState
    detail_state: DetailState | None = None
    prompt_text: str | None = None
    result_text: str | None = None
    """The agent's last message in the turn."""
    usage: Raw | UnsetType = UNSET
    origin: Origin | None = None
    """The initiator of the turn."""
    author: str | None = None
    originator_client_id: ClientId | None = None
    prompt_request_id: RequestId | None = None
    cancelled_by: str | None = None
    agent_stop_reason: str | None = None
    """The stop reason that the agent reported for a cancelled turn, if it differs."""
    joined_into: PromptId | None = None
    """The running turn that the agent added the prompt to."""


def find_record(view: View, prompt_id: str) -> TurnRecord:
    """Return the turn's record. Raises `PromptNotFound`."""
    record = view.turn(PromptId(prompt_id))
    if record is None:
        raise no_such_prompt()
    return record


def no_such_prompt() -> PromptNotFound:
    return PromptNotFound("the session has no prompt with this id; GET …/turns lists them all")


def detail_state(record: TurnRecord) -> DetailState:
    """Return the detailed state of a turn."""
    if record.outcome is None:
        return _OPEN[record.state]
    if record.outcome.error is not None:
        return "error"
    return "cancelled" if record.outcome.stop_reason == CANCELLED else "completed"


def turn_status(session_id: SessionId, view: View, record: TurnRecord) -> TurnStatus:
    """Return one turn with its text."""
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
        agent_stop_reason=None if outcome is None else outcome.agent_stop_reason,
        joined_into=record.joined_into,
    )


def idle_status(session_id: SessionId) -> TurnStatus:
    """Return the status without a turn."""
    return TurnStatus(session_id=session_id, prompt_id=None, state="idle")


def queued_at(record: TurnRecord) -> int | None:
    """Return the time at which the session accepted the prompt. A turn that the agent began has only its start."""
    return record.accepted_at if record.accepted_at is not None else record.started_at


class TurnsQuery(Struct, rename="camel"):
    """The requested part of the list."""

    limit: Annotated[int, Meta(ge=1, le=500, description="how many at most")] = 50
    after: Annotated[str, Meta(description="the `nextCursor` of the page before")] | None = None


class TurnList(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Turns in the order of their prompts."""

    turns: list[TurnStatus]
    next_cursor: PromptId | None = None
    """The cursor of the next page; absent on the last page."""


async def list_turns(call: Call) -> Reply:
    query: TurnsQuery = call.query
    node, session_id = call.daemon.node, call.session_id
    records, is_last = await node.look(session_id, lambda view: _page(view, query))
    turns: list[TurnStatus] = []
    for start in range(0, len(records), AT_ONCE):
        few = [each.prompt_id for each in records[start : start + AT_ONCE]]
        turns += await node.look(session_id, lambda view, few=few: [_shown(session_id, each, view) for each in few])
    return Reply(TurnList(turns=turns, next_cursor=None if is_last else records[-1].prompt_id))


def _page(view: View, query: TurnsQuery) -> tuple[list[TurnRecord], bool]:
    """Return the requested turns, and whether they are the last."""
    start = 0
    if query.after is not None:
        place = view.place_of_turn(PromptId(query.after))
        if place is None:
            raise no_such_prompt()
        start = place + 1
    records = view.turns_between(start, start + query.limit)
    return records, start + len(records) >= view.turn_count


def _shown(session_id: SessionId, prompt_id: str, view: View) -> TurnStatus:
    return turn_status(session_id, view, find_record(view, prompt_id))


async def current_turn(call: Call) -> Reply:
    state = (await call.daemon.node.peek(call.session_id)).state
    if state.turn is None and not state.queue:
        return Reply(idle_status(call.session_id))
    first = state.queue[0].prompt_id if state.queue else None
    return Reply(await call.daemon.node.look(call.session_id, partial(_current, call.session_id, first)))


def _current(session_id: SessionId, first: PromptId | None, view: View) -> TurnStatus:
    """Return the running turn, else the next one. The view may already know that this turn has ended."""
    record = view.turns.get(view.active or first or PromptId(""))
    if record is None or record.state is TurnState.ENDED:
        return idle_status(session_id)
    return turn_status(session_id, view, record)


async def one_turn(call: Call) -> Reply:
    prompt_id = call.request.path_params["prompt_id"]
    return Reply(await call.daemon.node.look(call.session_id, partial(_shown, call.session_id, prompt_id)))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/session/{session_id}/turns",
        act=list_turns,
        summary="The session's turns, oldest first",
        role=Role.OBSERVER,
        query=TurnsQuery,
        gives=TurnList,
        refuses=(*READS, PromptNotFound),
        tag="turns",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/turns/current",
        act=current_turn,
        summary="The turn that runs, else the one that is next; `idle` if there is none",
        role=Role.OBSERVER,
        gives=TurnStatus,
        refuses=READS,
        tag="turns",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/turns/{prompt_id}",
        act=one_turn,
        summary="One turn, also after its end",
        role=Role.OBSERVER,
        gives=TurnStatus,
        refuses=(*READS, PromptNotFound),
        tag="turns",
    ),
)
"""The routes of turns."""
