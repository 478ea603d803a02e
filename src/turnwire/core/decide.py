"""Decide: a state and one input give a plan, or a refusal that changed nothing.

Takes a `SessionState` and an input; gives events to store, effects to perform and the answer for whoever
asked. Never stores, sends or waits. The table below is the whole dispatch; each rule lives in the module that
is named after its concept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from turnwire.core import ending, permissions, queue, recovery, speech
from turnwire.core import events as ev
from turnwire.core import inputs as given_
from turnwire.core.draft import Draft
from turnwire.core.effects import AnyEffect
from turnwire.core.state import Phase, SessionState
from turnwire.errors import SessionClosed, SessionNotFound, TurnwireError
from turnwire.limits import Limits


class Plan(NamedTuple):
    """What follows from an input."""

    events: tuple[ev.AnyEvent, ...]
    effects: tuple[AnyEffect, ...]
    answer: object
    state: SessionState
    """The state once the events are stored."""


def decide(state: SessionState, given: given_.AnyInput, *, offset: int, limits: Limits) -> Plan:
    """What follows from `given`. Raises a `TurnwireError` for the asker; then nothing has changed."""
    draft = Draft(state, offset, limits)
    answer = take(draft, given)
    return Plan(tuple(draft.events), tuple(draft.effects), answer, draft.state)


def take(draft: Draft, given: given_.AnyInput) -> object:
    """`decide` for one input of a batch: what it adds to `draft` is whole or nothing."""
    state, events, effects = draft.state, len(draft.events), len(draft.effects)
    try:
        if draft.state.phase is not Phase.OPEN:
            _check_phase(draft.state, given)
        return _DECISIONS[type(given)](draft, given)
    except TurnwireError:
        draft.rewind(state, events, effects)
        raise


_TO_A_CLOSED_SESSION = (
    given_.Close,
    given_.Detach,
    given_.Cancel,
    given_.Recover,
    given_.AgentUpdate,
    given_.AgentHasPrompt,
    given_.AgentReplayed,
    given_.AgentAnswered,
    given_.AgentRefused,
    given_.AgentGone,
    given_.AgentWithdraws,
    given_.SteerAnswered,
    given_.DeadlinePassed,
    given_.TimeLimitPassed,
)
"""Inputs that a closed session still takes: harmless repeats, and the agent's last words."""


def _check_phase(state: SessionState, given: given_.AnyInput) -> None:
    if state.phase is Phase.NEW and not isinstance(given, given_.CreateSession):
        raise SessionNotFound("the session has not been created")
    if state.phase is Phase.CLOSED and not isinstance(given, _TO_A_CLOSED_SESSION):
        raise SessionClosed("the session is closed; create or load another one", session_id=state.session_id)


# -- what is too small for a module of its own ---------------------------------------------------------------


def _create(draft: Draft, given: given_.CreateSession) -> None:
    draft.record(
        ev.SessionCreated(
            at=given.at,
            session_id=given.session_id,
            cwd=given.cwd,
            mcp_servers=given.setup.mcp_servers,
            fork_of=given.fork_of,
            title=given.title,
            author=given.author,
            client_id=given.client_id,
            additional_directories=given.setup.additional_directories,
            meta=given.setup.meta,
        )
    )


def _change_setup(draft: Draft, given: given_.ChangeSetup) -> None:
    setup = given.setup
    if setup != draft.state.setup:
        draft.record(
            ev.SetupChanged(
                at=given.at,
                mcp_servers=setup.mcp_servers,
                additional_directories=setup.additional_directories,
                meta=setup.meta,
                author=given.author,
                client_id=given.client_id,
            )
        )


def _rename(draft: Draft, given: given_.Rename) -> None:
    draft.record(ev.SessionRenamed(at=given.at, title=given.title, author=given.author))


def _mode_set(draft: Draft, given: given_.ModeSet) -> None:
    draft.record(
        ev.ModeChanged(
            at=given.at,
            mode=given.mode,
            previous=given.previous,
            author=given.author,
            client_id=given.client_id,
        )
    )


def _model_set(draft: Draft, given: given_.ModelSet) -> None:
    draft.record(
        ev.ModelSwitched(
            at=given.at,
            model_id=given.model_id,
            previous=given.previous,
            author=given.author,
            client_id=given.client_id,
        )
    )


def _attach(draft: Draft, given: given_.Attach) -> None:
    if draft.state.clients.get(given.client_id) != given.role:
        draft.record(
            ev.ClientAttached(at=given.at, client_id=given.client_id, role=given.role, author=given.author)
        )


def _detach(draft: Draft, given: given_.Detach) -> None:
    if given.client_id in draft.state.clients:
        draft.record(ev.ClientDetached(at=given.at, client_id=given.client_id, reason=given.reason))


def _prompt(draft: Draft, given: given_.Prompt) -> queue.Accepted:
    running = draft.state.turn
    accepted = queue.admit(draft, given)
    if given.when_busy is given_.WhenBusy.INTERRUPT and running is not None and not accepted.repeated:
        ending.ask_cancel(draft, given, running)
    return accepted


def _close(draft: Draft, given: given_.Close) -> None:
    if draft.state.phase is Phase.OPEN:
        ending.close(draft, given)


_DECISIONS: dict[type[given_.Input], Callable[[Draft, Any], object]] = {
    given_.CreateSession: _create,
    given_.ChangeSetup: _change_setup,
    given_.Prompt: _prompt,
    given_.UpdatePrompt: queue.update,
    given_.RemovePrompt: queue.remove_waiting,
    given_.Cancel: ending.cancel,
    given_.AnswerPermission: permissions.answer,
    given_.Settle: ending.settle,
    given_.HoldQueue: queue.hold,
    given_.ReleaseQueue: queue.release,
    given_.ModeSet: _mode_set,
    given_.ModelSet: _model_set,
    given_.Rename: _rename,
    given_.Attach: _attach,
    given_.Detach: _detach,
    given_.Close: _close,
    given_.AgentReady: speech.started,
    given_.AgentUpdate: speech.update,
    given_.AgentHasPrompt: speech.asked,
    given_.AgentReplayed: speech.replayed,
    given_.AgentAnswered: speech.answered,
    given_.AgentRefused: speech.refused,
    given_.AgentAsks: permissions.ask,
    given_.AgentWithdraws: permissions.withdraw,
    given_.SteerAnswered: queue.steer_answered,
    given_.AgentGone: ending.lose_agent,
    given_.DeadlinePassed: ending.deadline_passed,
    given_.TimeLimitPassed: ending.time_limit_passed,
    given_.Recover: recovery.recover,
}
"""One rule per kind of input; a test holds it complete."""
