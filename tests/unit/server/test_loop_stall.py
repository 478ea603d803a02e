"""A loop that is held is seen: by the metric of a daemon, and by the tool of the tests."""

from __future__ import annotations

import time

import anyio
import pytest
from tests.support.held import held_at_most

from turnwire.server.telemetry.loop_stall import watched_loop
from turnwire.testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

HELD_S = 0.1


def hold() -> None:
    """Compute for a while."""
    began = time.thread_time()
    while time.thread_time() - began < HELD_S:
        pass


async def test_a_computation_that_holds_the_loop_is_seen_by_how_late_the_loop_was() -> None:
    seen: list[float] = []
    news = anyio.Event()

    def observe(late: float) -> None:
        seen.append(late)
        news.set()

    with watched_loop(observe), anyio.fail_after(WAIT_S):
        await news.wait()
        hold()
        held = len(seen)
        while len(seen) == held:
            news = anyio.Event()
            await news.wait()
    assert max(seen[held:]) >= HELD_S - 0.02


async def test_nothing_is_looked_at_once_the_watch_is_over() -> None:
    seen: list[float] = []
    with watched_loop(seen.append):
        pass
    hold()
    await anyio.lowlevel.checkpoint()
    assert seen == []


async def test_the_tool_of_the_tests_names_what_held_the_loop() -> None:
    async def step() -> None:
        hold()

    with pytest.raises(AssertionError, match="held for 1"), held_at_most(HELD_S / 2):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step)
    with held_at_most(HELD_S / 2):
        await anyio.lowlevel.checkpoint()
