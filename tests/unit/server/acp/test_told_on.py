"""The stream of a session: each combination of a client's readers selects one kind of stream, the right one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import pytest

from turnwire.server.acp.subscription import ATTACHED, UNANSWERED, SubscriptionState, ToldOn, told_on


class Case(NamedTuple):
    state: SubscriptionState
    is_merged: bool
    is_connection_read: bool
    has_own: bool
    is_carried: bool

    @property
    def told_on(self) -> ToldOn:
        state, *flags = self
        return told_on(state, **dict(zip(self._fields[1:], flags, strict=True)))


CASES = [Case(state, *flags) for state in SubscriptionState for flags in product([False, True], repeat=4)]


def those(found: Callable[[Case], bool]) -> set[ToldOn]:
    told = {case.told_on for case in CASES if found(case)}
    assert told, "there is such a case"
    return told


def test_streams_of_its_own_tell_it_unless_somebody_carries_it() -> None:
    assert those(lambda case: case.has_own and not case.is_carried) == {ToldOn.OWN}
    assert ToldOn.OWN not in those(lambda case: case.is_carried or not case.has_own)


def test_who_carries_it_goes_on_while_the_connection_is_read_and_ends_before_anybody_else_begins() -> None:
    assert those(lambda case: case.is_carried and not case.is_connection_read) == {ToldOn.HANDED_OVER}
    read = [case for case in CASES if case.is_carried and case.is_connection_read]
    for case in read:
        goes_on = case.is_merged or not case.has_own
        assert case.told_on is (ToldOn.CONNECTION if goes_on else ToldOn.HANDED_OVER)


def test_what_nobody_carries_is_never_handed_over() -> None:
    assert ToldOn.HANDED_OVER not in those(lambda case: not case.is_carried)


def test_a_connection_that_nobody_reads_tells_nothing() -> None:
    assert ToldOn.CONNECTION not in those(lambda case: not case.is_connection_read)


@pytest.mark.parametrize("state", SubscriptionState)
def test_one_stream_for_everything_tells_every_session_that_the_client_is_attached_to(
    state: SubscriptionState,
) -> None:
    case = Case(state, is_merged=True, is_connection_read=True, has_own=False, is_carried=False)
    assert case.told_on is (ToldOn.CONNECTION if state in ATTACHED else ToldOn.NOTHING)


@pytest.mark.parametrize("state", SubscriptionState)
def test_of_several_streams_the_connections_tells_only_what_the_client_waits_to_be_answered(
    state: SubscriptionState,
) -> None:
    case = Case(state, is_merged=False, is_connection_read=True, has_own=False, is_carried=False)
    assert case.told_on is (ToldOn.CONNECTION if state in UNANSWERED else ToldOn.NOTHING)
