"""Garbage collection for a program that serves for weeks: seldom, over what is new, and with its pauses counted.

Python looks for cycles whenever there are 700 objects more, and through all of them now and then; with ten thousand
open streams that stopped the daemon for a second. Most of what it has are modules, which stay, and most of
what it makes is freed without the collector. So what is there at the start is left out for good, and the rest is
looked through in portions that take a few milliseconds. Cycles are freed later than they could be: `THRESHOLDS` say
how many objects may wait. Only a program of its own does this; a library leaves it to its program.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

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
