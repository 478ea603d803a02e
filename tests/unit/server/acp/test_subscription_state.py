"""The table of a subscription, pair by pair: allowed steps lead to the stated state, all others are rejected."""

from __future__ import annotations

import pytest

from turnwire.errors import LocalProtocolError
from turnwire.server.acp.subscription import (
    ATTACHED,
    NEXT,
    PAUSED,
    READABLE,
    UNANSWERED,
    Signal,
    SubscriptionState,
    step,
)

STATES = frozenset(SubscriptionState)
RESTING = STATES - {SubscriptionState.ANSWER}
"""The states that a subscription can stay in; the answer is put out without a wait."""


def ways(signal: Signal) -> dict[SubscriptionState, SubscriptionState]:
    """From where to where a signal leads."""
    return {state: row[signal] for state, row in NEXT.items() if signal in row}


@pytest.mark.parametrize("state", SubscriptionState)
def test_every_pair_follows_the_table_or_is_refused(state: SubscriptionState) -> None:
    for signal in Signal:
        if signal in NEXT[state]:
            assert step(state, signal) is NEXT[state][signal]
            continue
        with pytest.raises(LocalProtocolError) as refusal:
            step(state, signal)
        assert refusal.value.context == {"state": state.value, "event": signal.value}


def test_the_table_has_a_row_for_every_state() -> None:
    assert set(NEXT) == STATES


def test_each_state_is_reached_from_detached() -> None:
    reached, todo = set[SubscriptionState](), {SubscriptionState.DETACHED}
    while todo:
        reached |= todo
        todo = {after for state in todo for after in NEXT[state].values()} - reached
    assert reached == STATES


def test_the_answer_comes_once_and_behind_the_history() -> None:
    assert ways(Signal.TOLD) == {SubscriptionState.HISTORY: SubscriptionState.ANSWER}
    assert ways(Signal.ANSWERED) == {SubscriptionState.ANSWER: SubscriptionState.GATE}
    assert {state for state, row in NEXT.items() if SubscriptionState.ANSWER in row.values()} == {
        SubscriptionState.HISTORY
    }


def test_what_is_now_is_told_once_and_behind_the_answer() -> None:
    assert ways(Signal.GREETED) == {SubscriptionState.GATE: SubscriptionState.LIVE}


@pytest.mark.parametrize("state", sorted(RESTING))
def test_a_pause_leads_back_to_where_it_began(state: SubscriptionState) -> None:
    paused = step(state, Signal.PAUSED)
    assert step(paused, Signal.PAUSED) is paused
    assert step(paused, Signal.RESUMED) is step(state, Signal.RESUMED)
    if state not in PAUSED:
        assert step(paused, Signal.RESUMED) is state


@pytest.mark.parametrize("state", sorted(RESTING - {SubscriptionState.OVER}))
def test_opened_anew_a_session_begins_anew_and_closed_it_is_left(state: SubscriptionState) -> None:
    assert step(state, Signal.OPENED) is SubscriptionState.HISTORY
    assert step(state, Signal.CLOSED) is SubscriptionState.DETACHED
    assert step(state, Signal.ENDED) is SubscriptionState.OVER


def test_nothing_leaves_over() -> None:
    assert set(NEXT[SubscriptionState.OVER].values()) == {SubscriptionState.OVER}


def test_a_paused_reader_is_given_nothing_and_is_still_attached() -> None:
    assert not PAUSED & READABLE
    assert ATTACHED == PAUSED | READABLE == STATES - {SubscriptionState.DETACHED, SubscriptionState.OVER}
    assert {step(state, Signal.PAUSED) for state in READABLE & RESTING} == PAUSED


def test_who_is_unanswered_is_answered_before_anything_new() -> None:
    assert {state for state in ATTACHED - UNANSWERED if Signal.ANSWERED in NEXT[state]} == set()
    assert {NEXT[state].get(Signal.RESUMED, state) for state in UNANSWERED} <= UNANSWERED
