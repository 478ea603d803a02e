"""Stopping in good order: turns get their end, and the queue is there after the next start."""

from __future__ import annotations

import anyio
import pytest
from tests.support.driving import open_world

from turnwire.ids import SessionId
from turnwire.log import MemoryEventLog
from turnwire.runtime.draining import drain
from turnwire.session import events as ev
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

S1 = SessionId("s1")


async def test_a_running_turn_may_end_and_nothing_starts_after_it() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        await world.prompt("wait go", "p1")
        await world.prompt("hello", "p2")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain, world.node, world.clock, 30.0)
            await quiet()
            await world.cancel()
        events = await world.events()
        assert [each.prompt_id for each in events if isinstance(each, ev.TurnCompleted | ev.TurnFailed)] == ["p1"]
        assert [each.reason for each in events if isinstance(each, ev.QueueHeld)] == ["daemon_stopping"]
    async with open_world(log, created=False) as world:
        assert isinstance(await world.end("p2"), ev.TurnCompleted), "the queue goes on with the next start"


@pytest.mark.guarantee("G3")
async def test_a_turn_that_does_not_end_in_time_gets_its_end() -> None:
    log = MemoryEventLog()
    async with open_world(log) as world:
        await world.prompt("never", "p1")
        await world.prompt("hello", "p2")
        await world.until_kind(ev.PromptSent)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain, world.node, world.clock, 30.0)
            await quiet()
            world.clock.advance(30)
        end = await world.end("p1")
        assert isinstance(end, ev.TurnFailed)
        assert end.code == "daemon_stopped"
    async with open_world(log, created=False) as world:
        assert isinstance(await world.end("p2"), ev.TurnCompleted)


async def test_sessions_that_owe_nothing_are_not_touched() -> None:
    async with open_world(MemoryEventLog()) as world:
        await world.prompt("hello", "p1")
        await world.end("p1")
        before = await world.events()
        await drain(world.node, world.clock, 30.0)
        assert await world.events() == before
        assert S1 in world.node.loaded
