"""Which nodes share the log: this one shows that it lives, watches the others, and knows until when it may act.

Theory of operation
-------------------
Each life of a node beats: it adds one to a counter in its row of the log. Each watches the counters of all others,
and one that stands still for long enough is declared gone, for good; then anybody may take over what it owned. What
is hard is that a node which cannot beat still runs, with its agents. So it must have stopped before anybody may
declare it gone, though neither can ask the other. No clock of another machine is read; what is assumed is that
steady clocks run at nearly the same rate. And a log that is away for all should stop nobody: then no one can watch.

N1  A watcher declares a life gone only if it has reached the log again and again for `lease_s` on one connection
    and has seen the same counter all that time. When its connection breaks it forgets what it saw.
N2  A node acts until `safe_until`: `self_s` after the beginning of its last beat, or of the last time when every
    life that it knows of said to be cut off from the log. Then nobody can be watching (N1). Whatever others say, it
    stops before `outage_s` are over since its last beat. An answer that comes after `safe_until` is too late.
N3  A node knows whom it has looked up, and it looks before it beats. So a watcher that has seen a life beat twice
    is known to that life. One that has not waits for `outage_s` instead of `lease_s`.
N4  A beat of a life that is gone is refused. The node stops its agents, and comes back as another life.
N5  A watcher that has asked to declare somebody gone and was not answered does not call itself cut off before it
    has beaten again. What it asked names its own beat and locks its own row, so it cannot happen after that beat.

`Lease` decides; it is told of what happens and of the time, and does nothing. `Members` does it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple

import anyio

from turnwire.errors import LifeOver, LogError, TurnwireError
from turnwire.limits import Limits
from turnwire.log.owners import Life, Owners
from turnwire.runtime.clock import Clock

logger = logging.getLogger(__name__)

_KNOWS_US_AFTER = 2
"""Beats of a life after which it has looked us up (N3)."""


class Sight(Enum):
    """How a watcher stands to the log."""

    CLEAR = auto()
    ASKING = auto()
    """It has asked to declare somebody gone."""
    CUT = auto()
    """It cannot reach the log, and has forgotten what it saw."""
    UNANSWERED = auto()
    """As before, but what it asked may still happen (N5)."""


AFTER_A_BREAK = {
    Sight.CLEAR: Sight.CUT,
    Sight.ASKING: Sight.UNANSWERED,
    Sight.CUT: Sight.CUT,
    Sight.UNANSWERED: Sight.UNANSWERED,
}


class _Seen(NamedTuple):
    beat: int
    since: float


class Lease:
    """The times of one life: until when it may act, and whom it may declare gone. Pure: it is told the time."""

    def __init__(self, limits: Limits, now: float) -> None:
        limits.check_leases()
        self._limits = limits
        self._stopping_s = limits.lease_s - limits.self_s
        """What stopping may take."""
        self.sight = Sight.CLEAR
        self.known: Sequence[Life] = ()
        """The others, as they were looked up last."""
        self.beaten_at = now
        """The beginning of the last beat."""
        self.safe_until = now + limits.self_s
        self._seen: dict[int, _Seen] = {}
        self._beats_seen: dict[int, int] = {}

    @property
    def is_cut(self) -> bool:
        """Whether this one may say to others that it watches nobody."""
        return self.sight is Sight.CUT

    def looked(self, others: Sequence[Life], now: float) -> None:
        """These are the others; `now` is after they were read."""
        self.known = others
        before, self._seen = self._seen, {}
        beats_before, self._beats_seen = self._beats_seen, {}
        for each in others:
            seen = before.get(each.number)
            beats = beats_before.get(each.number, 0)
            if seen is None or seen.beat != each.beat:
                # What moved while nobody looked may have moved before we were there.
                beats += seen is not None
                seen = _Seen(each.beat, now)
            self._seen[each.number] = seen
            self._beats_seen[each.number] = beats

    def beaten(self, began: float) -> None:
        """A beat was taken that began then, with the look before it."""
        self.sight = Sight.CLEAR
        self.beaten_at = began
        self.safe_until = max(self.safe_until, began + self._limits.self_s)

    def overdue(self, now: float) -> list[Life]:
        """Whom this one may declare gone (N1, N3)."""
        return [
            each
            for each in self.known
            if each.number in self._seen and now - self._seen[each.number].since >= self._patience_s(each.number)
        ]

    def _patience_s(self, life: int) -> float:
        knows_us = self._beats_seen[life] >= _KNOWS_US_AFTER
        return self._limits.lease_s if knows_us else self._limits.outage_s

    def asking(self) -> None:
        """It is about to ask that somebody be declared gone."""
        self.sight = Sight.ASKING

    def answered(self) -> None:
        """What it asked was done, or was not."""
        self.sight = Sight.CLEAR

    def broke(self) -> None:
        """The log was not reached."""
        self.sight = AFTER_A_BREAK[self.sight]
        self._seen.clear()

    def others_are_cut(self, asked_at: float) -> None:
        """All that are known said so, when they were asked then (N2)."""
        at_most = self.beaten_at + self._limits.outage_s - self._stopping_s
        self.safe_until = max(self.safe_until, min(asked_at + self._limits.self_s, at_most))


class MemberPorts(NamedTuple):
    """Who hears of what the beat of a node finds out."""

    renewed: Callable[[float], object]
    """The node may act until then, in the time of `now`."""
    lost: Callable[[str], object]
    """The node may not act any more, and why. Called once."""
    drain: Callable[[], object]
    """Somebody has asked for its end in good order."""


async def _nobody_answers(life: Life) -> bool:
    return False


def _nobody_hears(life: int) -> None:
    """What others owned is found all the same, a little later."""


class Members:
    """The beat of one life. `run` is its only task; it ends when the life does."""

    def __init__(
        self, owners: Owners, clock: Clock, limits: Limits, ports: MemberPorts, now: Callable[[], float]
    ) -> None:
        """`now`: seconds that go on while the machine sleeps."""
        self._owners = owners
        self._clock = clock
        self._limits = limits
        self._ports = ports
        self._now = now
        self._lease = Lease(limits, now())
        self._missed_since: float | None = None
        self.asks: Callable[[Life], Awaitable[bool]] = _nobody_answers
        """Asks another life whether it is cut off from the log. May raise `TurnwireError`, and may be cancelled.
        Whoever has links to the others sets it."""
        self.gone: Callable[[int], object] = _nobody_hears
        """Hears that a life was declared gone: what it owned can be taken over."""
        self.why_lost: str | None = None
        self.beats = 0
        self.buried = 0
        """Lives that this one has declared gone."""

    @property
    def is_cut(self) -> bool:
        """What to answer to who asks whether this node is cut off from the log."""
        return self._lease.is_cut

    @property
    def others(self) -> Sequence[Life]:
        """The other lives, as they were looked up last."""
        return self._lease.known

    @property
    def beat_age_s(self) -> float:
        """How long ago the last beat was that was taken."""
        return self._now() - self._lease.beaten_at

    @property
    def missing_s(self) -> float:
        """For how long no beat has been taken though it was tried."""
        return 0.0 if self._missed_since is None else self._now() - self._missed_since

    async def run(self) -> None:
        """Beat, watch, and end when this life is over."""
        self._ports.renewed(self._lease.safe_until)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_in_time, tasks.cancel_scope)
            while self.why_lost is None:
                began = self._now()
                await self._beat(began)
                await self._clock.sleep(max(0.0, began + self._limits.beat_s - self._now()))
            tasks.cancel_scope.cancel()

    async def _beat(self, began: float) -> None:
        if self._is_too_late():
            # The machine slept, or this process did.
            return
        try:
            await self._look_and_beat(began)
        except LifeOver:
            self._lose("it was declared gone")
        except LogError as error:
            self._miss(began, error)
            await self._question()

    async def _look_and_beat(self, began: float) -> None:
        lives = await self._owners.lives()
        self._lease.looked([each for each in lives if each.number != self._owners.life], self._now())
        await self._owners.beat()
        if self._is_too_late():
            return
        if any(each.draining and each.number == self._owners.life for each in lives):
            self._ports.drain()
        self._lease.beaten(began)
        self._missed_since = None
        self.beats += 1
        self._ports.renewed(self._lease.safe_until)
        for each in self._lease.overdue(self._now()):
            self._lease.asking()
            is_gone = await self._owners.bury(each.number, each.beat)
            self._lease.answered()
            if is_gone:
                self.buried += 1
                logger.warning(
                    "a node is gone", extra={"event": "node_gone", "node": each.name, "life": each.number}
                )
                self.gone(each.number)

    def _miss(self, began: float, error: LogError) -> None:
        self._lease.broke()
        if self._missed_since is None:
            self._missed_since = began
            logger.warning("a beat was not taken", extra={"event": "beat_missed", "code": error.code})

    async def _question(self) -> None:
        asked_at = self._now()
        if await self._all_are_cut() and not self._is_too_late():
            self._lease.others_are_cut(asked_at)
            self._ports.renewed(self._lease.safe_until)

    async def _all_are_cut(self) -> bool:
        said: list[bool] = []

        async def ask(life: Life) -> None:
            try:
                said.append(await self.asks(life))
            except TurnwireError:
                said.append(False)

        others = self._lease.known
        with anyio.move_on_after(self._limits.beat_s):
            async with anyio.create_task_group() as asking:
                for each in others:
                    asking.start_soon(ask, each)
        return len(said) == len(others) and all(said)

    def _is_too_late(self) -> bool:
        """Whether its time is over. What is answered then renews nothing: the guards have ended the agents."""
        if self._now() >= self._lease.safe_until:
            self._lose("it could not reach the log in time")
        return self.why_lost is not None

    async def _stop_in_time(self, running: anyio.CancelScope) -> None:
        while (left := self._lease.safe_until - self._now()) > 0:
            await self._clock.sleep(left)
        self._lose("it could not reach the log in time")
        running.cancel()

    def _lose(self, why: str) -> None:
        if self.why_lost is None:
            self.why_lost = why
            logger.error("this node stops acting: %s", why, extra={"event": "node_lost"})
            self._ports.lost(why)
