"""Event-loop lag: the delay of the loop's timers, which every client waits in addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from turnwire.clock import SystemClock

EVERY_S: Final = 0.25
"""Seconds between two samples. Waking an idle daemon four times a second costs next to nothing."""
LAG_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
"""Bucket bounds. Timers of an idle loop are up to a millisecond late."""


async def sample_loop_lag(observe: Callable[[float], None]) -> None:
    """Report the lag of the running loop in seconds, until cancelled.

    It uses no clock port: a lag is real time, even if a test stops the daemon's clock.
    """
    clock = SystemClock()
    while True:
        due = clock.monotonic() + EVERY_S
        await clock.sleep(EVERY_S)
        observe(max(clock.monotonic() - due, 0.0))
