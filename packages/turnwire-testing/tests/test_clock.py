"""The manual clock: time passes only when the test says so."""

from __future__ import annotations

import anyio
import pytest
from anyio import fail_after

from turnwire.clock import Clock
from turnwire.errors import LocalProtocolError
from turnwire_testing import clock as clock_module
from turnwire_testing.clock import START_MS, ManualClock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio


def test_a_manual_clock_is_a_clock(manual_clock: ManualClock) -> None:
    assert isinstance(manual_clock, Clock)


def test_time_starts_fixed_and_moves_by_what_the_test_says(manual_clock: ManualClock) -> None:
    assert (manual_clock.now_ms(), manual_clock.monotonic()) == (START_MS, 0.0)
    manual_clock.advance(1.5)
    assert (manual_clock.now_ms(), manual_clock.monotonic()) == (START_MS + 1500, 1.5)


def test_time_does_not_run_backwards(manual_clock: ManualClock) -> None:
    with pytest.raises(LocalProtocolError):
        manual_clock.advance(-1)


async def test_sleepers_wake_in_the_order_of_their_deadlines(manual_clock: ManualClock) -> None:
    woken: list[float] = []

    async def sleep(seconds: float) -> None:
        await manual_clock.sleep(seconds)
        woken.append(seconds)

    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for seconds in (3, 1, 2, 9):
                tasks.start_soon(sleep, seconds)
            await manual_clock.wait_for_sleepers(4)
            manual_clock.advance(5)
            assert manual_clock.sleepers == 1
            await quiet()
            assert woken == [1, 2, 3]
            manual_clock.advance(4)
    assert woken == [1, 2, 3, 9]


async def test_small_steps_add_up_exactly(manual_clock: ManualClock) -> None:
    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manual_clock.sleep, 1.0)
            await manual_clock.wait_for_sleepers(1)
            for _ in range(10):
                assert manual_clock.sleepers == 1
                manual_clock.advance(0.1)
            assert manual_clock.sleepers == 0


async def test_a_cancelled_sleeper_no_longer_counts(manual_clock: ManualClock) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(manual_clock.sleep, 1)
        await manual_clock.wait_for_sleepers(1)
        tasks.cancel_scope.cancel()
    assert manual_clock.sleepers == 0


async def test_a_sleep_of_nothing_returns_without_advance(manual_clock: ManualClock) -> None:
    with fail_after(WAIT_S):
        await manual_clock.sleep(0)


async def test_waiting_for_sleepers_that_never_come_is_bounded(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_module, "WAIT_S", 0.01)
    with pytest.raises(TimeoutError):
        await manual_clock.wait_for_sleepers(1)
