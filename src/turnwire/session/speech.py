"""The agent's messages: updates, answers to prompts, markers and states, and the rules by which they end a turn.

Every update is recorded once and attributed to the turn it belongs to, to no turn (background) or to a turn that
has ended (late). No update is dropped, and no end is guessed: a turn ends by the signal that its agent's dialect
defines (`TurnEnd`) and by an error answer, and by no other message here.
"""

from __future__ import annotations

from msgspec import UNSET

from turnwire.errors import ContentRefused
from turnwire.ids import PromptId
from turnwire.session import children, insertion
from turnwire.session import events as ev
from turnwire.session.child_names import ANNOUNCES, NAMING
from turnwire.session.choices import CHANGING
from turnwire.session.draft import Draft
from turnwire.session.effects import AwaitAnswer
from turnwire.session.ending import CANCELLED, WITHOUT_A_REASON, LastWord, complete, fail, refuse_offered
from turnwire.session.inputs import (
    AgentAnswered,
    AgentHasPrompt,
    AgentPieces,
    AgentReady,
    AgentRefused,
    AgentReplayed,
    AgentUpdate,
    AnswerOverdue,
)
from turnwire.session.permissions import block
from turnwire.session.state import Agent, Ended, SessionState, Turn, echoed, find_turn
from turnwire.session.turn import TurnState, step
from turnwire.wire.peek import UpdatePeek, beside, peek_update
from turnwire.wire.schema.update import ABOUT_TOOL_CALLS, AGENT_SPEECH, MARKERS, STATES, TOOL_CALLS, USER_MESSAGES

RESPONSE_S = 1.0
"""Time for the response after an agent has marked the end of a turn: only the response has the token usage."""
_WORDS = TOOL_CALLS | AGENT_SPEECH
"""Output of an agent in response to a prompt; the prompt is recorded before it."""
_AT_WORK = frozenset({"running", "requires_action"})
"""States in which a v2 agent works on a turn."""


def started(draft: Draft, input: AgentReady) -> None:
    """Record an agent that serves the session."""
    draft.record(
        ev.AgentStarted(
            at=input.at,
            agent_session_id=input.agent_session_id,
            protocol_version=input.protocol_version,
            turn_end=input.turn_end,
            steering=input.steering,
            how=input.how,
            capabilities=input.capabilities,
            offers=input.offers,
            refused=input.refused or None,
        )
    )
    turn = draft.state.turn
    if turn is not None and turn.content is not UNSET and not draft.state.inserts:
        # The last agent would have shown the position of the message; this one does not.
        insertion.record_message(draft, input.at, turn, turn.content, turn.echo_id)


def update(draft: Draft, input: AgentUpdate) -> None:
    """Handle one `session/update`. The common case, output of the running turn, is the first branch."""
    peek, state = input.peek, draft.state
    kind, turn = peek.kind, state.turn
    if input.child is not None:
        is_at_it = turn is not None and turn.content is UNSET and not _is_unsent(turn, state.last)
        children.said(draft, input, input.child, turn.prompt_id if turn is not None and is_at_it else None)
        return
    if turn is not None and _is_output(turn, state.last, kind):
        # It does not change the state, so only its legality is checked.
        step(turn.state, ev.SessionUpdated)
        draft.events.append(
            ev.SessionUpdated(
                at=input.at, kind=kind, update=input.update, prompt_id=turn.prompt_id, beside=input.beside
            )
        )
        return
    if kind in STATES and turn is None and peek.state in _AT_WORK and _ends_by(state, ev.TurnEnd.IDLE):
        prompt_id = PromptId(f"agent-{draft.head + 1}")
        draft.record(ev.TurnStarted(at=input.at, prompt_id=prompt_id, origin=ev.Origin.AGENT))
    if turn is not None and not _is_unsent(turn, state.last):
        if kind in USER_MESSAGES:
            insertion.shown(draft, input.at, peek.message_id)
        elif kind in _WORDS:
            insertion.spoken(draft, input.at, turn)
    was_busy = draft.state.agent is not None and draft.state.agent.busy
    before = draft.state
    draft.record(_attributed(before, input))
    if kind == ANNOUNCES:
        children.rested(draft, input.at, before)
    elif kind in STATES:
        _agent_state(draft, input, was_busy=was_busy)
    elif kind in MARKERS:
        _marker(draft, input)


def pieces(draft: Draft, input: AgentPieces) -> None:
    """Handle a batch of updates at once while they are output of the running turn, with the result of `update` for
    each.

    No update then changes anything that the next depends on: neither the session's state, which is not modified,
    nor the turn's, which by the table is the same after a `SessionUpdated`. So the checks of the first one hold for
    all.
    """
    state, turn, updates = draft.state, draft.state.turn, input.updates
    if turn is not None and _is_output(turn, state.last, input.kind):
        assert step(turn.state, ev.SessionUpdated) is turn.state, "output does not change a turn"
        at, kind, prompt_id = input.at, input.kind, turn.prompt_id
        draft.events += [ev.SessionUpdated(at=at, kind=kind, update=each, prompt_id=prompt_id) for each in updates]
        return
    for each in updates:
        update(draft, AgentUpdate(at=input.at, update=each, peek=peek_update(each)))


def _is_output(turn: Turn, last: Ended | None, kind: str) -> bool:
    """True if an update of this kind is output of the running turn, and nothing else."""
    return turn.content is UNSET and kind not in _SPECIAL and not _is_unsent(turn, last)


_SPECIAL = (
    ABOUT_TOOL_CALLS
    | MARKERS
    | USER_MESSAGES
    | STATES
    | CHANGING
    | NAMING
    | {"terminal_update", "terminal_output_chunk"}
)
"""Kinds whose turn or meaning depends on more than the running turn."""


def _attributed(state: SessionState, input: AgentUpdate) -> ev.SessionUpdated:
    """Return the update with its turn, with the ended turn it followed, or with neither."""
    peek, turn, last = input.peek, state.turn, state.last
    prompt_id: PromptId | None = None
    after: PromptId | None = None
    if _is_background(state, peek):
        pass
    elif turn is not None and not _is_late(turn, last, input):
        prompt_id = turn.prompt_id
    elif last is not None and peek.kind not in STATES and peek.kind != ANNOUNCES:
        after = last.prompt_id
    original = echoed(state, peek.message_id) if peek.kind in USER_MESSAGES and prompt_id is not None else None
    if original is not None:
        prompt_id = original.prompt_id
    return ev.SessionUpdated(
        at=input.at,
        kind=peek.kind,
        update=input.update,
        prompt_id=prompt_id,
        after=after,
        echo=original is not None,
        beside=input.beside,
        names=children.names_in(state, input),
    )


def _is_late(turn: Turn, last: Ended | None, input: AgentUpdate) -> bool:
    """True if an update belongs to an earlier turn: by the id in a marker, by its tool call, or because the agent
    has not received a prompt since.
    """
    if input.ends is not None:
        return input.ends != turn.prompt_id
    if _is_unsent(turn, last):
        return True
    tool_call_id = input.peek.tool_call_id
    return last is not None and tool_call_id in last.tools and tool_call_id not in turn.tools


def _is_unsent(turn: Turn, last: Ended | None) -> bool:
    """True if the agent has not received a turn and may still work on the previous one, which a person settled."""
    return last is not None and last.settled and turn.origin is ev.Origin.CLIENT


def _is_background(state: SessionState, peek: UpdatePeek) -> bool:
    listed = state.background
    return bool(listed) and (peek.tool_call_id in listed or peek.terminal_id in listed)


def _ends_by(state: SessionState, end: ev.TurnEnd) -> bool:
    return state.agent is not None and state.agent.turn_end is end


def asked(draft: Draft, input: AgentHasPrompt) -> None:
    """Record that the prompt was sent to the agent, unless its turn has ended meanwhile."""
    turn = find_turn(draft.state, input.prompt_id)
    if turn is not None and turn.state is not TurnState.QUEUED:
        draft.record(ev.PromptSent(at=input.at, prompt_id=input.prompt_id, agent_request_id=input.agent_request_id))


def replayed(draft: Draft, input: AgentReplayed) -> None:
    """Record the comparison of the agent's history with the log. Differences are shown; the log is not changed."""
    draft.record(
        ev.HistoryCompared(
            at=input.at,
            replayed=input.replayed,
            matched=input.matched,
            missing=input.missing,
            first_difference=input.first_difference,
        )
    )


# -- ends ----------------------------------------------------------------------------------------------------


def _agent_state(draft: Draft, input: AgentUpdate, *, was_busy: bool) -> None:
    """Handle the foreground state of a v2 agent. Repeats are idempotent; an idle state that ends nothing changes
    nothing.

    An idle state ends a turn if the agent has its message and was working: before that it describes the time
    before, or work that the agent began itself.
    """
    turn, peek = draft.state.turn, input.peek
    if turn is None or not _ends_by(draft.state, ev.TurnEnd.IDLE):
        return
    if peek.state == "requires_action" and turn.state is TurnState.RUNNING:
        block(draft, input.at, turn)
    elif peek.state == "running" and turn.state is TurnState.REQUIRES_ACTION:
        draft.record(ev.TurnUnblocked(at=input.at, prompt_id=turn.prompt_id))
    elif peek.state == "idle" and turn.inserted and (was_busy or _confirms_cancel(turn, peek)):
        others = beside(input.update, _OF_A_STATE)
        if peek.stop_reason == "error":
            fail(draft, input.at, error=peek.error, beside=others)
        else:
            is_cancelled = turn.state is TurnState.CANCELLING
            reason = peek.stop_reason or (CANCELLED if is_cancelled else "end_turn")
            complete(
                draft,
                input.at,
                stop_reason=reason,
                ending=ev.Ending.IDLE,
                said=LastWord(peek.usage, beside=others),
                assumed=(peek.stop_reason is None and not is_cancelled) or None,
            )


_OF_A_STATE = frozenset({"sessionUpdate", "state", "stopReason", "stop_reason", "usage", "error", "background"})
"""The decoded members of a state; the others are stored with the end that it causes."""


def _confirms_cancel(turn: Turn, peek: UpdatePeek) -> bool:
    """True if the agent confirms a cancel: it may have the message and not have begun."""
    return turn.state is TurnState.CANCELLING and peek.stop_reason == "cancelled"


def _marker(draft: Draft, input: AgentUpdate) -> None:
    """Handle `turn_complete` of an agent that offers it. Without a reason the turn failed; the error answer has the
    details.
    """
    turn, peek = draft.state.turn, input.peek
    if turn is None or not _ends_by(draft.state, ev.TurnEnd.MARKER):
        return
    if input.ends is not None and input.ends != turn.prompt_id:
        return
    reason = peek.stop_reason or turn.answered
    if reason and (turn.answered is not None or peek.usage is not None):
        said = LastWord(peek.usage if turn.usage is UNSET else turn.usage, beside=turn.beside)
        complete(draft, input.at, stop_reason=reason, ending=ev.Ending.MARKER, said=said)
    elif turn.answered is not None:
        fail(draft, input.at, why=WITHOUT_A_REASON)
    elif reason:
        # The marker reports the end. The usage may be in the answer, which is about to arrive.
        draft.add_effect(AwaitAnswer(turn.prompt_id, RESPONSE_S))


def answer_overdue(draft: Draft, input: AnswerOverdue) -> None:
    """End a turn whose agent marked the end and did not answer the prompt in time."""
    turn = draft.state.turn
    if turn is not None and turn.prompt_id == input.prompt_id and turn.marked:
        conclude(draft, input.at)


def conclude(draft: Draft, at: int) -> None:
    """End a turn by its marker alone."""
    turn = draft.state.turn
    assert turn is not None
    assert turn.marked, "the agent has marked the end, with a reason"
    complete(draft, at, stop_reason=turn.marked, ending=ev.Ending.MARKER)


def answered(draft: Draft, input: AgentAnswered) -> None:
    """Handle the result of `session/prompt`. After the end of the turn it is ignored."""
    turn, agent = draft.state.turn, draft.state.agent
    if agent is None:
        return
    if agent.turn_end is ev.TurnEnd.IDLE or _is_acceptance(agent, turn, input):
        insertion.answered(draft, input)
        if agent.protocol_version == 1 and input.stop_reason is not None and turn is not None:
            # It offers the lifecycle draft and answers as v1 does: at the end, with the reason.
            _end_by_answer(draft, input)
        return
    if turn is None or turn.prompt_id != input.prompt_id:
        return
    if agent.turn_end is ev.TurnEnd.MARKER and turn.marked is None:
        usage = UNSET if input.usage is None else input.usage
        draft.record(
            ev.PromptAnswered(
                at=input.at,
                prompt_id=turn.prompt_id,
                stop_reason=input.stop_reason,
                usage=usage,
                beside=input.beside,
            )
        )
        return
    reason = turn.marked or input.stop_reason
    if reason is None:
        fail(draft, input.at, why=WITHOUT_A_REASON)
    else:
        by = ev.Ending.MARKER if turn.marked else ev.Ending.RESPONSE
        complete(draft, input.at, stop_reason=reason, ending=by, said=LastWord(input.usage, beside=input.beside))


def _end_by_answer(draft: Draft, input: AgentAnswered) -> None:
    turn = draft.state.turn
    if turn is not None and turn.prompt_id == input.prompt_id and input.stop_reason is not None:
        said = LastWord(input.usage, beside=input.beside)
        complete(draft, input.at, stop_reason=input.stop_reason, ending=ev.Ending.RESPONSE, said=said)


def _is_acceptance(agent: Agent, turn: Turn | None, input: AgentAnswered) -> bool:
    """True if an agent that reports states only acknowledged the prompt, as the lifecycle draft requires.

    Its handshake did not announce that; but v1 answers with a stop reason, and an agent at work sends no reason.
    """
    is_open = turn is not None and turn.prompt_id == input.prompt_id and agent.turn_end is ev.TurnEnd.RESPONSE
    return is_open and input.stop_reason is None and agent.busy


def refused(draft: Draft, input: AgentRefused) -> None:
    """End the turn for an error answer, in every dialect."""
    turn = draft.state.turn
    if turn is None or turn.prompt_id != input.prompt_id:
        refuse_offered(draft, input)
        return
    if input.unsent is not None:
        fail(draft, input.at, code=ContentRefused.code, why=input.unsent)
    else:
        fail(draft, input.at, error=input.error)
