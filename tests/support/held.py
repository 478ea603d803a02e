"""The time for which the loop is blocked: the longest single callback of a test, in CPU time of the loop's thread.

CPU time and not wall time, so that a busy machine does not fail a test: time used by other processes is not
counted.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


class Held:
    """The measurements so far."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.what = ""
        """The callback that took longest."""

    def __str__(self) -> str:
        return f"the loop was held for {self.longest_s * 1000:.1f} ms of CPU by {self.what}"


@contextmanager
def holding() -> Generator[Held]:
    """Meanwhile every callback of asyncio's loop in this process is measured."""
    held, run = Held(), asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> Any:
        began = time.thread_time()
        try:
            return run(handle)
        finally:
            took = time.thread_time() - began
            if took > held.longest_s:
                held.longest_s, held.what = took, repr(handle)

    asyncio.Handle._run = measured  # type: ignore[method-assign]
    # The collector would traverse all objects of earlier tests. A daemon's own is tuned, and has its tests.
    gc.disable()
    try:
        yield held
    finally:
        gc.enable()
        asyncio.Handle._run = run


@contextmanager
def held_at_most(seconds: float) -> Generator[Held]:
    """Fail if a single callback took more than that."""
    with holding() as held:
        yield held
    assert held.longest_s <= seconds, str(held)
