"""Child sessions: what they say, what they ask, and how one of them is cancelled.

What a child says belongs to the turn that runs, or to none. It is never late, because a child may outlive the turn
that it was begun in, and no state of a child begins or ends a turn of its session: that is for the session's own.
What a child has asked is resolved when the child has come to rest, when the turn it was asked in is cancelled, and
when the agent is gone.
"""

from __future__ import annotations

from turnwire.core import events as ev
from turnwire.core.child_names import ANNOUNCES, NAMING, child_id, ids_in, read_announcement
from turnwire.core.draft import Draft
from turnwire.core.effects import CancelChildWork
from turnwire.core.inputs import AgentUpdate, CancelChild
from turnwire.core.permissions import resolve_of_child
from turnwire.core.state import ChildState, SessionState
from turnwire.core.turn import step
from turnwire.errors import ChildNotFound, ChildRestricted
from turnwire.ids import PromptId
from turnwire.wire.schema.update import STATES, TOOL_CALLS

_REMEMBERED = STATES | TOOL_CALLS
"""What a child says that the state remembers."""


def said(draft: Draft, input: AgentUpdate, agent_id: str, prompt_id: PromptId | None) -> None:
    """An update of a child. `prompt_id`: the turn that runs, none if the agent is at none."""
    before = draft.state
    names, child = names_in(before, input), before.children.get(agent_id)
    if child is None:
        # So many came after it that it was forgotten; it is another child from here on.
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
    # It changes nothing in the state, so it is only checked for being legal.
    if before.turn is not None and prompt_id is not None:
        step(before.turn.state, ev.SessionUpdated)
    draft.events.append(event)


def names_in(state: SessionState, input: AgentUpdate) -> dict[str, str]:
    """Our ids of the sessions that an update names; an announced child that is not known gets one."""
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
    """What a child has asked is withdrawn once the child is at nothing any more."""
    was_busy = {each.child_id for each in before.children.values() if each.is_busy}
    for each in draft.state.children.values():
        if each.state is ChildState.IDLE and each.child_id in was_busy:
            resolve_of_child(draft, at, ev.PermissionEnd.WITHDRAWN, each.child_id)


def cancel(draft: Draft, input: CancelChild) -> None:
    """A client wants a child stopped. Raises `ChildNotFound`, `ChildRestricted`; at rest it is left alone."""
    known = draft.state.children.items()
    agent_id, child = next(((name, each) for name, each in known if each.child_id == input.child), ("", None))
    if child is None:
        raise ChildNotFound("the session has no such child, or its agent does not know it any more")
    if not child.can_cancel:
        raise ChildRestricted("the agent does not let this child be cancelled by itself; cancel the session's turn")
    if draft.state.agent is None or child.state is ChildState.IDLE:
        return
    draft.record(
        ev.ChildCancelAsked(at=input.at, child=child.child_id, author=input.author, client_id=input.client_id)
    )
    resolve_of_child(draft, input.at, ev.PermissionEnd.CANCELLED, child.child_id)
    draft.add_effect(CancelChildWork(agent_id))
