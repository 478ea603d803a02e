"""One timer for many who want to be asked again later, each at a moment of its own.

Ten thousand open streams would be ten thousand timers, each moved on with every write. Here each is in the list of
a short stretch of time and is asked when that is over: it does what is due and says when to ask it again. A moment
may be late by one stretch, never early. The loop is held for `AT_ONCE` of them at most.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, Protocol

AT_ONCE: Final = 100
"""How many are asked before others get a turn: each may write, which takes some ten microseconds."""
STRETCHES: Final = 16
"""Stretches in the shortest wait: what a moment may be late by is a small part of it."""
LONGEST_S: Final = 0.5


class Timed(Protocol):
    """Somebody who wants to be asked."""

    def tick(self, now: float) -> float | None:
        """Do what is due by now; when to ask again, or none for never."""
        ...


class Deadlines:
    """Who is to be asked when, by the loop's clock."""

    def __init__(self, shortest_s: float) -> None:
        """`shortest_s`: the shortest time that anybody wants to wait."""
        self._loop = asyncio.get_running_loop()
        self._stretch_s = min(shortest_s / STRETCHES, LONGEST_S)
        self._due: dict[int, set[Timed]] = {}
        """By the number of the stretch at whose end they are asked."""
        self._next: float = math.inf
        """The number of the earliest."""
        self._timer: asyncio.Handle | None = None

    def add(self, each: Timed, moment: float) -> None:
        """Ask it then. Nobody is in here twice."""
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
