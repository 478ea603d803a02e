"""What holds the whole program up, counted: computations that keep the event loop, and rounds of the collector.

Everybody waits while one computation holds the loop, and nobody else can tell. A timer of the loop is due every
`EVERY_S`; how late it comes is what others have waited. Of a computation that holds the loop for a while it sees
all but at most `EVERY_S`. It costs 50 calls a second, some microseconds each. A loop that hardly computes is looked
at ever more rarely, down to once in `RESTING_S`: 50 wake-ups a second are one percent of a core, for a daemon that
nobody asks anything, and where nobody asks nobody waits. It looks at real time and not at the clock port: a stall
is no part of the daemon's own time.

Python looks for cycles whenever there are 700 objects more, and through all of them now and then; with ten thousand
open streams that stopped the daemon for a second. Most of what it has are modules, which stay, and most of what it
makes is freed without the collector. So what is there at the start is left out for good, and the rest is looked
through in portions that take a few milliseconds. Cycles are freed later than they could be: `THRESHOLDS` say how
many objects may wait. Only a program of its own does this; a library leaves it to its program.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

EVERY_S: Final = 0.02
RESTING_S: Final = 1.28
BUSY: Final = 0.05
"""The share of the time since the last look that the loop's thread has computed, from which on it does not rest."""
STALL_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
"""Bounds of the buckets. Timers of a loop are up to a millisecond late by themselves."""


@contextmanager
def watched_loop(observe: Callable[[float], None]) -> Generator[None]:
    """Meanwhile `observe` hears by how many seconds the running loop was late, every 20 ms while it has work."""
    loop = asyncio.get_running_loop()

    def look(due: float, every: float, computed: float) -> None:
        nonlocal timer
        now, computed_now = loop.time(), time.thread_time()
        observe(max(now - due, 0.0))
        is_busy = computed_now - computed > every * BUSY
        every = EVERY_S if is_busy else min(every * 2, RESTING_S)
        # From now on, not from when it was due: a long stall is one stall.
        timer = loop.call_at(now + every, look, now + every, every, computed_now)

    due = loop.time() + EVERY_S
    timer = loop.call_at(due, look, due, EVERY_S, time.thread_time())
    try:
        yield
    finally:
        timer.cancel()


THRESHOLDS: Final = (10_000, 4, 20)
"""How many objects more than before until the new ones are looked through, which takes 4 ms; how many such rounds
until what they left is, 20 ms; how many of those until all are: a million objects, and a quarter of what there is.
"""


@contextmanager
def rare_collection(pause: Callable[[float], None]) -> Generator[None]:
    """Meanwhile the collector works as above, and `pause` is told how long each of its rounds took, in seconds."""
    before, begun = gc.get_threshold(), 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.perf_counter()
        else:
            pause(time.perf_counter() - begun)

    # Importing leaves no garbage worth the time that looking for it takes.
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(note)
    try:
        yield
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        gc.unfreeze()
