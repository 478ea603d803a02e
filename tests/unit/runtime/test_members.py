"""N1 to N5: the end of a node's right to act, failure detection, and reports of an unreachable log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from turnwire.errors import ConfigError, LifeOver, LinkBroken, LogUnavailable
from turnwire.limits import Limits
from turnwire.log.base import EventLog
from turnwire.log.memory import MemoryEventLog
from turnwire.log.owners import Life, SoleOwner
from turnwire.runtime.members import AFTER_A_BREAK, Lease, MemberPorts, Members, Sight
from turnwire_testing import ManualClock
from turnwire_testing.patience import quiet

LIMITS = Limits()
OWN, OTHER, THIRD = 1, 2, 3


def life(number: int, beat: int) -> Life:
    return Life(number, f"n{number}", "p", f"ws://n{number}", "s", "1", beat, False)


def lease_that_watches(*, beats: int = 2) -> Lease:
    """Return a lease at time 0 that has seen another node beat a number of times, which is silent from then on."""
    lease = Lease(LIMITS, -beats - 1.0)
    for number in range(beats + 1):
        lease.looked([life(OTHER, number)], number - beats)
        lease.beaten(number - beats)
    return lease


# -- what a lease decides --------------------------------------------------------------------------------------


def test_who_stands_still_for_the_lease_is_overdue() -> None:
    lease = lease_that_watches()
    lease.looked([life(OTHER, 2)], 7.9)
    assert lease.overdue(7.9) == []
    lease.looked([life(OTHER, 2)], 8.0)
    assert lease.overdue(8.0) == [life(OTHER, 2)]
    lease.looked([life(OTHER, 3)], 8.1)
    assert lease.overdue(8.1) == []


def test_who_was_not_seen_to_beat_twice_may_not_know_its_watcher_and_gets_the_time_of_an_outage() -> None:
    lease = lease_that_watches(beats=1)
    lease.looked([life(OTHER, 1)], 299.0)
    assert lease.overdue(299.0) == []
    assert lease.overdue(300.0) == [life(OTHER, 1)]


def test_a_watcher_whose_connection_broke_begins_anew() -> None:
    lease = lease_that_watches()
    lease.broke()
    assert lease.overdue(100.0) == []
    lease.looked([life(OTHER, 2)], 100.0)
    assert lease.overdue(107.9) == []
    assert lease.overdue(108.0) == [life(OTHER, 2)]


def test_who_is_gone_is_watched_no_more() -> None:
    lease = lease_that_watches()
    lease.looked([], 9.0)
    assert lease.overdue(9.0) == []


def test_a_node_acts_for_a_while_after_the_beginning_of_its_beat() -> None:
    lease = Lease(LIMITS, 10.0)
    assert lease.safe_until == 15.5
    lease.beaten(12.0)
    assert lease.safe_until == 17.5
    lease.beaten(11.0)
    assert lease.safe_until == 17.5, "never back"


def test_while_all_are_cut_off_nobody_stops_before_the_outage_is_over() -> None:
    lease = Lease(LIMITS, 0.0)
    lease.broke()
    lease.others_are_cut(4.0)
    assert lease.safe_until == 9.5
    lease.others_are_cut(299.0)
    assert lease.safe_until == 297.5, "early enough for who waits for the outage"


@pytest.mark.parametrize("sight", list(Sight))
def test_what_was_asked_and_not_answered_keeps_a_watcher_from_calling_itself_cut_off(sight: Sight) -> None:
    lease = Lease(LIMITS, 0.0)
    lease.sight = sight
    lease.broke()
    assert lease.sight is AFTER_A_BREAK[sight]
    assert lease.is_cut is (sight in (Sight.CLEAR, Sight.CUT))
    lease.broke()
    assert lease.is_cut is (sight in (Sight.CLEAR, Sight.CUT)), "until it has beaten again"
    lease.beaten(1.0)
    lease.broke()
    assert lease.is_cut


def test_limits_with_which_a_node_would_act_too_long_are_refused() -> None:
    with pytest.raises(ConfigError, match="self_s must be less than lease_s"):
        Lease(Limits(self_s=9.0), 0.0)


# -- what a node does ------------------------------------------------------------------------------------------


class Owners(SoleOwner):
    """A log that can be unavailable."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(log)
        self.beats = {OTHER: 0}
        self.gone: set[int] = set()
        self.is_away = False
        self.asked: list[tuple[int, int]] = []
        self.is_answered = True
        self.is_draining = False
        self.stalls: Callable[[], None] = lambda: None

    async def lives(self) -> list[Life]:
        self._reach()
        return [
            life(OWN, 0)._replace(draining=self.is_draining),
            *(life(each, beat) for each, beat in self.beats.items() if each not in self.gone),
        ]

    async def beat(self) -> int:
        self._reach()
        self.stalls()
        if OWN in self.gone:
            raise LifeOver("gone")
        return 1

    async def bury(self, life: int, beat: int) -> bool:
        self._reach()
        self.asked.append((life, beat))
        if not self.is_answered:
            raise LogUnavailable("away")
        self.gone.add(life)
        return True

    def _reach(self) -> None:
        if self.is_away:
            raise LogUnavailable("away")


@dataclass
class Rig:
    clock: ManualClock
    owners: Owners
    cut: dict[int, bool] = field(default_factory=dict[int, bool])
    gone: list[int] = field(default_factory=list[int])
    lost: list[str] = field(default_factory=list[str])
    drained: list[bool] = field(default_factory=list[bool])
    safe_until: float = 0.0
    members: Members = field(init=False)

    def __post_init__(self) -> None:
        ports = MemberPorts(self.renew, self.lost.append, lambda: self.drained.append(True))
        self.members = Members(self.owners, self.clock, Limits(outage_s=20), ports, self.clock.monotonic)

        self.members.asks, self.members.gone = self.is_cut, self.gone.append

    async def is_cut(self, life: Life) -> bool:
        if life.number not in self.cut:
            raise LinkBroken("no answer")
        return self.cut[life.number]

    def renew(self, until: float) -> None:
        self.safe_until = until

    async def passes(self, seconds: float, *, others_beat: bool = True) -> None:
        """Time, a beat at a time."""
        for _ in range(round(seconds / LIMITS.beat_s)):
            if others_beat and not self.owners.is_away:
                self.owners.beats = {each: beat + 1 for each, beat in self.owners.beats.items()}
            self.clock.advance(LIMITS.beat_s)
            await quiet()


@asynccontextmanager
async def running() -> AsyncGenerator[Rig]:
    rig = Rig(ManualClock(), Owners(MemoryEventLog()))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.members.run)
        await quiet()
        yield rig
        tasks.cancel_scope.cancel()


pytestmark = pytest.mark.anyio


async def test_a_node_beats_and_tells_until_when_it_may_act() -> None:
    async with running() as rig:
        assert (rig.members.beats, rig.safe_until) == (1, 5.5)
        await rig.passes(3)
        assert (rig.members.beats, rig.safe_until) == (4, 8.5)
        assert [each.number for each in rig.members.others] == [OTHER]
        assert rig.members.beat_age_s == rig.members.missing_s == 0.0
        assert not rig.members.is_cut


async def test_a_node_that_stands_still_is_declared_gone_once() -> None:
    async with running() as rig:
        await rig.passes(3)
        await rig.passes(7, others_beat=False)
        assert rig.gone == []
        await rig.passes(3, others_beat=False)
        assert rig.gone == [OTHER]
        assert rig.owners.asked == [(OTHER, 3)]
        assert rig.members.buried == 1


async def test_a_node_that_others_do_not_confirm_to_be_cut_off_stops_in_time() -> None:
    async with running() as rig:
        await rig.passes(2)
        rig.owners.is_away = True
        await rig.passes(5)
        assert rig.members.is_cut
        assert rig.members.missing_s == 4.0
        assert rig.lost == []
        await rig.passes(1)
        assert rig.lost == ["it could not reach the log in time"]
        assert rig.members.why_lost is not None


async def test_a_node_that_another_one_says_is_not_cut_off_stops_too() -> None:
    async with running() as rig:
        rig.cut = {OTHER: False}
        await rig.passes(2)
        rig.owners.is_away = True
        await rig.passes(6)
        assert rig.lost


async def test_while_the_log_is_away_for_all_a_node_goes_on_until_the_outage_is_over() -> None:
    async with running() as rig:
        rig.cut = {OTHER: True, THIRD: True}
        rig.owners.beats[THIRD] = 0
        await rig.passes(2)
        rig.owners.is_away = True
        await rig.passes(12)
        assert not rig.lost
        rig.owners.is_away = False
        await rig.passes(1)
        assert not rig.members.is_cut
        assert rig.members.missing_s == 0.0
        rig.owners.is_away = True
        await rig.passes(17)
        assert not rig.lost
        await rig.passes(1)
        assert rig.lost


async def test_one_that_does_not_answer_may_be_watching() -> None:
    async with running() as rig:
        rig.cut = {OTHER: True}
        rig.owners.beats[THIRD] = 0
        await rig.passes(2)
        rig.owners.is_away = True
        await rig.passes(6)
        assert rig.lost


async def test_a_node_that_was_declared_gone_stops_with_its_next_beat() -> None:
    async with running() as rig:
        await rig.passes(2)
        rig.owners.gone.add(OWN)
        await rig.passes(1)
        assert rig.lost == ["it was declared gone"]
        beats = rig.members.beats
        await rig.passes(3)
        assert (rig.members.beats, len(rig.lost)) == (beats, 1)


async def test_who_was_not_answered_when_it_asked_for_a_burial_does_not_call_itself_cut_off() -> None:
    async with running() as rig:
        await rig.passes(3)
        rig.owners.is_answered = False
        await rig.passes(8, others_beat=False)
        assert rig.owners.asked
        assert not rig.members.is_cut
        rig.owners.is_away = True
        await rig.passes(1)
        assert not rig.members.is_cut


async def test_a_node_hears_that_somebody_asks_for_its_end() -> None:
    async with running() as rig:
        rig.owners.is_draining = True
        assert rig.drained == []
        await rig.passes(1)
        assert rig.drained == [True]
        assert not rig.lost


async def test_a_machine_that_slept_stops_before_it_does_anything_else() -> None:
    async with running() as rig:
        await rig.passes(1)
        rig.clock.advance(3600)
        await quiet()
        assert rig.lost == ["it could not reach the log in time"]
        assert rig.members.beats == 2


async def test_a_beat_that_is_answered_after_its_time_is_too_late_because_the_guards_have_ended_the_agents() -> (
    None
):
    async with running() as rig:
        await rig.passes(2)
        assert rig.safe_until == 7.5
        rig.owners.stalls = lambda: rig.clock.advance(5)
        await rig.passes(1)
        assert rig.lost == ["it could not reach the log in time"]
        assert rig.safe_until == 7.5
