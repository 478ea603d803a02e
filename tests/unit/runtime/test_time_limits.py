"""The deadlines of one session: each told once, in their order, for open turns only, with one timer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import pytest
from tests.support.driving import content, open_world

from turnwire.core import events as ev
from turnwire.core.inputs import Prompt
from turnwire.ids import PromptId
from turnwire.log import MemoryEventLog
from turnwire.runtime.time_limits import TimeLimits
from turnwire.testing import ManualClock
from turnwire.testing.patience import quiet

pytestmark = pytest.mark.anyio

A, B, C = PromptId("a"), PromptId("b"), PromptId("c")


class Rig(NamedTuple):
    limits: TimeLimits
    clock: ManualClock
    open: set[PromptId]
    passed: list[PromptId]

    async def advance(self, seconds: float) -> list[PromptId]:
        self.clock.advance(seconds)
        await quiet()
        return self.passed


@asynccontextmanager
async def rig() -> AsyncGenerator[Rig]:
    clock, is_open, passed = ManualClock(), {A, B, C}, list[PromptId]()
    async with anyio.create_task_group() as tasks:
        limits = TimeLimits(clock, tasks, is_open=is_open.__contains__, passed=passed.append)
        yield Rig(limits, clock, is_open, passed)
        limits.drop_all()


async def test_each_is_told_when_its_time_has_come() -> None:
    async with rig() as given:
        given.limits.arm(A, 30)
        given.limits.arm(B, 10)
        given.limits.arm(C, 20)
        await quiet()
        assert given.clock.sleepers == 1, "one timer is enough"
        assert await given.advance(9.9) == []
        assert await given.advance(0.1) == [B]
        assert await given.advance(25) == [B, C, A]
        assert given.clock.sleepers == 0


async def test_an_ended_turn_is_not_told_and_not_kept() -> None:
    async with rig() as given:
        for each in (A, B, C):
            given.limits.arm(each, 10)
            given.open.discard(each)
        await quiet()
        assert await given.advance(10) == []


async def test_dropping_them_ends_the_timer() -> None:
    async with rig() as given:
        given.limits.arm(A, 10)
        await quiet()
        given.limits.drop_all()
        await quiet()
        assert given.clock.sleepers == 0
        assert await given.advance(10) == []


async def test_the_node_cancels_a_turn_at_its_deadline() -> None:
    async with open_world(MemoryEventLog()) as world:
        given = Prompt(
            at=world.clock.now_ms(),
            prompt_id=A,
            content=content("never"),
            deadline_at=world.clock.now_ms() + 2000,
        )
        await world.node.submit(world.session_id, given)
        await world.until_kind(ev.PromptSent)
        await quiet()
        world.clock.advance(1.9)
        await quiet()
        assert (await world.node.session(world.session_id)).state.turn is not None
        world.clock.advance(0.1)
        end = await world.end("a")
        assert isinstance(end, ev.TurnCompleted)
        assert (end.stop_reason, end.cancelled_by) == ("cancelled", "deadline")


async def test_a_closed_session_is_timed_no_more() -> None:
    async with open_world(MemoryEventLog()) as world:
        await quiet()
        before = world.clock.sleepers
        given = Prompt(
            at=world.clock.now_ms(),
            prompt_id=A,
            content=content("never"),
            deadline_at=world.clock.now_ms() + 2000,
        )
        await world.node.submit(world.session_id, given)
        await world.until_kind(ev.PromptSent)
        await quiet()
        assert world.clock.sleepers == before + 1
        await world.node.delete(world.session_id)
        await quiet()
        assert world.clock.sleepers <= before
