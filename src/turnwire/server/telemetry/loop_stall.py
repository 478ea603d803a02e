"""How late the event loop is: everybody waits while one computation holds it, and nobody else can tell.

A timer of the loop is due every `EVERY_S`; how late it comes is what others have waited. Of a computation that
holds the loop for a while it sees all but at most `EVERY_S`. It costs 50 calls a second, some microseconds each,
and as many wake-ups of a daemon that rests. It looks at real time and not at the clock port: a stall is no part
of the daemon's own time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

EVERY_S: Final = 0.02
STALL_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
"""Bounds of the buckets. Timers of a loop are up to a millisecond late by themselves."""


@contextmanager
def watched_loop(observe: Callable[[float], None]) -> Generator[None]:
    """Meanwhile `observe` hears, every 20 ms, by how many seconds the running loop was late."""
    loop = asyncio.get_running_loop()

    def look(due: float) -> None:
        nonlocal timer
        now = loop.time()
        observe(max(now - due, 0.0))
        # From now on, not from when it was due: a long stall is one stall.
        timer = loop.call_at(now + EVERY_S, look, now + EVERY_S)

    due = loop.time() + EVERY_S
    timer = loop.call_at(due, look, due)
    try:
        yield
    finally:
        timer.cancel()
