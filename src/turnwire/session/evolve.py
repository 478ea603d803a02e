"""Fold a state and one event to the next state. Live operation, recovery and hydration share this fold.

It returns a new state and never changes the old one. It makes no decisions: it rejects an event that the turn's
table does not allow, and otherwise only records it.

The most frequent event, a text chunk of the running turn, changes nothing; that path is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import UNSET, DecodeError, Raw, Struct
from msgspec.json import decode
from msgspec.structs import replace

from turnwire.errors import LocalProtocolError
from turnwire.ids import ChildId, PromptId
from turnwire.limits import (
    IDEMPOTENCY_KEYS,
    REMEMBERED_ANSWERS,
    REMEMBERED_CHILDREN,
    REMEMBERED_CLIENTS,
    REMEMBERED_TOOLS,
)
from turnwire.session import background
from turnwire.session import events as ev
from turnwire.session.child_names import ANNOUNCES, number_of, read_announcement, read_state
from turnwire.session.choices import CHANGING, MODE, MODEL, Choices, changed_by
from turnwire.session.content import content_types
from turnwire.session.state import (
    Agent,
    Child,
    ChildState,
    Ended,
    Key,
    PermissionRequest,
    Phase,
    Resolved,
    SessionState,
    Setup,
    Turn,
    echoed,
    find_turn,
    with_turn,
)
from turnwire.session.turn import ACTIVE, TurnState, step
from turnwire.wire.peek import peek_update
from turnwire.wire.schema.update import ABOUT_TOOL_CALLS, FINAL_TOOL_STATUS, MARKERS, STATES, TOOL_CALLS


def evolve(state: SessionState, event: ev.AnyEvent) -> SessionState:
    """Return the state after `event`. Raises `LocalProtocolError`, changing nothing, if the event is not legal."""
    return _FOLDS[type(event)](state, event)


def fold(events: Iterable[ev.AnyEvent], state: SessionState) -> SessionState:
    """Apply `evolve` to each event."""
    for event in events:
        state = evolve(state, event)
    return state


def _stepped(state: SessionState, prompt_id: PromptId, kind: type[ev.Event]) -> Turn:
    """Return the turn after an event of `kind`, by the table."""
    turn = find_turn(state, prompt_id)
    if turn is None:
        _begun(state, prompt_id, kind)
        raise LocalProtocolError(f"{kind.__name__!r} names a turn that is not open", prompt_id=prompt_id)
    return replace(turn, state=step(turn.state, kind))


def _begun(state: SessionState, prompt_id: PromptId, kind: type[ev.Event]) -> TurnState:
    """Return the state of a turn that is not open after an event of `kind`. A remembered turn cannot begin
    twice.
    """
    ended = state.last is not None and state.last.prompt_id == prompt_id
    return step(TurnState.ENDED if ended else TurnState.NEW, kind)


# -- the session ---------------------------------------------------------------------------------------------


def _session_created(state: SessionState, event: ev.SessionCreated) -> SessionState:
    if state.phase is not Phase.NEW:
        raise LocalProtocolError("a session is created once", session_id=event.session_id)
    return replace(
        state,
        phase=Phase.OPEN,
        session_id=event.session_id,
        cwd=event.cwd,
        setup=_setup(event),
        agent_name=event.agent_name,
        context=event.context,
    )


def _setup_changed(state: SessionState, event: ev.SetupChanged) -> SessionState:
    return replace(state, setup=_setup(event))


def _setup(event: ev.SessionCreated | ev.SetupChanged) -> Setup:
    return Setup(event.mcp_servers, event.additional_directories, event.meta, event.extra)


def _session_closed(state: SessionState, event: ev.SessionClosed) -> SessionState:
    if state.unsettled:
        raise LocalProtocolError("a session closes after its turns have ended", reason=event.reason)
    state = replace(state, phase=Phase.CLOSED, clients={})
    return _without_agent(state)


def _client_attached(state: SessionState, event: ev.ClientAttached) -> SessionState:
    others = {each: role for each, role in state.clients.items() if each != event.client_id}
    if len(others) >= REMEMBERED_CLIENTS:
        others.pop(next(iter(others)))
    return replace(state, clients={**others, event.client_id: event.role})


def _client_detached(state: SessionState, event: ev.ClientDetached) -> SessionState:
    return replace(state, clients={each: role for each, role in state.clients.items() if each != event.client_id})


# -- choices of users ----------------------------------------------------------------------------------------


def _mode_changed(state: SessionState, event: ev.ModeChanged) -> SessionState:
    # If it was set by an option, it is stored as that option's value.
    return state if event.config_id is not None else _chosen(state, MODE, replace(state.choices, mode=event.mode))


def _model_switched(state: SessionState, event: ev.ModelSwitched) -> SessionState:
    if event.config_id is not None:
        return state
    return _chosen(state, MODEL, replace(state.choices, model=event.model_id))


def _option_set(state: SessionState, event: ev.OptionSet) -> SessionState:
    options = {**state.choices.options, event.config_id: event.value}
    return _chosen(state, event.config_id, replace(state.choices, options=options))


def _chosen(state: SessionState, name: str, choices: Choices) -> SessionState:
    return replace(state, choices=choices, lost=tuple(each for each in state.lost if each != name))


def _choices_lost(state: SessionState, event: ev.ChoicesLost) -> SessionState:
    return replace(state, lost=tuple(each.name for each in event.lost))


# -- the agent -----------------------------------------------------------------------------------------------


def _agent_started(state: SessionState, event: ev.AgentStarted) -> SessionState:
    accepts = content_types(event.capabilities, event.protocol_version)
    agent = Agent(
        event.agent_session_id,
        event.protocol_version,
        event.turn_end,
        event.steering,
        accepts,
        how=event.how,
        refused=tuple(f"{each.how}: {_message(each.agent_error)}" for each in event.refused or ()),
    )
    came_back = event.how in {"load", "resume"} and event.agent_session_id == state.known_as
    return replace(
        state,
        agent=agent,
        children=state.children if came_back else {},
        known_as=event.agent_session_id,
        turn_end=event.turn_end,
        agent_version=event.protocol_version,
    )


class _Error(Struct):
    message: str = ""


def _message(error: Raw) -> str:
    try:
        return decode(error, type=_Error).message or "no reason was given"
    except DecodeError:
        return "no reason was given"


def _agent_exited(state: SessionState, event: ev.AgentExited) -> SessionState:
    return _without_agent(state)


def _without_agent(state: SessionState) -> SessionState:
    """Remove the agent. The states of its children are unknown from here on."""
    if state.running_children:
        children = {name: replace(each, state=ChildState.UNKNOWN) for name, each in state.children.items()}
        state = replace(state, children=children)
    return replace(state, agent=None)


def _session_updated(state: SessionState, event: ev.SessionUpdated) -> SessionState:
    turn = state.turn
    if event.prompt_id is not None:
        if turn is None or turn.prompt_id != event.prompt_id:
            turn = _stepped(state, event.prompt_id, ev.SessionUpdated)
        else:
            step(turn.state, ev.SessionUpdated)
    if event.names:
        state = _remember_children(state, event)
    return _remember(state, turn, event) if event.child is None else _remember_child_state(state, event)


def _remember(state: SessionState, turn: Turn | None, event: ev.SessionUpdated) -> SessionState:
    kind = event.kind
    if state.work and kind in ABOUT_TOOL_CALLS:
        state = _hear_of_work(state, event)
    if kind in CHANGING:
        return _remember_change(state, event)
    if kind in TOOL_CALLS:
        return _remember_tool(state, event)
    if kind in STATES:
        return _remember_agent_state(state, event)
    if turn is None or event.prompt_id is None:
        return state
    if event.echo:
        return _remember_echo(state, event)
    if kind in MARKERS and state.agent is not None and state.agent.turn_end is ev.TurnEnd.MARKER:
        return with_turn(state, replace(turn, marked=peek_update(event.update).stop_reason or ""))
    return state


def _remember_change(state: SessionState, event: ev.SessionUpdated) -> SessionState:
    """Record a change of the agent's settings. Before its first prompt they are its defaults, not a choice (C1)."""
    if not state.choices or state.agent is None or not state.agent.prompted:
        return state
    return replace(state, choices=changed_by(state.choices, event.update))


def _remember_tool(state: SessionState, event: ev.SessionUpdated) -> SessionState:
    if state.turn is None or event.prompt_id is None:
        return state
    seen = peek_update(event.update)
    tool_call_id, tools = seen.tool_call_id, state.turn.tools
    if tool_call_id is None:
        return state
    if tool_call_id not in tools and len(tools) >= REMEMBERED_TOOLS:
        unfinished = [each for each in tools.items() if each[1] not in FINAL_TOOL_STATUS]
        tools = dict(unfinished[-REMEMBERED_TOOLS + 1 :])
    status = seen.status or tools.get(tool_call_id, "pending")
    if tools.get(tool_call_id) == status:
        return state
    return with_turn(state, replace(state.turn, tools={**tools, tool_call_id: status}))


def _remember_echo(state: SessionState, event: ev.SessionUpdated) -> SessionState:
    message_id = peek_update(event.update).message_id
    prompt = echoed(state, message_id)
    if not state.echoes:
        state = replace(state, echoes=True)
    return state if prompt is None else with_turn(state, replace(prompt, echo_id=message_id or ""))


def _remember_agent_state(state: SessionState, event: ev.SessionUpdated) -> SessionState:
    seen, agent = peek_update(event.update), state.agent
    if agent is None:
        return state
    listed = None if seen.background is None else background.read_list(seen.background)
    if listed is not None:
        agent = replace(agent, work=listed, lists_work=True)
    if seen.state in {"running", "requires_action", "idle"}:
        agent = replace(agent, busy=seen.state != "idle")
    return replace(state, agent=agent)


def _hear_of_work(state: SessionState, event: ev.SessionUpdated) -> SessionState:
    seen, agent = peek_update(event.update), state.agent
    assert agent is not None, "work in the background is an agent's"
    is_over = seen.status in FINAL_TOOL_STATUS
    work = background.heard(agent.work, seen.tool_call_id, event.at, is_over=is_over)
    return state if work is agent.work else replace(state, agent=replace(agent, work=work))


def _remember_children(state: SessionState, event: ev.SessionUpdated) -> SessionState:
    """Record children that are named for the first time, and the state in an announcement."""
    for agent_id, name in event.names.items():
        known = state.children.get(agent_id)
        if name != state.session_id and (known is None or known.child_id != name):
            children = _with_room(state.children) | {agent_id: Child(ChildId(name))}
            state = replace(state, children=children, child_count=max(state.child_count, number_of(name)))
    if event.kind != ANNOUNCES or state.agent is None:
        return state
    said = read_announcement(event.update)
    child = state.children.get(said.session_id or "")
    if child is None:
        return state
    after = replace(child, state=said.state_after(child.state), can_cancel=said.can_cancel_after(child.can_cancel))
    return replace(state, children={**state.children, said.session_id or "": after}) if after != child else state


def _with_room(children: dict[str, Child]) -> dict[str, Child]:
    """Return the children with room for one more; an idle child is evicted first."""
    if len(children) < REMEMBERED_CHILDREN:
        return children
    out = next((each for each in children if not children[each].is_busy), next(iter(children)))
    return {name: each for name, each in children.items() if name != out}


def _remember_child_state(state: SessionState, event: ev.SessionUpdated) -> SessionState:
    """Record a child's state and open calls, on which decisions depend. Its updates never belong to the session's
    turn.
    """
    is_state = event.kind in STATES and state.agent is not None
    if not is_state and event.kind not in TOOL_CALLS:
        return state
    agent_id = next((name for name, each in state.children.items() if each.child_id == event.child), None)
    if agent_id is None:
        return state
    child, seen = state.children[agent_id], peek_update(event.update)
    if is_state:
        child = replace(child, state=read_state(seen.state))
    elif seen.tool_call_id is not None:
        others = tuple(each for each in child.tools if each != seen.tool_call_id)
        is_final = seen.status in FINAL_TOOL_STATUS
        child = replace(child, tools=others if is_final else (*others, seen.tool_call_id)[-REMEMBERED_TOOLS:])
    return replace(state, children={**state.children, agent_id: child})


# -- the prompt ----------------------------------------------------------------------------------------------


def _prompt_accepted(state: SessionState, event: ev.PromptAccepted) -> SessionState:
    if find_turn(state, event.prompt_id) is not None:
        raise LocalProtocolError("a prompt is accepted once", prompt_id=event.prompt_id)
    turn = Turn(
        event.prompt_id,
        _begun(state, event.prompt_id, ev.PromptAccepted),
        prompt_request_id=event.prompt_request_id,
        meta=event.meta,
        author=event.author,
        client_id=event.client_id,
        deadline_at=event.deadline_at,
        content=event.content,
    )
    keys = state.keys
    if event.key is not None:
        keys = {**keys, event.key: Key(event.prompt_id, event.digest, event.after_offset)}
        if len(keys) > IDEMPOTENCY_KEYS:
            keys.pop(next(iter(keys)))
    return replace(state, queue=(*state.queue, turn), keys=keys)


def _prompt_queued(state: SessionState, event: ev.PromptQueued) -> SessionState:
    turn = _stepped(state, event.prompt_id, ev.PromptQueued)
    turn = replace(turn, content=event.content, waited=True, steering=event.steering)
    return _moved(with_turn(state, turn), turn, event.position)


def _prompt_updated(state: SessionState, event: ev.PromptUpdated) -> SessionState:
    turn = _stepped(state, event.prompt_id, ev.PromptUpdated)
    if event.content is not UNSET:
        turn = replace(turn, content=event.content)
    state = with_turn(state, turn)
    return state if event.position is None else _moved(state, turn, event.position)


def _moved(state: SessionState, turn: Turn, position: int) -> SessionState:
    others = tuple(each for each in state.queue if each.prompt_id != turn.prompt_id)
    return replace(state, queue=(*others[:position], turn, *others[position:]))


def _session_archived(state: SessionState, event: ev.SessionArchived) -> SessionState:
    return replace(state, archived=True)


def _session_unarchived(state: SessionState, event: ev.SessionUnarchived) -> SessionState:
    return replace(state, archived=False)


def _queue_held(state: SessionState, event: ev.QueueHeld) -> SessionState:
    return replace(state, held=event.reason)


def _queue_released(state: SessionState, event: ev.QueueReleased) -> SessionState:
    # A user who releases the queue without a choice accepts the agent's settings.
    return replace(state, held=None, lost=(), choices=state.choices.without(state.lost))


def _turn_event(state: SessionState, event: ev.TurnEvent) -> SessionState:
    """Apply an event that only steps its turn."""
    return with_turn(state, _stepped(state, event.prompt_id, type(event)))


def _steer_declined(state: SessionState, event: ev.SteerDeclined) -> SessionState:
    return with_turn(state, replace(_stepped(state, event.prompt_id, ev.SteerDeclined), steering=False))


def _user_message(state: SessionState, event: ev.UserMessage) -> SessionState:
    turn = _stepped(state, event.prompt_id, ev.UserMessage)
    unsent = event.content if turn.state is TurnState.QUEUED else turn.unsent
    return with_turn(state, replace(turn, content=UNSET, unsent=unsent))


def _prompt_answered(state: SessionState, event: ev.PromptAnswered) -> SessionState:
    turn = _stepped(state, event.prompt_id, ev.PromptAnswered)
    turn = replace(turn, answered=event.stop_reason or "", usage=event.usage, beside=event.beside)
    return _ends_by_states(with_turn(state, turn))


def _prompt_inserted(state: SessionState, event: ev.PromptInserted) -> SessionState:
    turn = _stepped(state, event.prompt_id, ev.PromptInserted)
    turn = replace(turn, echo_id=event.agent_message_id, answered=turn.answered or "")
    return _ends_by_states(with_turn(state, turn))


def _ends_by_states(state: SessionState) -> SessionState:
    """Record that the agent ends its turns by states: its answer was not an end, in contrast to its handshake."""
    agent = state.agent
    if agent is None or agent.turn_end is not ev.TurnEnd.RESPONSE:
        return state
    return replace(state, agent=replace(agent, turn_end=ev.TurnEnd.IDLE), turn_end=ev.TurnEnd.IDLE)


# -- the turn ------------------------------------------------------------------------------------------------


def _turn_started(state: SessionState, event: ev.TurnStarted) -> SessionState:
    if state.turn is not None:
        raise LocalProtocolError("a turn starts when no other is active", prompt_id=event.prompt_id)
    if event.origin is ev.Origin.AGENT:
        if find_turn(state, event.prompt_id) is not None:
            raise LocalProtocolError("an agent begins a turn of its own", prompt_id=event.prompt_id)
        running = _begun(state, event.prompt_id, ev.TurnStarted)
        return with_turn(state, Turn(event.prompt_id, running, ev.Origin.AGENT))
    return with_turn(state, _stepped(state, event.prompt_id, ev.TurnStarted))


def _permission_requested(state: SessionState, event: ev.PermissionRequested) -> SessionState:
    request = PermissionRequest(
        event.request_id, event.agent_request_id, event.method, event.options, event.prompt_id, event.child
    )
    state = replace(state, permissions=(*state.permissions, request))
    if event.prompt_id is None:
        return state
    return with_turn(state, _stepped(state, event.prompt_id, ev.PermissionRequested))


def _permission_resolved(state: SessionState, event: ev.PermissionResolved) -> SessionState:
    left = tuple(each for each in state.permissions if each.request_id != event.request_id)
    if len(left) == len(state.permissions):
        raise LocalProtocolError("a permission request is resolved once", request_id=event.request_id)
    asked = next(each for each in state.permissions if each.request_id == event.request_id)
    found = Resolved(event.request_id, event.answer, event.client_id, asked.agent_request_id)
    resolved = (*state.resolved, found)
    state = replace(state, permissions=left, resolved=resolved[-REMEMBERED_ANSWERS:])
    if event.prompt_id is None:
        return state
    return with_turn(state, _stepped(state, event.prompt_id, ev.PermissionResolved))


def _unchanged(state: SessionState, event: ev.AnyEvent) -> SessionState:
    return state


def _cancel_asked(state: SessionState, event: ev.CancelAsked) -> SessionState:
    turn = _stepped(state, event.prompt_id, ev.CancelAsked)
    return with_turn(state, replace(turn, cancelled_by=event.author or event.client_id or ""))


def _prompt_sent(state: SessionState, event: ev.PromptSent) -> SessionState:
    turn = _stepped(state, event.prompt_id, ev.PromptSent)
    state = with_turn(state, replace(turn, sent=True, unsent=UNSET))
    if state.agent is not None and not state.agent.prompted:
        state = replace(state, agent=replace(state.agent, prompted=True))
    if state.last is not None and state.last.settled:
        return replace(state, last=replace(state.last, settled=False))
    return state


def _turn_ended(state: SessionState, event: ev.TurnCompleted | ev.TurnFailed) -> SessionState:
    turn = find_turn(state, event.prompt_id)
    _stepped(state, event.prompt_id, type(event))
    if any(each.prompt_id == event.prompt_id and each.child is None for each in state.permissions):
        raise LocalProtocolError("a turn ends after its permission requests", prompt_id=event.prompt_id)
    state = replace(state, permissions=tuple(_freed(each, event.prompt_id) for each in state.permissions))
    if turn is not None and turn.state in ACTIVE:
        reason = event.stop_reason if isinstance(event, ev.TurnCompleted) else None
        settled = isinstance(event, ev.TurnCompleted) and event.ending is ev.Ending.SETTLED
        last = Ended(turn.prompt_id, reason, frozenset(turn.tools), settled)
        return replace(state, turn=None, last=last, agent=_with_left_open(state.agent, turn, event.at))
    return replace(
        state,
        queue=tuple(each for each in state.queue if each.prompt_id != event.prompt_id),
        offered=tuple(each for each in state.offered if each.prompt_id != event.prompt_id),
        joined=tuple(each for each in state.joined if each.prompt_id != event.prompt_id),
    )


def _with_left_open(agent: Agent | None, turn: Turn, at: int) -> Agent | None:
    if agent is None or agent.lists_work or not turn.tools:
        return agent
    return replace(agent, work=background.left_open(agent.work, turn.tools, at))


def _freed(request: PermissionRequest, ended: PromptId) -> PermissionRequest:
    """Detach a child's request from an ended turn: the child may continue, and its requests then belong to
    no turn.
    """
    return replace(request, prompt_id=None) if request.prompt_id == ended else request


_FOLDS: dict[type[ev.Event], Callable[[SessionState, Any], SessionState]] = {
    ev.SessionCreated: _session_created,
    ev.SessionRenamed: _unchanged,
    ev.SessionArchived: _session_archived,
    ev.SessionUnarchived: _session_unarchived,
    ev.SessionClosed: _session_closed,
    ev.SetupChanged: _setup_changed,
    ev.ModeChanged: _mode_changed,
    ev.ModelSwitched: _model_switched,
    ev.OptionSet: _option_set,
    ev.ChoicesRestored: _unchanged,
    ev.ChoicesLost: _choices_lost,
    ev.QueueHeld: _queue_held,
    ev.QueueReleased: _queue_released,
    ev.ClientAttached: _client_attached,
    ev.ClientDetached: _client_detached,
    ev.AgentStarted: _agent_started,
    ev.AgentExited: _agent_exited,
    ev.HistoryCompared: _unchanged,
    ev.SessionUpdated: _session_updated,
    ev.PromptAccepted: _prompt_accepted,
    ev.PromptQueued: _prompt_queued,
    ev.PromptOffered: _turn_event,
    ev.PromptUpdated: _prompt_updated,
    ev.PromptDequeued: _turn_event,
    ev.PromptFinished: _turn_event,
    ev.UserMessage: _user_message,
    ev.PromptSent: _prompt_sent,
    ev.PromptAnswered: _prompt_answered,
    ev.PromptInserted: _prompt_inserted,
    ev.PromptInjected: _turn_event,
    ev.SteerDeclined: _steer_declined,
    ev.TurnStarted: _turn_started,
    ev.TurnBlocked: _turn_event,
    ev.TurnUnblocked: _turn_event,
    ev.PermissionRequested: _permission_requested,
    ev.PermissionResolved: _permission_resolved,
    ev.PermissionAnsweredLate: _unchanged,
    ev.CancelAsked: _cancel_asked,
    ev.CancelEscalated: _turn_event,
    ev.ChildCancelAsked: _unchanged,
    ev.TurnCompleted: _turn_ended,
    ev.TurnFailed: _turn_ended,
}
"""One fold per kind of event; a test checks that it is complete."""
