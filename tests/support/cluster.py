"""Two nodes of one log in one process, and the cable between them, which a test can cut.

The first node has the session `s1`; the second reaches it over the link.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum, auto

import anyio
from anyio.abc import TaskGroup
from tests.support.agents import HandSource
from tests.support.owners import Cluster

from turnwire.errors import LinkBroken, NodeUnreachable
from turnwire.hosting.memory import MemoryLink, memory_pair
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import EventLog
from turnwire.log.owners import Life
from turnwire.runtime.node import Node, open_node
from turnwire.runtime.remote_sessions import RemoteSessions
from turnwire.server.cluster.link import NodeLinks
from turnwire_testing import ManualClock


class Cut(Enum):
    """Time at which the cable is cut: with a frame in it, or directly after one that arrived."""

    IN = auto()
    BEHIND = auto()


class Cable:
    """Counts the frames of both directions, and is cut once."""

    def __init__(self) -> None:
        self.frames = 0
        self.cut_at: tuple[int, Cut] | None = None
        self.is_gone = False
        """True if no node can dial any more."""
        self.is_gone_after_cut = False
        self.is_there = True
        self.ends: list[CableEnd] = []

    def make(self) -> tuple[CableEnd, CableEnd]:
        if self.is_gone:
            raise NodeUnreachable("the cable is gone")
        ends = [CableEnd(self, each) for each in memory_pair()]
        self.ends += ends
        return ends[0], ends[1]

    def cut(self) -> None:
        self.is_there = False
        self.is_gone |= self.is_gone_after_cut
        ends, self.ends = self.ends, []
        for each in ends:
            each.cut()


class CableEnd:
    """One end of the cable, as a link."""

    def __init__(self, cable: Cable, link: MemoryLink) -> None:
        self._cable = cable
        self._link = link
        self._over = anyio.Event()

    async def run(self) -> None:
        await self._over.wait()
        await self._link.aclose()

    def cut(self) -> None:
        self._over.set()

    async def receive(self) -> list[bytes]:
        return await self._link.receive()

    async def send(self, frame: bytes) -> None:
        self.send_nowait(frame)

    def send_nowait(self, frame: bytes) -> None:
        if self._over.is_set():
            raise LinkBroken("the cable was cut")
        cable = self._cable
        cable.frames += 1
        is_here = cable.cut_at is not None and cable.cut_at[0] == cable.frames
        if not (is_here and cable.cut_at and cable.cut_at[1] is Cut.IN):
            self._link.send_nowait(frame)
        if is_here:
            cable.cut()

    async def aclose(self) -> None:
        self.cut()
        await self._link.aclose()


class Pair:
    """Both nodes."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cable = Cable()
        self.clock = ManualClock()
        self.log: EventLog = self.cluster.log
        self.owners = {1: self.cluster.join("one", "here"), 2: self.cluster.join("two", "here")}
        self.nodes: dict[int, Node] = {}
        self.links: dict[int, NodeLinks] = {}
        self.sources = {1: HandSource(), 2: HandSource()}

    def lives(self) -> list[Life]:
        return [
            Life(number, each.name, each.place, "http://x", "", "0", each.beat, each.draining)
            for number, each in self.cluster.lives.items()
            if not each.gone
        ]

    def lose_first(self) -> None:
        """The first node is declared gone; it does not know."""
        self.cluster.lose(self.owners[1])

    @asynccontextmanager
    async def open(self, life: int, limits: Limits) -> AsyncGenerator[Node]:
        log = self.owners[life].log
        source, owners = self.sources[life], self.owners[life]
        async with open_node(log, source, owners=owners, clock=self.clock, limits=limits) as node:
            node.join(RemoteSessions(life, self.links[life], log, self.clock, limits))
            self.nodes[life] = node
            self.links[life].serve(node)
            yield node


@asynccontextmanager
async def linked_pair(limits: Limits | None = None) -> AsyncGenerator[Pair]:
    """Return two nodes, whose agents the test plays; the first one owns `s1`."""
    limits, pair = limits or Limits(), Pair()
    async with anyio.create_task_group() as tasks:
        for life in (1, 2):
            pair.links[life] = NodeLinks(life, tasks, _dialling(pair, tasks, 3 - life))
            pair.links[life].lives, pair.links[life].living = pair.lives, pair.owners[life].living
        async with pair.open(1, limits) as one, pair.open(2, limits):
            await one.create("/work", session_id=SessionId("s1"))
            yield pair
        tasks.cancel_scope.cancel()


def _dialling(pair: Pair, tasks: TaskGroup, other: int) -> Callable[[Life, int], Awaitable[CableEnd]]:
    async def dial(there: Life, here: int) -> CableEnd:
        near, far = pair.cable.make()
        tasks.start_soon(pair.links[other].accept, here, far)
        return near

    return dial
