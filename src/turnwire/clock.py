"""The clock port: the only source of time in turnwire.

Code that waits or measures uses a `Clock`, so a test with `turnwire_testing.ManualClock` controls time.
"""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

import anyio


@runtime_checkable
class Clock(Protocol):
    """Source of wall time, durations and delays."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since 1970, for timestamps only; it may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease, for durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds. Cancel-safe."""
        ...


def boot_time() -> float:
    """Return seconds since boot, including suspend if the system counts it. All processes see the same value."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class KnownTime:
    """Wall time that never decreases, so expired credentials stay expired when the clock is set back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ms, self._at = clock.now_ms(), clock.monotonic()

    def now_ms(self) -> int:
        """Return the clock's time, or the last returned time plus the elapsed time if that is later."""
        at = self._clock.monotonic()
        self._ms, self._at = max(self._clock.now_ms(), self._ms + round((at - self._at) * 1000)), at
        return self._ms


class SystemClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Without a wrapper, because it is called several times per event.
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
