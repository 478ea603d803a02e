"""The end of turns: completion, cancelling with escalation, settling, loss of the agent, and recovery.

The functions record the consequences of an end in a fixed order: open permission requests are resolved, then the
terminal event, then the terminals of prompts that had joined, then the next prompt starts. Silence never ends a
turn, and time only if the prompt came with a deadline: that is a regular cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, json
from msgspec.structs import replace

from turnwire.errors import PromptNotFound
from turnwire.ids import ChildId, PromptId
from turnwire.session import events as ev
from turnwire.session.background import TOOL_CALL, AllWork
from turnwire.session.draft import Draft
from turnwire.session.effects import ArmDeadline, CancelAgent, CloseAgentSession
from turnwire.session.inputs import (
    AgentGone,
    AgentRefused,
    Asked,
    Cancel,
    ChoicesTold,
    Close,
    DeadlinePassed,
    Recover,
    Settle,
    TimeLimitPassed,
)
from turnwire.session.insertion import place
from turnwire.session.permissions import resolve_all
from turnwire.session.queue import CHOICES_LOST, PASSING, arm_time_limit, remove, start_next
from turnwire.session.state import Phase, Turn, find_turn
from turnwire.session.turn import TurnState
from turnwire.wire.jsonrpc import REQUEST_CANCELLED, raw
from turnwire.wire.methods import VENDOR
from turnwire.wire.schema.update import FINAL_TOOL_STATUS

CANCELLED = "cancelled"
CLOSED = "closed"
"""Our `_meta` member, with the reason, of an update that closes a tool call on behalf of the agent."""
DEADLINE = "deadline"
"""The author of the cancel when a turn passes its deadline."""

LADDER: dict[ev.CancelRung, ev.CancelRung] = {
    ev.CancelRung.NOTIFY: ev.CancelRung.REQUEST,
    ev.CancelRung.REQUEST: ev.CancelRung.TERMINATE,
    ev.CancelRung.TERMINATE: ev.CancelRung.KILL,
}
"""The next step of the escalation after each step's grace period."""


RESTARTED = "daemon_restarted"
"""The exit reason of the agents of a restarted daemon, and the hold reason of the queues that its successor
found.
"""
NODE_LOST = "node_lost"
"""The same, if the successor is another node."""
_OWNER_GONE = {RESTARTED: "the daemon was restarted", NODE_LOST: "the node that had the session was lost"}

NEVER_THERE = frozenset({"agent_launch_failed", "agent_unavailable", "auth_required"})
"""Exit reasons of an agent that never served the session. Recorded even if no turn waits for the agent."""


WITH_AN_ERROR = "the agent answered the prompt with an error"
WITHOUT_A_REASON = "the agent answered the prompt without a stop reason"


class Cancelled(NamedTuple):
    """Answer to `Cancel`: the turn that is being cancelled; `None` if there was nothing to cancel."""

    prompt_id: str | None


class LastWord(NamedTuple):
    """The members of the agent's end of a turn, except the reason."""

    usage: Raw | None = None
    error: Raw | None = None
    beside: Raw | UnsetType = UNSET


def complete(
    draft: Draft,
    at: int,
    *,
    stop_reason: str,
    ending: ev.Ending,
    said: LastWord = LastWord(),  # noqa: B008 an immutable value
    by: str | None = None,
    assumed: bool | None = None,
) -> None:
    """End the active turn with a stop reason. After a cancel it is always `cancelled`, whatever the agent
    reports.
    """
    turn = _active(draft)
    own_word = None
    if turn.state is TurnState.CANCELLING and stop_reason != CANCELLED:
        # v1 requires `cancelled` after a cancel, and the cancelling client waits for it. The agent's reason is
        # recorded in addition.
        own_word, stop_reason = stop_reason, CANCELLED
    cancelled_by = (turn.cancelled_by or by) if stop_reason == CANCELLED else None
    settled_by = by if ending is ev.Ending.SETTLED else None

    def terminal(each: Turn) -> ev.TurnCompleted:
        return ev.TurnCompleted(
            at=at,
            prompt_id=each.prompt_id,
            stop_reason=stop_reason,
            assumed=assumed,
            ending=ending if each is turn else ev.Ending.JOINED,
            prompt_request_id=each.prompt_request_id,
            usage=said.usage if each is turn and said.usage is not None else UNSET,
            cancelled_by=cancelled_by or None,
            settled_by=settled_by if each is turn else None,
            agent_stop_reason=own_word if each is turn else None,
            agent_error=said.error if each is turn and said.error is not None else UNSET,
            beside=said.beside if each is turn else UNSET,
        )

    if stop_reason == CANCELLED:
        _close_tools(draft, at, turn, is_cancelled=True)
    _end(draft, at, turn, terminal)


def fail(
    draft: Draft,
    at: int,
    failure: AgentGone | None = None,
    *,
    error: Raw | None = None,
    code: str = "agent_error",
    why: str = WITH_AN_ERROR,
    beside: Raw | UnsetType = UNSET,
) -> None:
    """End the active turn with an error, or as `cancelled` after a cancel. A `failure` has the reason."""
    turn = _active(draft)
    if turn.state is TurnState.CANCELLING:
        said = LastWord(error=error, beside=beside)
        complete(draft, at, stop_reason=CANCELLED, ending=ev.Ending.CANCELLED, said=said)
        return

    def terminal(each: Turn) -> ev.TurnFailed:
        if failure is not None:
            return _lost(each, failure)
        failed = _failed(at, each, code, why, error)
        return replace(failed, beside=beside) if each is turn else failed

    if failure is not None:
        _close_tools(draft, at, turn, is_cancelled=False)
    _end(draft, at, turn, terminal)


def _failed(at: int, turn: Turn, code: str, why: str, error: Raw | None) -> ev.TurnFailed:
    return ev.TurnFailed(
        at=at,
        prompt_id=turn.prompt_id,
        code=code,
        message=why,
        prompt_request_id=turn.prompt_request_id,
        agent_error=UNSET if error is None else error,
    )


def _lost(turn: Turn, gone: AgentGone) -> ev.TurnFailed:
    return replace(
        _failed(gone.at, turn, gone.code, gone.message, gone.error),
        exit_code=gone.exit_code,
        signal=gone.signal,
        stderr_tail=gone.stderr_tail,
    )


def _active(draft: Draft) -> Turn:
    turn = draft.state.turn
    assert turn is not None, "only an active turn is ended by its agent"
    return turn


def _end(draft: Draft, at: int, turn: Turn, terminal: Callable[[Turn], ev.TurnCompleted | ev.TurnFailed]) -> None:
    end = ev.PermissionEnd.CANCELLED if turn.state is TurnState.CANCELLING else ev.PermissionEnd.WITHDRAWN
    # A child may continue without the turn and send further requests. Callers that end both have resolved its
    # requests.
    resolve_all(draft, at, end, prompt_id=turn.prompt_id, of_children=False)
    for each in (turn, *draft.state.joined):
        place(draft, at, each)
        if each.waited:
            draft.record(ev.PromptFinished(at=at, prompt_id=each.prompt_id, state=ev.QueueExit.COMPLETED))
        draft.record(terminal(each))
    start_next(draft, at)
    following = draft.state.turn
    if following is not None and following.cancelled_by is not None:
        # It was cancelled while it was offered to the agent and another turn ran.
        ask_cancel(draft, Cancel(at=at, author=following.cancelled_by or None), following)


class _OpenCall(NamedTuple):
    """A tool call without a final status."""

    tool_call_id: str
    prompt_id: PromptId | None = None
    child: ChildId | None = None


def _close_tools(draft: Draft, at: int, turn: Turn | None, *, is_cancelled: bool) -> None:
    """Close the calls that the agent will not close any more, including those of children: the turn was cancelled,
    or its agent is gone.

    Background work that the agent lists outlives a cancel, and so do its calls.
    """
    background = draft.state.background
    prompt_id, tools = (None, {}) if turn is None else (turn.prompt_id, turn.tools)
    calls = [
        _OpenCall(tool_call_id, prompt_id)
        for tool_call_id, last in tools.items()
        if last not in FINAL_TOOL_STATUS and tool_call_id not in background
    ]
    for agent_id, child in draft.state.children.items():
        # A listed child outlives a cancel, and so do its calls.
        calls += [_OpenCall(each, prompt_id, child.child_id) for each in child.tools if agent_id not in background]
    for each in calls:
        _close_tool(draft, at, each, is_cancelled=is_cancelled)


def _close_work(draft: Draft, at: int, work: AllWork, *, is_cancelled: bool) -> None:
    """Close the calls in the background, which no agent works on any more. Those of the running turn end
    with it.
    """
    tools = draft.state.turn.tools if draft.state.turn is not None else {}
    for each in work:
        if each.kind == TOOL_CALL and each.id is not None and each.id not in tools:
            _close_tool(draft, at, _OpenCall(each.id), is_cancelled=is_cancelled)


def _close_tool(draft: Draft, at: int, call: _OpenCall, *, is_cancelled: bool) -> None:
    # v1 has no status for a cancelled call except `failed`; the `_meta` names the author and the reason.
    status = CANCELLED if is_cancelled and draft.state.agent_version == 2 else "failed"
    why = {VENDOR: {CLOSED: CANCELLED if is_cancelled else "agent_lost"}}
    update = {
        "sessionUpdate": "tool_call_update",
        "toolCallId": call.tool_call_id,
        "status": status,
        "_meta": why,
    }
    draft.record(
        ev.SessionUpdated(
            at=at, kind="tool_call_update", update=raw(update), prompt_id=call.prompt_id, child=call.child
        )
    )


# -- cancelling ----------------------------------------------------------------------------------------------


def cancel(draft: Draft, input: Cancel) -> Cancelled:
    """Cancel a turn for a client. A turn that has ended, or is being cancelled already, is not changed."""
    turn = draft.state.turn
    if input.prompt_id is not None:
        named = find_turn(draft.state, input.prompt_id)
        if named is None:
            return Cancelled(None)
        if named.state is TurnState.QUEUED:
            remove(draft, input.at, named, input.who)
            start_next(draft, input.at)
            return Cancelled(named.prompt_id)
        if named.state is TurnState.OFFERED:
            _take_back(draft, input, named)
            return Cancelled(named.prompt_id)
    if turn is None:
        return Cancelled(None)
    ask_cancel(draft, input, turn)
    return Cancelled(turn.prompt_id)


def _take_back(draft: Draft, input: Asked, turn: Turn) -> None:
    """Ask the agent to release an offered prompt. It confirms that, or accepts the prompt nevertheless."""
    if turn.cancelled_by is None:
        draft.record(
            ev.CancelAsked(at=input.at, prompt_id=turn.prompt_id, author=input.author, client_id=input.client_id)
        )
        draft.add_effect(CancelAgent(turn.prompt_id, ev.CancelRung.REQUEST))


def refuse_offered(draft: Draft, input: AgentRefused) -> None:
    """Handle the agent's rejection of a prompt that was offered while a turn runs. That turn continues."""
    turn = find_turn(draft.state, input.prompt_id)
    if turn is None or turn.state is not TurnState.OFFERED:
        return
    if turn.cancelled_by is not None or _is_cancelled(input.error):
        remove(draft, input.at, turn, turn.cancelled_by or None)
        return
    draft.record(ev.PromptFinished(at=input.at, prompt_id=turn.prompt_id, state=ev.QueueExit.REMOVED))
    draft.record(_failed(input.at, turn, "agent_error", WITH_AN_ERROR, input.error))


def refuse_unsent(draft: Draft, at: int, turn: Turn) -> None:
    """End a cancelled turn whose prompt was never sent."""
    error = raw({"code": REQUEST_CANCELLED, "message": "cancelled before the agent was asked"})
    if draft.state.turn is not None and draft.state.turn.prompt_id == turn.prompt_id:
        fail(draft, at, error=error)
    else:
        remove(draft, at, turn, turn.cancelled_by or None)


class _ErrorCode(Struct):
    code: int = 0


def _is_cancelled(error: Raw | None) -> bool:
    """True if an agent's error reports a cancelled request, as v2 requires after `session/cancel`."""
    try:
        return error is not None and json.decode(error, type=_ErrorCode).code == REQUEST_CANCELLED
    except DecodeError:
        return False


def ask_cancel(draft: Draft, input: Asked, turn: Turn) -> None:
    """Start cancelling a turn with the first step of the escalation."""
    if turn.state is TurnState.CANCELLING:
        return
    asked = ev.CancelAsked(at=input.at, prompt_id=turn.prompt_id, author=input.author, client_id=input.client_id)
    draft.record(asked)
    resolve_all(draft, input.at, ev.PermissionEnd.CANCELLED, prompt_id=turn.prompt_id)
    draft.add_effect(CancelAgent(turn.prompt_id, ev.CancelRung.NOTIFY))
    draft.add_effect(ArmDeadline(turn.prompt_id, ev.CancelRung.NOTIFY, draft.limits.cancel_grace_s))


def deadline_passed(draft: Draft, input: DeadlinePassed) -> None:
    """Proceed to the next step after the agent missed a deadline, unless the turn has ended meanwhile."""
    turn, rung = draft.state.turn, LADDER.get(input.rung)
    if turn is None or turn.prompt_id != input.prompt_id or turn.state is not TurnState.CANCELLING or rung is None:
        return
    draft.record(ev.CancelEscalated(at=input.at, prompt_id=turn.prompt_id, rung=rung))
    draft.add_effect(CancelAgent(turn.prompt_id, rung))
    if rung in LADDER:
        draft.add_effect(ArmDeadline(turn.prompt_id, rung, draft.limits.cancel_rung_s))


def time_limit_passed(draft: Draft, input: TimeLimitPassed) -> None:
    """Cancel a prompt at its deadline, as its client would."""
    cancel(draft, Cancel(at=input.at, prompt_id=input.prompt_id, author=DEADLINE))


def settle(draft: Draft, input: Settle) -> None:
    """End a turn for a person because its agent never reported the end."""
    turn, last = draft.state.turn, draft.state.last
    if turn is None or turn.prompt_id != input.prompt_id:
        if last is not None and last.prompt_id == input.prompt_id:
            return
        raise PromptNotFound(
            "only the running turn can be settled; ask for the session's turns", prompt_id=input.prompt_id
        )
    reason = CANCELLED if turn.state is TurnState.CANCELLING else "end_turn"
    # An agent that still works on it is asked to stop, so that it can accept the next prompt.
    draft.add_effect(CancelAgent(turn.prompt_id, ev.CancelRung.NOTIFY))
    resolve_all(draft, input.at, ev.PermissionEnd.WITHDRAWN, prompt_id=turn.prompt_id)
    complete(draft, input.at, stop_reason=reason, ending=ev.Ending.SETTLED, by=input.who)


# -- restored choices ----------------------------------------------------------------------------------------


def choices_told(draft: Draft, input: ChoicesTold) -> None:
    """Record that a restarted agent received the users' choices. Rejected choices hold the queue.

    The turn that restarted the agent has not been sent, and ends here: its client must know under which mode its
    prompt would run, and v1 can only report that as an error.
    """
    if draft.state.phase is not Phase.OPEN:
        return
    if not input.lost:
        draft.record(ev.ChoicesRestored(at=input.at))
        return
    draft.record(ev.ChoicesLost(at=input.at, lost=input.lost))
    if draft.state.held is None:
        draft.record(ev.QueueHeld(at=input.at, reason=CHOICES_LOST))
    turn = draft.state.turn
    if turn is not None and turn.origin is ev.Origin.CLIENT:
        draft.add_effect(CancelAgent(turn.prompt_id, ev.CancelRung.NOTIFY))
        fail(draft, input.at, code=CHOICES_LOST, why=_in_words(input.lost))


def _in_words(lost: tuple[ev.LostChoice, ...]) -> str:
    named = ", ".join(f"{each.name} {each.wanted!r}" for each in lost)
    return f"the agent came back and did not take what was chosen: {named}; choose anew, or release the queue"


# -- loss of the agent, closing ------------------------------------------------------------------------------


def lose_agent(draft: Draft, input: AgentGone) -> None:
    """Handle the loss of the agent: open requests to it get no answer, and all background work has ended."""
    work = draft.state.work
    if draft.state.agent is not None or input.code in NEVER_THERE or _was_opening(draft, input):
        draft.record(
            ev.AgentExited(
                at=input.at,
                reason=input.code,
                message=input.message,
                exit_code=input.exit_code,
                signal=input.signal,
                stderr_tail=input.stderr_tail,
                agent_error=UNSET if input.error is None else input.error,
            )
        )
    _close_work(draft, input.at, work, is_cancelled=False)
    resolve_all(draft, input.at, ev.PermissionEnd.WITHDRAWN)
    for each in draft.state.queue:
        if each.steering:
            gone = ev.SteerRefusal.AGENT_GONE
            draft.record(ev.SteerDeclined(at=input.at, prompt_id=each.prompt_id, reason=gone))
    for each in draft.state.offered:
        # The agent may have worked on it, so it is not sent again, like the running turn.
        draft.record(ev.PromptFinished(at=input.at, prompt_id=each.prompt_id, state=ev.QueueExit.REMOVED))
        draft.record(_lost(each, input))
    if draft.state.turn is not None:
        fail(draft, input.at, input)
    elif draft.state.phase is Phase.OPEN:
        _close_tools(draft, input.at, None, is_cancelled=False)
        start_next(draft, input.at)


def _was_opening(draft: Draft, input: AgentGone) -> bool:
    """True if no agent has opened the session yet and one was about to: clients that wait for it must be
    notified.
    """
    state = draft.state
    return state.phase is Phase.OPEN and state.known_as is None and input.code not in _OWNER_GONE


def close(draft: Draft, input: Close) -> None:
    """End all open turns and requests, then the session. Closing twice is harmless."""
    resolve_all(draft, input.at, ev.PermissionEnd.CANCELLED)
    for each in (*draft.state.queue, *draft.state.offered):
        remove(draft, input.at, each, input.who)
    turn = draft.state.turn
    if turn is not None:
        draft.add_effect(CancelAgent(turn.prompt_id, ev.CancelRung.NOTIFY))
        complete(draft, input.at, stop_reason=CANCELLED, ending=ev.Ending.CANCELLED, by=input.who)
    else:
        _close_tools(draft, input.at, None, is_cancelled=True)
    _close_work(draft, input.at, draft.state.work, is_cancelled=True)
    draft.record(ev.SessionClosed(at=input.at, reason=input.reason, author=input.author))
    draft.add_effect(CloseAgentSession())


def recover(draft: Draft, input: Recover) -> None:
    """Record the consequences of the old owner's death for a new owner; nothing if there are none.

    The session's agent is gone, and the open turn ends with `daemon_restarted` or `node_lost`. The queue continues,
    even if it was held for a daemon stop or because no node could host the session; or it is held, if the input
    asks for that. Clients keep their ids, with which they reconnect. The kind of death makes no difference, so a
    crash at any instant, even during an earlier recovery, results in the same events.
    """
    held = draft.state.held
    if input.holds is not None and draft.state.queue and (held is None or held in PASSING):
        if held != input.holds:
            draft.record(ev.QueueHeld(at=input.at, reason=input.holds))
    elif held in PASSING:
        draft.record(ev.QueueReleased(at=input.at))
    during = "" if draft.state.turn is None else " while the turn ran"
    lose_agent(draft, AgentGone(at=input.at, code=input.code, message=f"{_OWNER_GONE[input.code]}{during}"))
    for each in (draft.state.turn, *draft.state.queue):
        if each is not None:
            arm_time_limit(draft, input.at, each)
