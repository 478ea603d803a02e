"""One timer for many deadlines.

Ten thousand open streams would need ten thousand timers, each reset with every write. Here time is divided into
short slots. Each member is in the list of one slot and is called at its end: it does what is due and returns its
next deadline. A call may be late by one slot, never early. At most `AT_ONCE` calls run before other tasks do.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, Protocol

AT_ONCE: Final = 100
"""Calls before other tasks run: each may write, which takes about ten microseconds."""
STRETCHES: Final = 16
"""Slots in the shortest wait: the delay of a deadline is a small part of it."""
LONGEST_S: Final = 0.5


class Timed(Protocol):
    """An object with a deadline."""

    def tick(self, now: float) -> float | None:
        """Do what is due by now and return the next deadline, or `None` if there is none."""
        ...


class Deadlines:
    """Members by deadline, in the loop's time."""

    def __init__(self, shortest_s: float) -> None:
        """`shortest_s`: the shortest wait of any member."""
        self._loop = asyncio.get_running_loop()
        self._stretch_s = min(shortest_s / STRETCHES, LONGEST_S)
        self._due: dict[int, set[Timed]] = {}
        """Members by the number of the slot at whose end they are called."""
        self._next: float = math.inf
        """Number of the earliest slot."""
        self._timer: asyncio.Handle | None = None

    def add(self, each: Timed, moment: float) -> None:
        """Call its `tick` at that moment. It must not be a member already."""
        number = math.ceil(moment / self._stretch_s)
        self._due.setdefault(number, set()).add(each)
        if number < self._next:
            self._wait_for(number)

    def _wait_for(self, number: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = number
        self._timer = self._loop.call_at(number * self._stretch_s, self._ask, number)

    def _ask(self, number: int) -> None:
        due, now = self._due[number], self._loop.time()
        try:
            for _ in range(min(len(due), AT_ONCE)):
                each = due.pop()
                again = each.tick(now)
                if again is not None:
                    self.add(each, max(again, now + self._stretch_s))
        finally:
            if due:
                self._timer = self._loop.call_soon(self._ask, number)
            else:
                del self._due[number]
                self._timer, self._next = None, math.inf
                if self._due:
                    self._wait_for(min(self._due))
