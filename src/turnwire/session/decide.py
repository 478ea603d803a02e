"""Decide: compute the decision that follows from a state and one input, or reject the input and change nothing.

It maps a `SessionState` and an input to events to store, effects to perform and the caller's answer. It never
stores, sends or waits. The table below is the whole dispatch; each rule is in the module named after its concept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from turnwire.errors import SessionClosed, SessionNotFound, TurnwireError
from turnwire.limits import Limits
from turnwire.session import adoption, children, ending, inputs, permissions, queue, speech
from turnwire.session import events as ev
from turnwire.session.draft import Draft
from turnwire.session.effects import AnyEffect
from turnwire.session.state import Phase, SessionState


class Decision(NamedTuple):
    """The result of deciding one input."""

    events: tuple[ev.AnyEvent, ...]
    effects: tuple[AnyEffect, ...]
    answer: object
    state: SessionState
    """The state after the events are stored."""


def decide(state: SessionState, input: inputs.AnyInput, *, offset: int, limits: Limits) -> Decision:
    """Return the decision on `input`. Raises a `TurnwireError` for the caller; then nothing has changed."""
    draft = Draft(state, offset, limits)
    answer = take(draft, input)
    return Decision(tuple(draft.events), tuple(draft.effects), answer, draft.state)


def take(draft: Draft, input: inputs.AnyInput) -> object:
    """Decide one input of a batch and add the result to `draft`, atomically."""
    state, events, effects = draft.state, len(draft.events), len(draft.effects)
    try:
        if draft.state.phase is not Phase.OPEN:
            _check_phase(draft.state, input)
        # This precedes the rule, which then finds the turn ended, and is inside the `try`, so that a rejection also
        # reverts the end.
        if draft.state.turn is not None and draft.state.turn.marked and isinstance(input, _BEHIND_A_MARK):
            speech.conclude(draft, input.at)
        return _DECISIONS[type(input)](draft, input)
    except TurnwireError:
        draft.rewind(state, events, effects)
        raise


_TO_A_CLOSED_SESSION = (
    inputs.Archive,
    inputs.Close,
    inputs.Detach,
    inputs.Cancel,
    inputs.Recover,
    inputs.Adopt,
    inputs.AgentUpdate,
    inputs.AgentPieces,
    inputs.AgentHasPrompt,
    inputs.AgentReplayed,
    inputs.AgentAnswered,
    inputs.AgentRefused,
    inputs.AgentGone,
    inputs.AgentWithdraws,
    inputs.SteerAnswered,
    inputs.DeadlinePassed,
    inputs.AnswerOverdue,
    inputs.TimeLimitPassed,
    inputs.ChoicesTold,
)
"""Inputs that a closed session still accepts: harmless repeats, archiving, and the agent's last messages."""


_BEHIND_A_MARK = (
    inputs.AgentUpdate,
    inputs.AgentPieces,
    inputs.AgentAsks,
    inputs.AgentGone,
    inputs.Cancel,
    inputs.Settle,
    inputs.Close,
    inputs.Recover,
)
"""Inputs before which a turn ends if its agent has marked the end. The wait for the agent's answer, which may have
the usage, must not make any of these a part of the turn.
"""


def _check_phase(state: SessionState, input: inputs.AnyInput) -> None:
    if state.phase is Phase.NEW and not isinstance(input, inputs.CreateSession):
        raise SessionNotFound("the session has not been created")
    if state.phase is Phase.CLOSED and not isinstance(input, _TO_A_CLOSED_SESSION):
        raise SessionClosed("the session is closed; create or load another one", session_id=state.session_id)


# -- small rules ---------------------------------------------------------------------------------------------


def _create(draft: Draft, input: inputs.CreateSession) -> None:
    draft.record(
        ev.SessionCreated(
            at=input.at,
            session_id=input.session_id,
            cwd=input.cwd,
            mcp_servers=input.setup.mcp_servers,
            fork_of=input.fork_of,
            title=input.title,
            author=input.author,
            client_id=input.client_id,
            additional_directories=input.setup.additional_directories,
            meta=input.setup.meta,
            extra=input.setup.extra,
            agent_name=input.agent_name,
            context=input.context,
        )
    )


def _change_setup(draft: Draft, input: inputs.ChangeSetup) -> None:
    setup = input.setup
    if setup != draft.state.setup:
        draft.record(
            ev.SetupChanged(
                at=input.at,
                mcp_servers=setup.mcp_servers,
                additional_directories=setup.additional_directories,
                meta=setup.meta,
                extra=setup.extra,
                author=input.author,
                client_id=input.client_id,
            )
        )


def _rename(draft: Draft, input: inputs.Rename) -> None:
    draft.record(ev.SessionRenamed(at=input.at, title=input.title, author=input.author))


def _archive(draft: Draft, input: inputs.Archive) -> None:
    if draft.state.archived != input.archived:
        event = ev.SessionArchived if input.archived else ev.SessionUnarchived
        draft.record(event(at=input.at, author=input.author, client_id=input.client_id))


def _mode_set(draft: Draft, input: inputs.ModeSet) -> None:
    draft.record(
        ev.ModeChanged(
            at=input.at,
            mode=input.mode,
            previous=input.previous,
            author=input.author,
            client_id=input.client_id,
            config_id=input.config_id,
        )
    )
    # Here and below, this follows the event: the event removes the choice from the lost ones, and the next turn
    # starts with it.
    queue.release_if_chosen(draft, input)


def _model_set(draft: Draft, input: inputs.ModelSet) -> None:
    draft.record(
        ev.ModelSwitched(
            at=input.at,
            model_id=input.model_id,
            previous=input.previous,
            author=input.author,
            client_id=input.client_id,
            config_id=input.config_id,
        )
    )
    queue.release_if_chosen(draft, input)


def _option_chosen(draft: Draft, input: inputs.OptionChosen) -> None:
    chosen = ev.OptionSet(
        at=input.at,
        config_id=input.config_id,
        value=input.value,
        author=input.author,
        client_id=input.client_id,
    )
    draft.record(chosen)
    queue.release_if_chosen(draft, input)


def _attach(draft: Draft, input: inputs.Attach) -> None:
    if draft.state.clients.get(input.client_id) != input.role:
        draft.record(
            ev.ClientAttached(at=input.at, client_id=input.client_id, role=input.role, author=input.author)
        )


def _detach(draft: Draft, input: inputs.Detach) -> None:
    if input.client_id in draft.state.clients:
        draft.record(ev.ClientDetached(at=input.at, client_id=input.client_id, reason=input.reason))


def _prompt(draft: Draft, input: inputs.Prompt) -> queue.Accepted:
    # Read first: a turn that `admit` starts itself must not be interrupted.
    running = draft.state.turn
    accepted = queue.admit(draft, input)
    # Interrupt after `admit`: a rejected prompt interrupts nothing, and an accepted one is queued when the turn
    # ends.
    if input.when_busy is inputs.WhenBusy.INTERRUPT and running is not None and not accepted.repeated:
        ending.ask_cancel(draft, input, running)
    if draft.state.archived and not accepted.repeated:
        draft.record(ev.SessionUnarchived(at=input.at, author=input.author, client_id=input.client_id))
    return accepted


def _close(draft: Draft, input: inputs.Close) -> None:
    if draft.state.phase is Phase.OPEN:
        ending.close(draft, input)


_DECISIONS: dict[type[inputs.Input], Callable[[Draft, Any], object]] = {
    inputs.CreateSession: _create,
    inputs.ChangeSetup: _change_setup,
    inputs.Prompt: _prompt,
    inputs.UpdatePrompt: queue.update,
    inputs.RemovePrompt: queue.remove_waiting,
    inputs.Cancel: ending.cancel,
    inputs.CancelChild: children.cancel,
    inputs.AnswerPermission: permissions.answer,
    inputs.Settle: ending.settle,
    inputs.HoldQueue: queue.hold,
    inputs.ReleaseQueue: queue.release,
    inputs.ModeSet: _mode_set,
    inputs.ModelSet: _model_set,
    inputs.OptionChosen: _option_chosen,
    inputs.Rename: _rename,
    inputs.Archive: _archive,
    inputs.Attach: _attach,
    inputs.Detach: _detach,
    inputs.Close: _close,
    inputs.AgentReady: speech.started,
    inputs.AgentUpdate: speech.update,
    inputs.AgentPieces: speech.pieces,
    inputs.AgentHasPrompt: speech.asked,
    inputs.AgentReplayed: speech.replayed,
    inputs.AgentAnswered: speech.answered,
    inputs.AgentRefused: speech.refused,
    inputs.AgentAsks: permissions.ask,
    inputs.AgentWithdraws: permissions.withdraw,
    inputs.SteerAnswered: queue.steer_answered,
    inputs.AgentGone: ending.lose_agent,
    inputs.DeadlinePassed: ending.deadline_passed,
    inputs.AnswerOverdue: speech.answer_overdue,
    inputs.TimeLimitPassed: ending.time_limit_passed,
    inputs.ChoicesTold: ending.choices_told,
    inputs.Recover: ending.recover,
    inputs.Adopt: adoption.adopt,
}
"""One rule per kind of input; a test checks that it is complete."""
