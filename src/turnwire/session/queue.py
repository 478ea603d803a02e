"""The queue: it decides which prompts start, wait, run first, join the running turn, or are rejected.

It records acceptance, waiting and start. It never ends an active turn (`session.ending`) and never starts a second
one: a prompt starts only when no turn is active.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import UNSET, Raw

from turnwire.errors import (
    IdempotencyConflict,
    LocalProtocolError,
    PromptNotFound,
    PromptNotQueued,
    QueueFull,
    QueueTooLarge,
    SessionBusy,
)
from turnwire.ids import PromptId
from turnwire.session import events as ev
from turnwire.session.content import check_content
from turnwire.session.draft import Draft
from turnwire.session.effects import ArmTimeLimit, AskAgent, SteerAgent
from turnwire.session.inputs import (
    Asked,
    HoldQueue,
    Prompt,
    ReleaseQueue,
    RemovePrompt,
    SteerAnswered,
    SteerOutcome,
    UpdatePrompt,
    WhenBusy,
)
from turnwire.session.insertion import record_message
from turnwire.session.state import Ended, SessionState, Turn, find_turn
from turnwire.session.turn import TurnState

CHOICES_LOST = "choices_lost"
"""Hold reason: the agent rejected choices of users."""
STOPPING = "daemon_stopping"
"""Hold reason: the daemon is about to stop."""
PLACE_GONE = "place_gone"
"""Hold reason: no live node can host the session."""
PASSING = frozenset({STOPPING, PLACE_GONE})
"""Holds that end once the session has an owner that hosts it."""


class Accepted(NamedTuple):
    """Answer to `Prompt`: the prompt is in the log."""

    prompt_id: PromptId
    after_offset: int
    """The log's head just before the prompt: a reader that starts here sees the whole turn."""
    repeated: bool = False
    """True if the idempotency key was accepted before, for this prompt."""


def admit(draft: Draft, input: Prompt) -> Accepted:
    """Accept a prompt and start or queue it. Raises the errors that reject a prompt."""
    state, after = draft.state, draft.head
    repeated = _repeated(state, input)
    if repeated is not None:
        return repeated
    check_content(input.content, state.agent.accepts if state.agent is not None else None)
    busy = state.turn is not None or bool(state.queue) or state.held is not None
    if busy:
        _refuse_if_unwelcome(draft, input)
    # Recorded here unless another event of this decision has it.
    asks = UNSET if busy or not state.inserts else input.content
    draft.record(
        ev.PromptAccepted(
            at=input.at,
            prompt_id=input.prompt_id,
            after_offset=after,
            author=input.author,
            client_id=input.client_id,
            prompt_request_id=input.prompt_request_id,
            key=input.key,
            digest=input.digest,
            meta=UNSET if input.meta is None else input.meta,
            deadline_at=input.deadline_at,
            content=asks,
        )
    )
    arm_time_limit(draft, input.at, draft.state.queue[-1])
    if busy:
        _wait(draft, input)
    else:
        _start(draft, input.at, draft.state.queue[-1], input.content)
    return Accepted(input.prompt_id, after)


def arm_time_limit(draft: Draft, at: int, turn: Turn) -> None:
    """Arm the time limit of a prompt that has a deadline."""
    if turn.deadline_at is not None:
        draft.add_effect(ArmTimeLimit(turn.prompt_id, max(turn.deadline_at - at, 0) / 1000))


def _repeated(state: SessionState, input: Prompt) -> Accepted | None:
    known = state.keys.get(input.key) if input.key is not None else None
    if known is None:
        return None
    if known.digest != input.digest:
        raise IdempotencyConflict(
            "this idempotency key was used with another prompt; use a new key for a new prompt",
            prompt_id=known.prompt_id,
        )
    return Accepted(known.prompt_id, known.after_offset, repeated=True)


def _refuse_if_unwelcome(draft: Draft, input: Prompt) -> None:
    if input.when_busy is WhenBusy.REJECT:
        raise SessionBusy(
            "a turn is running; wait for its end, or let the prompt queue", session_id=draft.state.session_id
        )
    waiting = len(draft.state.queue)
    if waiting >= draft.limits.queue_length:
        raise QueueFull(
            "the queue is full; wait for a turn to end or remove a waiting prompt",
            session_id=draft.state.session_id,
            limit=draft.limits.queue_length,
            pending_count=waiting,
        )
    check_bytes(draft, input.content, input.meta)


def check_bytes(draft: Draft, content: Raw, meta: Raw | None = None, replaced: Turn | None = None) -> None:
    """Raise `QueueTooLarge` if a prompt, in place of `replaced`, makes the queue too large for memory."""
    waiting = queued_bytes(draft.state) - (0 if replaced is None else _bytes_of(replaced))
    if waiting and waiting + len(content) + len(meta or b"") > draft.limits.queue_bytes:
        raise QueueTooLarge(
            "the queued prompts are too large together; wait for a turn to end or remove one",
            session_id=draft.state.session_id,
            limit=draft.limits.queue_bytes,
        )


def queued_bytes(state: SessionState) -> int:
    """Return the size of all queued and offered prompts in bytes."""
    return sum(_bytes_of(each) for each in (*state.queue, *state.offered))


def _bytes_of(turn: Turn) -> int:
    return sum(0 if each is UNSET else len(each) for each in (turn.content, turn.meta))


def _wait(draft: Draft, input: Prompt) -> None:
    waiting = len(draft.state.queue) - 1
    first = input.when_busy in {WhenBusy.INTERRUPT, WhenBusy.STEER}
    refusal = steer_refusal(draft.state)
    steering = input.when_busy is WhenBusy.STEER and refusal is None
    queued = ev.PromptQueued(
        at=input.at,
        prompt_id=input.prompt_id,
        content=input.content,
        position=0 if first else waiting,
        steering=steering,
    )
    draft.record(queued)
    meta = UNSET if input.meta is None else input.meta
    if steering:
        draft.add_effect(SteerAgent(input.prompt_id, input.content, meta))
    elif input.when_busy is WhenBusy.AGENT and _takes_offers(draft.state):
        draft.record(ev.PromptOffered(at=input.at, prompt_id=input.prompt_id))
        draft.add_effect(AskAgent(input.prompt_id, input.content, meta, offered=True))
    elif input.when_busy is WhenBusy.STEER and refusal is not None:
        draft.record(ev.SteerDeclined(at=input.at, prompt_id=input.prompt_id, reason=refusal))


def steer_refusal(state: SessionState) -> ev.SteerRefusal | None:
    """Return the reason for which no prompt can be steered into the session now; `None` if one can."""
    turn, agent = state.turn, state.agent
    if turn is None:
        return ev.SteerRefusal.NO_TURN
    if agent is not None and not agent.steering:
        return ev.SteerRefusal.NOT_ON_V2 if agent.protocol_version == 2 else ev.SteerRefusal.NOT_OFFERED
    is_at_work = agent is not None and turn.state in {TurnState.RUNNING, TurnState.REQUIRES_ACTION}
    return None if is_at_work else ev.SteerRefusal.NOT_AT_WORK


def _takes_offers(state: SessionState) -> bool:
    """True if a prompt can be offered to the agent now, which then places it."""
    turn, agent = state.turn, state.agent
    at_work = turn is not None and turn.state in {TurnState.RUNNING, TurnState.REQUIRES_ACTION}
    return at_work and agent is not None and agent.turn_end is ev.TurnEnd.IDLE and state.held is None


def _start(draft: Draft, at: int, turn: Turn, content: Raw) -> None:
    if turn.waited:
        draft.record(ev.PromptDequeued(at=at, prompt_id=turn.prompt_id))
    if not draft.state.inserts:
        record_message(draft, at, turn, content)
    draft.record(ev.TurnStarted(at=at, prompt_id=turn.prompt_id))
    draft.add_effect(AskAgent(turn.prompt_id, content, turn.meta))


def start_next(draft: Draft, at: int) -> None:
    """Start the first queued prompt if no turn is active. A prompt that may still be injected stays queued."""
    if draft.state.turn is not None:
        return
    if draft.state.offered:
        # The agent has it and runs nothing else now: it works on it, or will reject it.
        offered = draft.state.offered[0]
        draft.record(ev.PromptDequeued(at=at, prompt_id=offered.prompt_id))
        draft.record(ev.TurnStarted(at=at, prompt_id=offered.prompt_id))
        return
    if draft.state.held is not None:
        return
    for each in draft.state.queue:
        if not each.steering and each.content is not UNSET:
            _start(draft, at, each, each.content)
            return


def hold(draft: Draft, input: HoldQueue) -> None:
    """Stop starting prompts. The running turn continues; queued prompts retain their positions."""
    # A stop does not replace the hold of a user, which must outlive the stop.
    if draft.state.held != input.reason and (draft.state.held is None or input.reason != STOPPING):
        held = ev.QueueHeld(at=input.at, reason=input.reason, author=input.author, client_id=input.client_id)
        draft.record(held)


def release(draft: Draft, input: ReleaseQueue) -> None:
    """Release the queue."""
    if draft.state.held is not None:
        draft.record(ev.QueueReleased(at=input.at, author=input.author, client_id=input.client_id))
        start_next(draft, input.at)


def release_if_chosen(draft: Draft, input: Asked) -> None:
    """Release the queue if it was held for a choice and a user has chosen."""
    if draft.state.held == CHOICES_LOST and not draft.state.lost:
        draft.record(ev.QueueReleased(at=input.at, author=input.author, client_id=input.client_id))
        start_next(draft, input.at)


# -- before the start ----------------------------------------------------------------------------------------


def update(draft: Draft, input: UpdatePrompt) -> None:
    """Edit or move a queued prompt."""
    turn = _waiting(draft, input.prompt_id)
    if input.content is not None:
        check_content(input.content, draft.state.agent.accepts if draft.state.agent is not None else None)
        check_bytes(draft, input.content, replaced=turn)
    position = input.position
    if position is not None:
        if position < 0:
            raise LocalProtocolError("a place in the queue is 0 or more", position=position)
        position = min(position, len(draft.state.queue) - 1)
    draft.record(
        ev.PromptUpdated(
            at=input.at,
            prompt_id=turn.prompt_id,
            content=UNSET if input.content is None else input.content,
            position=position,
            author=input.author,
        )
    )


def remove_waiting(draft: Draft, input: RemovePrompt) -> None:
    """Remove a queued prompt. It was accepted, so it still gets its terminal event."""
    remove(draft, input.at, _waiting(draft, input.prompt_id), input.who)


def remove(draft: Draft, at: int, turn: Turn, by: str | None) -> None:
    """End a prompt that has not started, because it was removed."""
    if turn.waited:
        draft.record(ev.PromptFinished(at=at, prompt_id=turn.prompt_id, state=ev.QueueExit.REMOVED))
    draft.record(
        ev.TurnCompleted(
            at=at,
            prompt_id=turn.prompt_id,
            stop_reason="cancelled",
            ending=ev.Ending.REMOVED,
            prompt_request_id=turn.prompt_request_id,
            cancelled_by=by,
        )
    )


def _waiting(draft: Draft, prompt_id: PromptId) -> Turn:
    turn = find_turn(draft.state, prompt_id)
    if turn is not None and turn.state is TurnState.QUEUED and not turn.steering:
        return turn
    last = draft.state.last
    if turn is not None or (last is not None and last.prompt_id == prompt_id):
        raise PromptNotQueued(
            "the prompt has been handed to the agent; cancel its turn instead", prompt_id=prompt_id
        )
    raise PromptNotFound("no prompt with this id waits in the session", prompt_id=prompt_id)


# -- steering ------------------------------------------------------------------------------------------------


def steer_answered(draft: Draft, input: SteerAnswered) -> None:
    """Handle the agent's answer to a steering prompt: injected into the running turn, started, or declined."""
    turn = find_turn(draft.state, input.prompt_id)
    if turn is None or turn.state is not TurnState.QUEUED or not turn.steering or turn.content is UNSET:
        return
    host, last, agent = draft.state.turn, draft.state.last, draft.state.agent
    if input.outcome in {SteerOutcome.PROMPT_REQUIRED, SteerOutcome.FAILED}:
        is_over = host is None or input.outcome is SteerOutcome.PROMPT_REQUIRED
        refusal = ev.SteerRefusal.TURN_ENDED if is_over else ev.SteerRefusal.DECLINED
        draft.record(ev.SteerDeclined(at=input.at, prompt_id=turn.prompt_id, reason=refusal))
        start_next(draft, input.at)
        return
    is_started = input.outcome is SteerOutcome.STARTED and host is None
    if is_started and agent is not None and agent.turn_end is ev.TurnEnd.IDLE:
        draft.record(ev.PromptOffered(at=input.at, prompt_id=turn.prompt_id))
        start_next(draft, input.at)
        # The agent's answer to this request stands for the answer to a prompt.
        draft.record(ev.PromptAnswered(at=input.at, prompt_id=turn.prompt_id))
        return
    # Other agents do not report the end of a turn that they began by themselves: its output follows the last turn.
    into = host.prompt_id if host is not None else last.prompt_id if last is not None else turn.prompt_id
    content = turn.content
    draft.record(ev.PromptInjected(at=input.at, prompt_id=turn.prompt_id, into=into))
    record_message(draft, input.at, turn, content)
    if host is None:
        _end_with(draft, input.at, turn, last)


def _end_with(draft: Draft, at: int, turn: Turn, last: Ended | None) -> None:
    """End a prompt whose turn ended before the agent confirmed the injection."""
    draft.record(ev.PromptFinished(at=at, prompt_id=turn.prompt_id, state=ev.QueueExit.COMPLETED))
    if last is not None and last.stop_reason is not None:
        end = ev.TurnCompleted(
            at=at,
            prompt_id=turn.prompt_id,
            stop_reason=last.stop_reason,
            ending=ev.Ending.JOINED,
            prompt_request_id=turn.prompt_request_id,
        )
    else:
        end = ev.TurnFailed(
            at=at,
            prompt_id=turn.prompt_id,
            code="agent_error",
            message="the turn that the prompt was injected into ended with an error",
            prompt_request_id=turn.prompt_request_id,
        )
    draft.record(end)
    start_next(draft, at)
