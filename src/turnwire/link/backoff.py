"""How long to wait before the next try.

The ceiling doubles with each failure in a row. The wait is spread over all of it by chance, so that many clients
of one daemon do not come back in step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import random
from typing import TypeAlias

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
"""Returns when so many seconds have passed: how a wait is waited out, so that a test can decide it."""

Chance: TypeAlias = Callable[[], float]
"""A number from 0 up to 1."""

_DOUBLINGS = 32
"""Beyond this every ceiling is far above any `most_s`."""


class Backoff:
    """The waits of one row of failures."""

    def __init__(self, first_s: float, most_s: float, chance: Chance = random) -> None:
        self.first_s = first_s
        self._most_s = most_s
        self._chance = chance
        self.failures = 0
        """In a row."""

    def next_s(self) -> float:
        """The wait after one more failure."""
        ceiling = min(self._most_s, self.first_s * 2.0 ** min(self.failures, _DOUBLINGS))
        self.failures += 1
        return ceiling * self._chance()

    def reset(self) -> None:
        """It worked."""
        self.failures = 0
