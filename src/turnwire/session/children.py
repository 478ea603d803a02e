"""Child sessions: their updates, their requests, and their cancellation.

An update of a child belongs to the running turn, or to no turn. It is never late, because a child may outlive the
turn in which it began, and no state of a child begins or ends a turn of its session: only the session's states do.
A child's requests are resolved when the child becomes idle, when the turn in which they were sent is cancelled, and
when the agent is gone.
"""

from __future__ import annotations

from turnwire.errors import ChildRestricted, NotFound
from turnwire.ids import PromptId
from turnwire.session import events as ev
from turnwire.session.child_names import ANNOUNCES, NAMING, child_id, ids_in, read_announcement
from turnwire.session.draft import Draft
from turnwire.session.effects import CancelChildWork
from turnwire.session.inputs import AgentUpdate, CancelChild
from turnwire.session.permissions import resolve_of_child
from turnwire.session.state import ChildState, SessionState
from turnwire.session.turn import step
from turnwire.wire.schema.update import STATES, TOOL_CALLS

_REMEMBERED = STATES | TOOL_CALLS
"""Kinds of child updates that change the state."""


def said(draft: Draft, input: AgentUpdate, agent_id: str, prompt_id: PromptId | None) -> None:
    """Record an update of a child in the running turn `prompt_id`; `None` if no turn runs."""
    before = draft.state
    names, child = names_in(before, input), before.children.get(agent_id)
    if child is None:
        # The child was evicted by newer ones. It gets a new id from here on.
        speaker = child_id(before.session_id, before.child_count + 1 + len(names))
        names = {**names, agent_id: speaker}
    else:
        speaker = child.child_id
    event = ev.SessionUpdated(
        at=input.at,
        kind=input.peek.kind,
        update=input.update,
        prompt_id=prompt_id,
        beside=input.beside,
        child=speaker,
        names=names,
    )
    if names or input.peek.kind in _REMEMBERED:
        draft.record(event)
        rested(draft, input.at, before)
        return
    # It does not change the state, so only its legality is checked.
    if before.turn is not None and prompt_id is not None:
        step(before.turn.state, ev.SessionUpdated)
    draft.events.append(event)


def names_in(state: SessionState, input: AgentUpdate) -> dict[str, str]:
    """Return our ids of the sessions that an update names, with a new id for an unknown announced child."""
    if input.peek.kind not in NAMING or (input.peek.kind in STATES and input.peek.background is None):
        return {}
    names: dict[str, str] = {}
    for agent_id in ids_in(input.peek.kind, input.update):
        known = state.children.get(agent_id)
        if state.agent is not None and agent_id == state.agent.agent_session_id:
            names[agent_id] = state.session_id
        elif known is not None:
            names[agent_id] = known.child_id
        elif input.peek.kind == ANNOUNCES and agent_id == read_announcement(input.update).session_id:
            names[agent_id] = child_id(state.session_id, state.child_count + 1)
    return names


def rested(draft: Draft, at: int, before: SessionState) -> None:
    """Withdraw the requests of children that have become idle."""
    was_busy = {each.child_id for each in before.children.values() if each.is_busy}
    for each in draft.state.children.values():
        if each.state is ChildState.IDLE and each.child_id in was_busy:
            resolve_of_child(draft, at, ev.PermissionEnd.WITHDRAWN, each.child_id)


def cancel(draft: Draft, input: CancelChild) -> None:
    """Cancel a child for a client. Raises `NotFound`, `ChildRestricted`. An idle child is not cancelled."""
    known = draft.state.children.items()
    agent_id, child = next(((name, each) for name, each in known if each.child_id == input.child), ("", None))
    if child is None:
        raise NotFound("the session has no such child, or its agent does not know it any more")
    if not child.can_cancel:
        raise ChildRestricted("the agent does not let this child be cancelled by itself; cancel the session's turn")
    if draft.state.agent is None or child.state is ChildState.IDLE:
        return
    draft.record(
        ev.ChildCancelAsked(at=input.at, child=child.child_id, author=input.author, client_id=input.client_id)
    )
    resolve_of_child(draft, input.at, ev.PermissionEnd.CANCELLED, child.child_id)
    draft.add_effect(CancelChildWork(agent_id))
