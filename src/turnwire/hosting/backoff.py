"""Waiting times between retries, with exponential backoff and jitter.

The upper bound doubles with each failure in a row. The wait is random below it, so that the clients of one daemon
do not reconnect in step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import random
from typing import TypeAlias

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
"""Sleeps for a number of seconds; tests replace it."""

Chance: TypeAlias = Callable[[], float]
"""Returns a random number from 0 up to 1."""

_DOUBLINGS = 32
"""Maximum number of doublings; from there on every bound is far above any `most_s`."""


class Backoff:
    """The waits of one series of failures."""

    def __init__(self, first_s: float, most_s: float, chance: Chance = random) -> None:
        self.first_s = first_s
        self._most_s = most_s
        self._chance = chance
        self.failures = 0
        """Number of failures in a row."""

    def next_s(self) -> float:
        """Count a failure and return the wait after it."""
        ceiling = min(self._most_s, self.first_s * 2.0 ** min(self.failures, _DOUBLINGS))
        self.failures += 1
        return ceiling * self._chance()

    def reset(self) -> None:
        """Start over after a success."""
        self.failures = 0
