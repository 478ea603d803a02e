"""A clock that stops until a test advances it.

The code under test receives it through the clock port. `wait_for_sleepers` returns once the code sleeps, so that
tests need no guessed delays.
"""

from __future__ import annotations

import heapq
from itertools import count

import anyio
from anyio.lowlevel import checkpoint

from turnwire.errors import LocalProtocolError
from turnwire_testing.patience import WAIT_S

START_MS = 1_700_000_000_000
"""Wall time at which every manual clock starts, so that recorded times are the same in every run."""

_NS = 1_000_000_000


class ManualClock:
    """A `turnwire.clock.Clock` whose time advances only in `advance`."""

    def __init__(self, *, start_ms: int = START_MS) -> None:
        self._start_ms = start_ms
        self._now_ns = 0  # whole nanoseconds, so that ten steps of 0.1 s are one second
        self._ticket = count()
        self._asleep: list[tuple[int, int, anyio.Event]] = []
        self._watchers: list[tuple[int, anyio.Event]] = []

    def now_ms(self) -> int:
        return self._start_ms + self._now_ns // 1_000_000

    def monotonic(self) -> float:
        return self._now_ns / _NS

    @property
    def sleepers(self) -> int:
        """The number of pending `sleep` calls."""
        return len(self._asleep)

    async def sleep(self, seconds: float) -> None:
        """Return once the test has advanced that far. Cancel-safe: a cancelled sleeper no longer counts."""
        if seconds <= 0:
            await checkpoint()
            return
        entry = (self._now_ns + round(seconds * _NS), next(self._ticket), anyio.Event())
        heapq.heappush(self._asleep, entry)
        self._tell_watchers()
        try:
            await entry[2].wait()
        finally:
            if entry in self._asleep:
                self._asleep.remove(entry)
                heapq.heapify(self._asleep)

    def advance(self, seconds: float) -> None:
        """Advance the time and wake the sleepers that are due, earliest deadline first.

        They run when the caller next waits. A sleeper that sleeps again starts from the new time.
        """
        if seconds < 0:
            raise LocalProtocolError(f"cannot advance by {seconds} s; time does not run backwards")
        self._now_ns += round(seconds * _NS)
        while self._asleep and self._asleep[0][0] <= self._now_ns:
            heapq.heappop(self._asleep)[2].set()

    async def wait_for_sleepers(self, n: int) -> None:
        """Return once at least `n` calls of `sleep` wait. Raises `TimeoutError` after `WAIT_S` seconds."""
        while len(self._asleep) < n:
            watcher = (n, anyio.Event())
            self._watchers.append(watcher)
            try:
                with anyio.fail_after(WAIT_S):
                    await watcher[1].wait()
            finally:
                self._watchers.remove(watcher)

    def _tell_watchers(self) -> None:
        for n, enough in self._watchers:
            if len(self._asleep) >= n:
                enough.set()
