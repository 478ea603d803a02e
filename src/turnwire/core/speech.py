"""What the agent says: updates, answers to prompts, markers and states, and which of them ends a turn.

Takes a draft and the agent's words; records every update once, attributed to the turn it belongs to, to no
turn (background) or to a turn that has ended (late). Never drops an update, never guesses an end: a turn ends
by what its agent's dialect names as the end (`TurnEnd`), by an error answer, and by nothing else said here.
"""

from __future__ import annotations

from msgspec import UNSET

from turnwire.core import children, insertion
from turnwire.core import events as ev
from turnwire.core.child_names import ANNOUNCES, NAMING
from turnwire.core.choices import CHANGING
from turnwire.core.draft import Draft
from turnwire.core.effects import AwaitAnswer
from turnwire.core.ending import CANCELLED, WITHOUT_A_REASON, LastWord, complete, fail, refuse_offered
from turnwire.core.inputs import (
    AgentAnswered,
    AgentHasPrompt,
    AgentPieces,
    AgentReady,
    AgentRefused,
    AgentReplayed,
    AgentUpdate,
    AnswerOverdue,
)
from turnwire.core.permissions import block
from turnwire.core.receipts import Run
from turnwire.core.state import Agent, Ended, SessionState, Turn, echoed, find_turn
from turnwire.core.turn import TurnState, step
from turnwire.errors import ContentRefused
from turnwire.ids import PromptId
from turnwire.wire.peek import UpdatePeek, as_lines, beside, peek_update
from turnwire.wire.schema.update import ABOUT_TOOL_CALLS, AGENT_SPEECH, MARKERS, STATES, TOOL_CALLS, USER_MESSAGES

_WORDS = TOOL_CALLS | AGENT_SPEECH
"""What an agent says to a prompt; the prompt stands before it."""
_AT_WORK = frozenset({"running", "requires_action"})
"""States of a v2 agent in which it is at a turn."""


def started(draft: Draft, input: AgentReady) -> None:
    """An agent serves the session."""
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
        # The last agent would have said where the message goes; this one does not.
        insertion.record_message(draft, input.at, turn, turn.content, turn.echo_id)


def update(draft: Draft, input: AgentUpdate) -> None:
    """One `session/update`. The common case, output of the running turn, takes the first branch."""
    peek, state = input.peek, draft.state
    kind, turn = peek.kind, state.turn
    if input.child is not None:
        is_at_it = turn is not None and turn.content is UNSET and not _is_unsent(turn, state.last)
        children.said(draft, input, input.child, turn.prompt_id if turn is not None and is_at_it else None)
        return
    if turn is not None and _is_output(turn, state.last, kind):
        # It changes nothing in the state, so it is only checked for being legal.
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
    """What `update` does for each, in one go while they are output of the running turn.

    Then one changes nothing that the next depends on: neither the session's state, which is not touched, nor the
    turn's, which by the table is the same after a `SessionUpdated`. So what holds for the first holds for all.
    """
    state, turn, updates = draft.state, draft.state.turn, input.updates
    if turn is not None and _is_output(turn, state.last, input.kind):
        assert step(turn.state, ev.SessionUpdated) is turn.state, "output does not change a turn"
        at, kind, prompt_id = input.at, input.kind, turn.prompt_id
        draft.runs.append(Run(len(draft.events), updates, input.lines or as_lines(updates)))
        draft.events += [ev.SessionUpdated(at=at, kind=kind, update=each, prompt_id=prompt_id) for each in updates]
        return
    for each in updates:
        update(draft, AgentUpdate(at=input.at, update=each, peek=peek_update(each)))


def _is_output(turn: Turn, last: Ended | None, kind: str) -> bool:
    """Whether an update of this kind is output of the running turn, and nothing else."""
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
"""Kinds whose turn or meaning depends on more than who is running."""


def _attributed(state: SessionState, input: AgentUpdate) -> ev.SessionUpdated:
    """The update with the turn it belongs to, or the ended one it followed, or neither."""
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
    """Whether an update is about an earlier turn than the running one: by the name in a marker, by its tool, or
    because the agent has not been asked anything since."""
    if input.ends is not None:
        return input.ends != turn.prompt_id
    if _is_unsent(turn, last):
        return True
    tool_call_id = input.peek.tool_call_id
    return last is not None and tool_call_id in last.tools and tool_call_id not in turn.tools


def _is_unsent(turn: Turn, last: Ended | None) -> bool:
    """Whether the agent has not heard of a turn and may still be at the one before, which a person settled."""
    return last is not None and last.settled and turn.origin is ev.Origin.CLIENT


def _is_background(state: SessionState, peek: UpdatePeek) -> bool:
    listed = state.background
    return bool(listed) and (peek.tool_call_id in listed or peek.terminal_id in listed)


def _ends_by(state: SessionState, end: ev.TurnEnd) -> bool:
    return state.agent is not None and state.agent.turn_end is end


def asked(draft: Draft, input: AgentHasPrompt) -> None:
    """The prompt has left for the agent; a turn that ended meanwhile does not need to know."""
    turn = find_turn(draft.state, input.prompt_id)
    if turn is not None and turn.state is not TurnState.QUEUED:
        draft.record(ev.PromptSent(at=input.at, prompt_id=input.prompt_id, agent_request_id=input.agent_request_id))


def replayed(draft: Draft, input: AgentReplayed) -> None:
    """The agent's history against ours. Differences are shown; what is in the log stays as it is."""
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
    """A v2 snapshot of the foreground. Repeats are idempotent; an idle that ends nothing changes nothing.

    An idle ends a turn if the agent has its message and was at work: before that it speaks of the time before, or
    of work of the agent's own.
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
"""The members of a state that are read; the others go with the end that it is."""


def _confirms_cancel(turn: Turn, peek: UpdatePeek) -> bool:
    """A cancel may reach an agent that has the message and has not begun."""
    return turn.state is TurnState.CANCELLING and peek.stop_reason == "cancelled"


def _marker(draft: Draft, input: AgentUpdate) -> None:
    """`turn_complete` of an agent that offers it. Without a reason the turn failed; the error answer says how."""
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
        # That the turn is over is said. What it used may be in the answer, which is about to come.
        draft.add_effect(AwaitAnswer(turn.prompt_id, draft.limits.answer_s))


def answer_overdue(draft: Draft, input: AnswerOverdue) -> None:
    """The agent marked the end of a turn and did not answer the prompt in time."""
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
    """The result of `session/prompt`. For a turn that is over it says nothing new."""
    turn, agent = draft.state.turn, draft.state.agent
    if agent is None:
        return
    if agent.turn_end is ev.TurnEnd.IDLE or _is_acceptance(agent, turn, input):
        insertion.answered(draft, input)
        if agent.protocol_version == 1 and input.stop_reason is not None and turn is not None:
            # It offers the lifecycle draft and answers as v1 does, at the end and with the reason.
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
    """Whether an agent that tells states answered only that it has the prompt, as the lifecycle draft wants it.

    It did not say so in its handshake; but v1 answers with a stop reason, and an agent at work gives none.
    """
    is_open = turn is not None and turn.prompt_id == input.prompt_id and agent.turn_end is ev.TurnEnd.RESPONSE
    return is_open and input.stop_reason is None and agent.busy


def refused(draft: Draft, input: AgentRefused) -> None:
    """An error answer ends the turn in every dialect."""
    turn = draft.state.turn
    if turn is None or turn.prompt_id != input.prompt_id:
        refuse_offered(draft, input)
        return
    if input.unsent is not None:
        fail(draft, input.at, code=ContentRefused.code, why=input.unsent)
    else:
        fail(draft, input.at, error=input.error)
