"""Nodes of one log that come, go, freeze and drain at any moment: each prompt that was accepted has one end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import anyio
import pytest
from anyio.abc import TaskGroup, TaskStatus
from tests.support.driving import World, check_ends, events_of, of, open_world, prompt
from tests.support.owners import Cluster, MemoryOwners

from turnwire.errors import LifeOver, LogUnavailable, NotOwner, SessionClosed, ShuttingDown, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.owners import Claim
from turnwire.runtime.draining import drain
from turnwire.runtime.placing import LOOKED_EVERY_S
from turnwire.session import events as ev
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

PLACES = {"a": "x", "b": "x", "c": "y"}
STEPS = 60
REFUSALS = (NotOwner, LifeOver, ShuttingDown, LogUnavailable, SessionClosed)


class Forgetful(MemoryOwners):
    """A database that executes each statement and sometimes loses the answer."""

    random: Random

    def _answer(self) -> None:
        if self.random.random() < 0.4:
            raise LogUnavailable("the connection broke")

    async def claim(self, session_id: SessionId) -> Claim:
        claim = await super().claim(session_id)
        self._answer()
        return claim

    async def release(self, session_id: SessionId) -> None:
        await super().release(session_id)
        self._answer()

    async def steal(self, life: int, limit: int) -> list[Claim]:
        claims = await super().steal(life, limit)
        self._answer()
        return claims

    async def adopt(self, limit: int) -> list[Claim]:
        claims = await super().adopt(limit)
        self._answer()
        return claims


class Running:
    """A running node, and the ways to end it."""

    def __init__(self, owners: Forgetful, world: World) -> None:
        self.owners = owners
        self.world = world
        self.stop = anyio.Event()
        self.ended = anyio.Event()


class Fleet:
    """All nodes, and the client that uses any of them."""

    def __init__(self, random: Random, tasks: TaskGroup) -> None:
        self.cluster = Cluster()
        self.random = random
        self.nodes: dict[str, Running] = {}
        self.sessions: list[SessionId] = []
        self.accepted: dict[SessionId, list[str]] = {}
        self._tasks = tasks
        self._count = 0

    # -- nodes -------------------------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        if name not in self.nodes:
            self.nodes[name] = await self._tasks.start(self._host, name)

    async def _host(self, name: str, *, task_status: TaskStatus[Running]) -> None:
        self.cluster.join(name, PLACES[name])
        owners = Forgetful(self.cluster, len(self.cluster.lives))
        owners.random = self.random
        async with open_world(owners.log, created=False, owners=owners, clock=ManualClock()) as world:
            running = Running(owners, world)
            task_status.started(running)
            await running.stop.wait()
        running.ended.set()

    async def kill(self, name: str) -> None:
        """It dies, and the others find out."""
        if (running := self.nodes.pop(name, None)) is not None:
            running.stop.set()
            await running.ended.wait()
            self.cluster.lose(running.owners)

    async def freeze(self, name: str) -> None:
        """Freeze a node: the others declare it dead and take over, while it continues for a while."""
        if (running := self.nodes.get(name)) is not None:
            self.cluster.lose(running.owners)
            for other in self.nodes:
                await self.look(other)
            await self.ask(name)
            running.world.node.lose()
            await self.kill(name)

    async def drain(self, name: str) -> None:
        """It stops in good order."""
        if (running := self.nodes.get(name)) is not None:
            async with anyio.create_task_group() as draining:
                draining.start_soon(drain, running.world.node, running.world.clock, 5.0)
                await quiet()
                running.world.clock.advance(5)
            self.nodes.pop(name)
            running.stop.set()
            await running.ended.wait()
            await running.owners.log.aclose()

    async def look(self, name: str) -> None:
        """Time passes for one of them."""
        if (running := self.nodes.get(name)) is not None:
            await quiet()
            running.world.clock.advance(LOOKED_EVERY_S)
            await quiet()

    async def idle(self, name: str) -> None:
        """Much time passes."""
        if (running := self.nodes.get(name)) is not None:
            for _ in range(3):
                running.world.clock.advance(running.world.node.limits.idle_unload_s)
                await quiet()

    # -- the client --------------------------------------------------------------------------------------------

    async def create(self, name: str) -> None:
        if (running := self.nodes.get(name)) is not None:
            session_id = SessionId(f"s{len(self.sessions)}")
            try:
                await running.world.create(session_id)
            except REFUSALS:
                return
            self.sessions.append(session_id)
            self.accepted[session_id] = []

    async def ask(self, name: str) -> None:
        if not self.sessions or name not in self.nodes:
            return
        session_id = self.random.choice(self.sessions)
        self._count += 1
        prompt_id = f"p{self._count}"
        for _ in range(3):
            try:
                with anyio.fail_after(WAIT_S):
                    text = self.random.choice(["hello", "hello", "never"])
                    await self.nodes[name].world.node.submit(session_id, prompt(text, prompt_id))
                self.accepted[session_id].append(prompt_id)
                return
            except NotOwner as error:
                owner = error.context.get("owner")
                found = [each for each, running in self.nodes.items() if running.owners.life == owner]
                if not found:
                    return
                name = found[0]
            except (LifeOver, ShuttingDown, LogUnavailable):
                return

    async def cancel(self, name: str) -> None:
        """Cancel the node's running turn."""
        if (running := self.nodes.get(name)) is not None:
            for session_id in list(running.world.node.loaded):
                running.world.session_id = session_id
                try:
                    await running.world.cancel()
                except TurnwireError:
                    continue


@pytest.mark.guarantee("G1", "G3", "G7")
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_becomes_of_the_nodes_each_accepted_prompt_has_one_end(seed: int) -> None:
    random = Random(seed)
    async with anyio.create_task_group() as tasks:
        fleet = Fleet(random, tasks)
        for name in PLACES:
            await fleet.start(name)
        acts: list[Callable[[str], Awaitable[None]]] = [
            *[fleet.start, fleet.ask, fleet.look] * 3,
            *[fleet.create, fleet.create, fleet.kill, fleet.freeze, fleet.drain, fleet.idle, fleet.cancel],
        ]
        for _ in range(STEPS):
            await random.choice(acts)(random.choice(list(PLACES)))
        await _settle(fleet)
        assert fleet.sessions, "nothing happened"
        for session_id in fleet.sessions:
            events = await events_of(fleet.cluster.log, session_id)
            check_ends(events)
            told = {each.prompt_id for each in of(events, ev.PromptAccepted)}
            assert told.issuperset(fleet.accepted[session_id])
        for running in fleet.nodes.values():
            running.stop.set()


async def _settle(fleet: Fleet) -> None:
    """Start all nodes, and cancel all running turns until none remains."""
    for name in PLACES:
        await fleet.start(name)
    for _ in range(200):
        for name in PLACES:
            await fleet.look(name)
            await fleet.cancel(name)
        if not await fleet.cluster.log.sessions(unsettled_only=True):
            return
    left = await fleet.cluster.log.sessions(unsettled_only=True)
    raise AssertionError(f"{left} are stuck: {[fleet.cluster.rows[each.session_id] for each in left]}")
