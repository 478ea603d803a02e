"""The sampler reports how late the event loop was."""

from __future__ import annotations

import time

import anyio
import pytest
from tests.support.held import held_at_most

from turnwire.server.telemetry.metrics import EVERY_S, sample_loop_lag
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


def hold_loop(seconds: float) -> None:
    """Compute for so much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_a_blocked_loop_is_reported_with_its_lag() -> None:
    lags: list[float] = []
    news = anyio.Event()

    def observe(lag: float) -> None:
        lags.append(lag)
        news.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sample_loop_lag, observe)
        await anyio.lowlevel.checkpoint()
        # Longer than until the next sample is due, by 0.1 s.
        hold_loop(EVERY_S + 0.1)
        with anyio.fail_after(WAIT_S):
            await news.wait()
        tasks.cancel_scope.cancel()
    assert lags[0] >= 0.09


async def test_held_at_most_fails_for_a_step_that_takes_longer() -> None:
    async def step() -> None:
        hold_loop(0.1)

    with pytest.raises(AssertionError, match="held for 1"), held_at_most(0.05):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step)
    with held_at_most(0.05):
        await anyio.lowlevel.checkpoint()
