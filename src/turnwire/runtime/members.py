"""Membership of the nodes that share a log: heartbeats, detection of dead nodes, and the lease of this node.

Theory of operation
-------------------
Each incarnation of a node beats: it increments a counter in its row of the log. Each node watches the counters of
all others. A counter that does not change for long enough is declared dead, permanently; then any node may take
over its sessions. The difficulty is that a node which cannot beat still runs, with its agents. So it must have
stopped before any node may declare it dead, though neither can ask the other. No clock of another machine is read;
the only assumption is that monotonic clocks run at nearly the same rate. A log that is unavailable to all nodes
should stop none of them: then no node can watch.

N1  A watcher declares an incarnation dead only if it has reached the log repeatedly for `lease_s` on one connection
    and has seen the same counter all that time. When its connection breaks it discards its observations.
N2  A node acts until `safe_until`: `self_s` after the beginning of its last beat, or of the last time when every
    incarnation it knows reported being cut off from the log. Then no node can be watching (N1). Whatever the others
    report, it stops before `outage_s` have passed since its last beat. An answer after `safe_until` is too late.
N3  A node knows the incarnations it has looked up, and it looks before it beats. So a watcher that has seen an
    incarnation beat twice is known to it. Otherwise the watcher waits for `outage_s` instead of `lease_s`.
N4  A beat of a dead incarnation is rejected. The node stops its agents and returns as a new incarnation.
N5  A watcher whose request to declare a node dead was not answered does not report itself cut off before it has
    beaten again. The request names the watcher's beat and locks its row, so it cannot take effect after that beat.

`Lease` decides; it receives events and the time, and has no side effects. `Members` acts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple

import anyio

from turnwire.clock import Clock
from turnwire.errors import LifeOver, LogError, TurnwireError
from turnwire.limits import Limits
from turnwire.log.owners import Life, Owners

logger = logging.getLogger(__name__)

_KNOWS_US_AFTER = 2
"""Beats of an incarnation after which it has looked this node up (N3)."""


class Sight(Enum):
    """A watcher's view of the log."""

    CLEAR = auto()
    ASKING = auto()
    """It has asked to declare a node dead."""
    CUT = auto()
    """It cannot reach the log, and has discarded its observations."""
    UNANSWERED = auto()
    """As `CUT`, but its last request may still take effect (N5)."""


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
    """The times of one incarnation: until when it may act, and which others it may declare dead.

    Pure: the caller passes the time.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        limits.check_leases()
        self._limits = limits
        self._stopping_s = limits.lease_s - limits.self_s
        """Time allowed for stopping."""
        self.sight = Sight.CLEAR
        self.known: Sequence[Life] = ()
        """The other incarnations, as of the last look."""
        self.beaten_at = now
        """The beginning of the last beat."""
        self.safe_until = now + limits.self_s
        self._seen: dict[int, _Seen] = {}
        self._beats_seen: dict[int, int] = {}

    @property
    def is_cut(self) -> bool:
        """True if this node may report to others that it watches none of them."""
        return self.sight is Sight.CUT

    def looked(self, others: Sequence[Life], now: float) -> None:
        """Record a look at the other incarnations; `now` is after they were read."""
        self.known = others
        before, self._seen = self._seen, {}
        beats_before, self._beats_seen = self._beats_seen, {}
        for each in others:
            seen = before.get(each.number)
            beats = beats_before.get(each.number, 0)
            if seen is None or seen.beat != each.beat:
                # The first counter seen after a gap proves nothing: it may have changed before this node looked.
                beats += seen is not None
                seen = _Seen(each.beat, now)
            self._seen[each.number] = seen
            self._beats_seen[each.number] = beats

    def beaten(self, began: float) -> None:
        """A beat succeeded. It began at `began`, together with the look before it."""
        self.sight = Sight.CLEAR
        self.beaten_at = began
        self.safe_until = max(self.safe_until, began + self._limits.self_s)

    def overdue(self, now: float) -> list[Life]:
        """Return the incarnations that this node may declare dead (N1, N3)."""
        return [
            each
            for each in self.known
            if each.number in self._seen and now - self._seen[each.number].since >= self._patience_s(each.number)
        ]

    def _patience_s(self, life: int) -> float:
        knows_us = self._beats_seen[life] >= _KNOWS_US_AFTER
        return self._limits.lease_s if knows_us else self._limits.outage_s

    def asking(self) -> None:
        """This node is about to ask that another be declared dead."""
        self.sight = Sight.ASKING

    def answered(self) -> None:
        """The request was answered, with success or not."""
        self.sight = Sight.CLEAR

    def broke(self) -> None:
        """The log could not be reached."""
        self.sight = AFTER_A_BREAK[self.sight]
        self._seen.clear()

    def others_are_cut(self, asked_at: float) -> None:
        """All known incarnations reported being cut off, when asked at `asked_at` (N2)."""
        at_most = self.beaten_at + self._limits.outage_s - self._stopping_s
        self.safe_until = max(self.safe_until, min(asked_at + self._limits.self_s, at_most))


class MemberPorts(NamedTuple):
    """Callbacks for the results of a node's heartbeat."""

    renewed: Callable[[float], object]
    """Called with the time, in terms of `now`, until which the node may act."""
    lost: Callable[[str], object]
    """Called once, with the reason, when the node may not act any more."""
    drain: Callable[[], object]
    """A graceful shutdown of this node was requested."""


async def _nobody_answers(life: Life) -> bool:
    return False


def _nobody_hears(life: int) -> None:
    """Do nothing: the sessions of a dead node are found anyway, a little later."""


class Members:
    """The heartbeat of one incarnation. `run` is its only task; it ends when the incarnation does."""

    def __init__(
        self, owners: Owners, clock: Clock, limits: Limits, ports: MemberPorts, now: Callable[[], float]
    ) -> None:
        """`now`: a clock in seconds that advances while the machine sleeps."""
        self._owners = owners
        self._clock = clock
        self._limits = limits
        self._ports = ports
        self._now = now
        self._lease = Lease(limits, now())
        self._missed_since: float | None = None
        self.asks: Callable[[Life], Awaitable[bool]] = _nobody_answers
        """Asks another incarnation if it is cut off from the log. May raise `TurnwireError`, and may be cancelled.
        Set by the owner of the links to other nodes.
        """
        self.gone: Callable[[int], object] = _nobody_hears
        """Called when an incarnation was declared dead and its sessions can be taken over."""
        self.why_lost: str | None = None
        self.beats = 0
        self.buried = 0
        """Number of incarnations that this one has declared dead."""

    @property
    def is_cut(self) -> bool:
        """The answer to other nodes that ask if this node is cut off from the log."""
        return self._lease.is_cut

    @property
    def others(self) -> Sequence[Life]:
        """The other incarnations, as of the last look."""
        return self._lease.known

    @property
    def beat_age_s(self) -> float:
        """Seconds since the last successful beat."""
        return self._now() - self._lease.beaten_at

    @property
    def missing_s(self) -> float:
        """Seconds for which beats have failed."""
        return 0.0 if self._missed_since is None else self._now() - self._missed_since

    async def run(self) -> None:
        """Beat and watch; return when this incarnation is over."""
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
            # The machine slept, or this process was stopped.
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
        """Return true if the lease has expired. Later answers renew nothing: the guards have ended the agents."""
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
