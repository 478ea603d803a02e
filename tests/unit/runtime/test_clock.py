"""The clock port: the system's clock moves on, and the test's clock is one too."""

from __future__ import annotations

import anyio
import pytest

from turnwire.clock import Clock, SystemClock
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


def test_both_clocks_fit_the_port() -> None:
    assert isinstance(SystemClock(), Clock)
    assert isinstance(ManualClock(), Clock)


def test_wall_time_is_in_milliseconds_of_our_century() -> None:
    assert 1_700_000_000_000 < SystemClock().now_ms() < 4_200_000_000_000


async def test_a_sleep_lasts_at_least_as_long_as_asked_on_the_steady_clock() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    with anyio.fail_after(WAIT_S):
        await clock.sleep(0.02)
    assert clock.monotonic() - before >= 0.02


async def test_a_sleep_is_cancelled_at_once() -> None:
    with anyio.move_on_after(0.01) as scope:
        await SystemClock().sleep(3600)
    assert scope.cancelled_caught
