"""Faults of a cluster in a fault run: one after the other, some at once, drawn from a seed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random

import anyio
from anyio import to_thread
from tests.cluster.network import Condition, FaultyRoute
from tests.cluster.nodes import LEASE, Cluster, Node
from tests.cluster.standbys import Standbys

LEAVE_S = 4.0
"""Timeout for a draining node."""


class Faults:
    """Disturbs a cluster until it is stopped."""

    def __init__(
        self,
        cluster: Cluster,
        random: Random,
        standbys: Standbys,
        pace: float = 1.0,
        lease: Mapping[str, float] = LEASE,
    ) -> None:
        """`pace`: how many times as long as usual it pauses between two faults. `lease`: that of the nodes."""
        self._pace = pace
        self._long_s = lease["lease_s"] * 1.8
        """Longer than the time until an invisible node is given up."""
        self._short_s = lease["self_s"] * 0.7
        """Shorter than the time a node tolerates without the database."""
        self._cluster = cluster
        self._random = random
        self._standbys = standbys
        self._is_database_at_rest = True
        self.done: Counter[str] = Counter()
        self._every: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "cut from the database": self._cut_database,
            "held up to the database": self._hold_database,
            "slow to the database": self._slow_database,
            "cut from the others": self._cut_others,
            "held up to the others": self._hold_others,
            "database killed": self._kill_database,
            "database away": self._database_away,
            "promotion": self._promote,
            "drain": self._drain,
            "rolling restart": self._roll,
        }

    async def run(self, seconds: float) -> None:
        """Each of them, in a new order each time, until the time is over; then nothing is disturbed any more."""
        with anyio.move_on_after(seconds):
            while True:
                names = self._random.sample(list(self._every), len(self._every))
                for name in names:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._one, name)
                        if self._random.random() < 0.25:
                            tasks.start_soon(self._one, self._random.choice(names))
                    await anyio.sleep(self._pace * self._random.uniform(0.1, 1.0))
        await to_thread.run_sync(self._cluster.heal)

    async def _one(self, name: str) -> None:
        self.done[name] += 1
        await self._every[name]()

    def _node(self) -> Node:
        return self._random.choice(self._cluster.nodes)

    def _for_how_long(self) -> float:
        return self._random.uniform(0.1, self._random.choice([self._short_s, self._long_s]))

    async def _kill(self) -> None:
        restart_s = self._for_how_long()
        self._node().kill(restart_s)
        await anyio.sleep(restart_s)

    async def _freeze(self) -> None:
        node = self._node()
        node.signal(signal.SIGSTOP)
        await anyio.sleep(self._for_how_long())
        node.signal(signal.SIGCONT)

    async def _disturb(self, route: FaultyRoute, condition: Condition) -> None:
        route.become(condition)
        await anyio.sleep(self._for_how_long())
        route.become(Condition.OPEN)

    async def _cut_database(self) -> None:
        await self._disturb(self._node().database, Condition.CUT)

    async def _hold_database(self) -> None:
        await self._disturb(self._node().database, Condition.HELD)

    async def _slow_database(self) -> None:
        await self._disturb(self._node().database, Condition.SLOW)

    async def _cut_others(self) -> None:
        await self._disturb(self._node().others, Condition.CUT)

    async def _hold_others(self) -> None:
        await self._disturb(self._node().others, Condition.HELD)

    async def _kill_database(self) -> None:
        await self._disturb_database(self._without_database, 0.0)

    async def _database_away(self) -> None:
        """Make the database unavailable for longer than any lease: no node is given up, because none can see the
        others.
        """
        await self._disturb_database(self._without_database, self._long_s)

    async def _promote(self) -> None:
        """Lose the primary's machine, and let the synchronous standby take over."""
        await self._disturb_database(self._fail_over)

    async def _disturb_database(self, disturb: Callable[..., Awaitable[None]], *how: float) -> None:
        # Two of these at once are one.
        if self._is_database_at_rest:
            self._is_database_at_rest = False
            try:
                await disturb(*how)
            finally:
                self._is_database_at_rest = True

    async def _without_database(self, seconds: float) -> None:
        server = self._cluster.server
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(server.kill)
        try:
            await anyio.sleep(seconds)
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(server.start)

    async def _fail_over(self) -> None:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._standbys.promote, self._cluster)

    async def _drain(self) -> None:
        await self._leave(self._node())

    async def _roll(self) -> None:
        for node in self._cluster.nodes:
            await self._leave(node)

    async def _leave(self, node: Node) -> None:
        # One that is not there now does not end.
        with anyio.move_on_after(LEAVE_S):
            await node.leave()
