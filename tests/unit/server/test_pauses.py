"""What holds the program up is seen and counted: the loop that is held, and the collector, which comes rarely."""

from __future__ import annotations

import gc
import time

import anyio
import pytest
from tests.support.held import held_at_most

from turnwire.server.telemetry.pauses import EVERY_S, THRESHOLDS, rare_collection, watched_loop
from turnwire.testing.patience import WAIT_S

HELD_S = 0.1


def hold() -> None:
    """Compute for a while."""
    began = time.thread_time()
    while time.thread_time() - began < HELD_S:
        pass


@pytest.mark.anyio
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
    # A loop that computed nothing before was not to be looked at again before two of them were over.
    assert max(seen[held:]) >= HELD_S - 2 * EVERY_S - 0.001


@pytest.mark.anyio
async def test_a_loop_that_rests_is_looked_at_ever_more_rarely_and_one_that_works_every_time() -> None:
    looked_at = time.monotonic()
    rests: list[float] = []
    """From each look to when the next one was due, however late that came on a busy machine."""
    news = anyio.Event()

    def observe(late: float) -> None:
        nonlocal looked_at
        now = time.monotonic()
        rests.append(now - late - looked_at)
        looked_at = now
        news.set()

    async def looked() -> None:
        nonlocal news
        news = anyio.Event()
        await news.wait()

    with watched_loop(observe), anyio.fail_after(WAIT_S):
        while len(rests) < 6:
            await looked()
        resting = rests[-1]
        hold()
        await looked()
        await looked()
    assert resting > 10 * EVERY_S
    assert rests[-1] < 2 * EVERY_S


@pytest.mark.anyio
async def test_nothing_is_looked_at_once_the_watch_is_over() -> None:
    seen: list[float] = []
    with watched_loop(seen.append):
        pass
    hold()
    await anyio.lowlevel.checkpoint()
    assert seen == []


@pytest.mark.anyio
async def test_the_tool_of_the_tests_names_what_held_the_loop() -> None:
    async def step() -> None:
        hold()

    with pytest.raises(AssertionError, match="held for 1"), held_at_most(HELD_S / 2):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step)
    with held_at_most(HELD_S / 2):
        await anyio.lowlevel.checkpoint()


# -- the collector -------------------------------------------------------------------------------------------


class _Knot:
    def __init__(self) -> None:
        self.itself = self


def test_rounds_are_rare_and_told_and_what_was_there_before_is_left_out() -> None:
    before, callbacks, pauses = gc.get_threshold(), list(gc.callbacks), list[float]()
    with rare_collection(pauses.append):
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > 1000
        pauses.clear()
        gc.collect()
        assert len(pauses) == 1
        assert pauses[0] > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    assert gc.callbacks == callbacks


def test_cycles_are_freed_after_some_thousand_objects() -> None:
    pauses = list[float]()
    with rare_collection(pauses.append):
        held = [_Knot() for _ in range(THRESHOLDS[0] // 4)]
        assert not pauses
        held.clear()
        for _ in range(THRESHOLDS[0]):
            _Knot()
        assert pauses


def test_what_fails_meanwhile_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="x"), rare_collection(lambda _: None):
        raise ValueError("x")
    assert gc.get_threshold() == before
