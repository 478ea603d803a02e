"""The clock port: the only way time enters turnwire.

Everything that waits or measures takes a `Clock`, so a test with `turnwire_testing.ManualClock` decides when time
passes.
"""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

import anyio


@runtime_checkable
class Clock(Protocol):
    """Time as the runtime sees it."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970, for timestamps only; it may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once that much steady time has passed. Cancel-safe."""
        ...


def boot_time() -> float:
    """Seconds that also count while the machine sleeps, where it tells them; the same in every process of it."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class KnownTime:
    """Wall time that never runs backwards: what has expired stays so if somebody sets the clock back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ms, self._at = clock.now_ms(), clock.monotonic()

    def now_ms(self) -> int:
        """Return the clock's time, or the newest known time plus what has passed since if that is later."""
        at = self._clock.monotonic()
        self._ms, self._at = max(self._clock.now_ms(), self._ms + round((at - self._at) * 1000)), at
        return self._ms


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # The function itself: it is read several times for every event.
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
