"""How turns end: the one way to an end, cancelling and its ladder, settling, and losing the agent.

Takes a draft; records what an end owes in the order it is owed: open questions are resolved, then the
terminal event, then the terminals of prompts that had joined, then the next prompt starts. Never ends a turn
because of silence, and by time only if the prompt came with a deadline: that is a cancel like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import UNSET, Raw

from turnwire.core import events as ev
from turnwire.core.draft import Draft
from turnwire.core.effects import ArmDeadline, CancelAgent, CloseAgentSession
from turnwire.core.inputs import AgentGone, Asked, Cancel, Close, DeadlinePassed, Settle, TimeLimitPassed
from turnwire.core.permissions import resolve_all
from turnwire.core.queue import remove, start_next
from turnwire.core.state import Phase, Turn, find_turn
from turnwire.core.turn import TurnState
from turnwire.errors import PromptNotFound

CANCELLED = "cancelled"
DEADLINE = "deadline"
"""Who cancels a turn that has not ended by its deadline."""

LADDER: dict[ev.CancelRung, ev.CancelRung] = {
    ev.CancelRung.NOTIFY: ev.CancelRung.REQUEST,
    ev.CancelRung.REQUEST: ev.CancelRung.TERMINATE,
    ev.CancelRung.TERMINATE: ev.CancelRung.KILL,
}
"""Which rung follows when the one before had its time."""


RESTARTED = "daemon_restarted"
"""How the agent of a daemon that is gone was lost."""

NEVER_THERE = frozenset({"agent_launch_failed", "agent_unavailable", "auth_required"})
"""Ways to lose an agent that never served the session: told also when no turn waits for it."""


WITH_AN_ERROR = "the agent answered the prompt with an error"
WITHOUT_A_REASON = "the agent answered the prompt without a stop reason"


class Cancelled(NamedTuple):
    """Answer to `Cancel`: the turn that is being cancelled, none if there was nothing to do."""

    prompt_id: str | None


def complete(
    draft: Draft,
    at: int,
    *,
    stop_reason: str,
    ending: ev.Ending,
    usage: Raw | None = None,
    by: str | None = None,
) -> None:
    """End the active turn with a stop reason."""
    turn = _active(draft)
    cancelled_by = (turn.cancelled_by or by) if stop_reason == CANCELLED else None
    settled_by = by if ending is ev.Ending.SETTLED else None

    def terminal(each: Turn) -> ev.TurnCompleted:
        return ev.TurnCompleted(
            at=at,
            prompt_id=each.prompt_id,
            stop_reason=stop_reason,
            ending=ending if each is turn else ev.Ending.JOINED,
            prompt_request_id=each.prompt_request_id,
            usage=usage if each is turn and usage is not None else UNSET,
            cancelled_by=cancelled_by or None,
            settled_by=settled_by if each is turn else None,
        )

    _end(draft, at, turn, terminal)


def fail(
    draft: Draft,
    at: int,
    failure: AgentGone | None = None,
    *,
    error: Raw | None = None,
    code: str = "agent_error",
    why: str = WITH_AN_ERROR,
) -> None:
    """End the active turn with an error, or as `cancelled` if a cancel was asked for. A `failure` knows why."""
    turn = _active(draft)
    if turn.state is TurnState.CANCELLING:
        complete(draft, at, stop_reason=CANCELLED, ending=ev.Ending.CANCELLED)
        return

    def terminal(each: Turn) -> ev.TurnFailed:
        return ev.TurnFailed(
            at=at,
            prompt_id=each.prompt_id,
            code=failure.code if failure else code,
            message=failure.message if failure else why,
            prompt_request_id=each.prompt_request_id,
            exit_code=failure.exit_code if failure else None,
            signal=failure.signal if failure else None,
            stderr_tail=failure.stderr_tail if failure else None,
            agent_error=UNSET if error is None else error,
        )

    _end(draft, at, turn, terminal)


def _active(draft: Draft) -> Turn:
    turn = draft.state.turn
    assert turn is not None, "only an active turn is ended by its agent"
    return turn


def _end(draft: Draft, at: int, turn: Turn, terminal: Callable[[Turn], ev.TurnCompleted | ev.TurnFailed]) -> None:
    end = ev.PermissionEnd.CANCELLED if turn.state is TurnState.CANCELLING else ev.PermissionEnd.WITHDRAWN
    resolve_all(draft, at, end, prompt_id=turn.prompt_id)
    for each in (turn, *draft.state.joined):
        if each.waited:
            draft.record(ev.PromptFinished(at=at, prompt_id=each.prompt_id, state=ev.QueueExit.COMPLETED))
        draft.record(terminal(each))
    start_next(draft, at)


def _who(given: Asked) -> str | None:
    return given.author or given.client_id


# -- cancelling ----------------------------------------------------------------------------------------------


def cancel(draft: Draft, given: Cancel) -> Cancelled:
    """A client wants a turn stopped. One that has ended, or is being cancelled already, is left alone."""
    turn = draft.state.turn
    if given.prompt_id is not None:
        named = find_turn(draft.state, given.prompt_id)
        if named is None:
            return Cancelled(None)
        if named.state is TurnState.QUEUED:
            remove(draft, given, named)
            start_next(draft, given.at)
            return Cancelled(named.prompt_id)
    if turn is None:
        return Cancelled(None)
    ask_cancel(draft, given, turn)
    return Cancelled(turn.prompt_id)


def ask_cancel(draft: Draft, given: Asked, turn: Turn) -> None:
    """Put the first foot on the ladder."""
    if turn.state is TurnState.CANCELLING:
        return
    asked = ev.CancelAsked(at=given.at, prompt_id=turn.prompt_id, author=given.author, client_id=given.client_id)
    draft.record(asked)
    resolve_all(draft, given.at, ev.PermissionEnd.CANCELLED, prompt_id=turn.prompt_id)
    draft.wish(CancelAgent(turn.prompt_id, ev.CancelRung.NOTIFY))
    draft.wish(ArmDeadline(turn.prompt_id, ev.CancelRung.NOTIFY, draft.limits.cancel_grace_s))


def deadline_passed(draft: Draft, given: DeadlinePassed) -> None:
    """The agent did not answer a rung in time: take the next, unless the turn has ended meanwhile."""
    turn, rung = draft.state.turn, LADDER.get(given.rung)
    if turn is None or turn.prompt_id != given.prompt_id or turn.state is not TurnState.CANCELLING or rung is None:
        return
    draft.record(ev.CancelEscalated(at=given.at, prompt_id=turn.prompt_id, rung=rung))
    draft.wish(CancelAgent(turn.prompt_id, rung))
    if rung in LADDER:
        draft.wish(ArmDeadline(turn.prompt_id, rung, draft.limits.cancel_rung_s))


def time_limit_passed(draft: Draft, given: TimeLimitPassed) -> None:
    """The prompt's own deadline cancels it, as its client would."""
    cancel(draft, Cancel(at=given.at, prompt_id=given.prompt_id, author=DEADLINE))


def settle(draft: Draft, given: Settle) -> None:
    """A person says that a turn is over although its agent never said so."""
    turn, last = draft.state.turn, draft.state.last
    if turn is None or turn.prompt_id != given.prompt_id:
        if last is not None and last.prompt_id == given.prompt_id:
            return
        raise PromptNotFound(
            "only the running turn can be settled; ask for the session's turns", prompt_id=given.prompt_id
        )
    reason = CANCELLED if turn.state is TurnState.CANCELLING else "end_turn"
    # An agent that still works on it lets go, and can take the next prompt.
    draft.wish(CancelAgent(turn.prompt_id, ev.CancelRung.NOTIFY))
    complete(draft, given.at, stop_reason=reason, ending=ev.Ending.SETTLED, by=_who(given))


# -- losing the agent, closing -------------------------------------------------------------------------------


def lose_agent(draft: Draft, given: AgentGone) -> None:
    """The agent is gone: nothing it was asked will be answered."""
    if draft.state.agent is not None or given.code in NEVER_THERE or _was_opening(draft, given):
        draft.record(
            ev.AgentExited(
                at=given.at,
                reason=given.code,
                message=given.message,
                exit_code=given.exit_code,
                signal=given.signal,
                stderr_tail=given.stderr_tail,
                agent_error=UNSET if given.error is None else given.error,
            )
        )
    resolve_all(draft, given.at, ev.PermissionEnd.WITHDRAWN)
    for each in draft.state.queue:
        if each.steering:
            draft.record(ev.SteerDeclined(at=given.at, prompt_id=each.prompt_id))
    if draft.state.turn is not None:
        fail(draft, given.at, given, error=given.error)
    else:
        start_next(draft, given.at)


def _was_opening(draft: Draft, given: AgentGone) -> bool:
    """No agent has had the session yet, and one was to open it: whoever waits for that must hear of it."""
    state = draft.state
    return state.phase is Phase.OPEN and state.known_as is None and given.code != RESTARTED


def close(draft: Draft, given: Close) -> None:
    """End everything that is open, then the session. Closing twice is harmless."""
    resolve_all(draft, given.at, ev.PermissionEnd.CANCELLED)
    for each in draft.state.queue:
        remove(draft, given, each)
    turn = draft.state.turn
    if turn is not None:
        draft.wish(CancelAgent(turn.prompt_id, ev.CancelRung.NOTIFY))
        complete(draft, given.at, stop_reason=CANCELLED, ending=ev.Ending.CANCELLED, by=_who(given))
    draft.record(ev.SessionClosed(at=given.at, reason=given.reason, author=given.author))
    draft.wish(CloseAgentSession())
