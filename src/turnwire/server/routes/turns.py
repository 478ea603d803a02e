"""The turns of a session: all of them, the current one, one by its prompt.

Takes a session, also one that is closed; gives each turn with what was asked, what came of it and how it ended, as
the log has it.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct

from turnwire.core.turn import TurnState
from turnwire.core.view import View
from turnwire.core.view.turns import TurnRecord
from turnwire.errors import PromptNotFound
from turnwire.ids import PromptId
from turnwire.server.door.identity import Role
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.turn_shapes import READS, TurnStatus, find_record, idle_status, turn_status


class TurnsQuery(Struct, rename="camel"):
    """Which part of the list."""

    limit: Annotated[int, Meta(ge=1, le=500, description="how many at most")] = 50
    after: Annotated[str, Meta(description="the `nextCursor` of the page before")] | None = None


class TurnList(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Turns in the order in which they came."""

    turns: list[TurnStatus]
    next_cursor: PromptId | None = None
    """Where the next page begins; none if this is the last."""


async def list_turns(call: Call) -> Reply:
    query: TurnsQuery = call.query
    view = await call.daemon.node.view(call.session_id)
    start = 0
    if query.after is not None:
        start = list(view.turns).index(find_record(view, query.after).prompt_id) + 1
    records = list(islice(view.turns.values(), start, start + query.limit))
    is_last = start + len(records) >= len(view.turns)
    turns = [turn_status(call.session_id, view, each) for each in records]
    return Reply(TurnList(turns=turns, next_cursor=None if is_last else records[-1].prompt_id))


async def current_turn(call: Call) -> Reply:
    state = (await call.daemon.node.session(call.session_id)).state
    if state.turn is None and not state.queue:
        return Reply(idle_status(call.session_id))
    view = await call.daemon.node.view(call.session_id)
    record = _current(view, state.queue[0].prompt_id if state.queue else None)
    return Reply(idle_status(call.session_id) if record is None else turn_status(call.session_id, view, record))


def _current(view: View, first: PromptId | None) -> TurnRecord | None:
    """The turn that runs, else the one that is next; the view may know that this one has ended since."""
    record = view.turns.get(view.active or first or PromptId(""))
    return None if record is None or record.state is TurnState.ENDED else record


async def one_turn(call: Call) -> Reply:
    view = await call.daemon.node.view(call.session_id)
    record = find_record(view, call.request.path_params["prompt_id"])
    return Reply(turn_status(call.session_id, view, record))


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
