"""Adoption: a new owner continues the session of an agent that has outlived the old owner.

The log says what was decided, and the agent's notes say what it was sent. Between the two are effects that were
decided and not performed; they are performed now. All others were performed, and are not performed again. A cancel
is the exception: it is repeated, which is harmless, and its escalation begins again.
"""

from __future__ import annotations

from msgspec import UNSET

from turnwire.session import events as ev
from turnwire.session.draft import Draft
from turnwire.session.effects import ArmDeadline, AskAgent, AwaitAnswer, CancelAgent, SteerAgent
from turnwire.session.ending import refuse_unsent
from turnwire.session.inputs import Adopt
from turnwire.session.queue import PASSING, arm_time_limit, start_next
from turnwire.session.speech import RESPONSE_S
from turnwire.session.state import Turn
from turnwire.session.turn import TurnState


def adopt(draft: Draft, input: Adopt) -> None:
    """Perform the effects that the old owner did not, and arm its timers again."""
    state, sent = draft.state, dict(input.sent)
    if state.held in PASSING:
        draft.record(ev.QueueReleased(at=input.at))
    for each in (state.turn, *state.queue, *state.offered):
        if each is not None:
            arm_time_limit(draft, input.at, each)
    for each in (state.turn, *state.offered, *state.joined):
        if each is None or each.origin is ev.Origin.AGENT:
            continue
        request_id = sent.get(each.prompt_id)
        if request_id is not None and not each.sent:
            draft.record(ev.PromptSent(at=input.at, prompt_id=each.prompt_id, agent_request_id=request_id))
        elif request_id is None and not each.sent and each.state is not TurnState.JOINED:
            _send(draft, input.at, each)
    for each in state.queue:
        if each.steering and each.prompt_id not in input.steered and each.content is not UNSET:
            draft.add_effect(SteerAgent(each.prompt_id, each.content, each.meta))
    _resume_cancels(draft)
    turn = draft.state.turn
    if turn is None:
        start_next(draft, input.at)
    elif turn.marked:
        draft.add_effect(AwaitAnswer(turn.prompt_id, RESPONSE_S))


def _send(draft: Draft, at: int, turn: Turn) -> None:
    """Send a prompt that the agent does not have; one that is being cancelled ends instead."""
    content = turn.content if turn.unsent is UNSET else turn.unsent
    if turn.state is TurnState.CANCELLING:
        refuse_unsent(draft, at, turn)
    elif content is not UNSET:
        is_offered = turn.state is TurnState.OFFERED
        draft.add_effect(AskAgent(turn.prompt_id, content, turn.meta, offered=is_offered))


def _resume_cancels(draft: Draft) -> None:
    turn = draft.state.turn
    if turn is not None and turn.state is TurnState.CANCELLING:
        draft.add_effect(CancelAgent(turn.prompt_id, ev.CancelRung.NOTIFY))
        draft.add_effect(ArmDeadline(turn.prompt_id, ev.CancelRung.NOTIFY, draft.limits.cancel_grace_s))
    for each in draft.state.offered:
        if each.cancelled_by is not None:
            draft.add_effect(CancelAgent(each.prompt_id, ev.CancelRung.REQUEST))
