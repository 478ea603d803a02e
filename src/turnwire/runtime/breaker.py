"""A breaker against restart loops: an agent that keeps dying is not started again at once.

Takes what became of each start; says whether another may be tried now. The wait doubles with every failure in a
row and ends with the first success. A command that cannot be started at all is remembered with its reason, so
that it is reported once and not tried for every prompt. Never sleeps: it only says no.
"""

from __future__ import annotations

import math

from turnwire.errors import AgentUnavailable
from turnwire.limits import Limits
from turnwire.runtime.clock import Clock

DOUBLINGS = 32
"""Beyond this the wait is the longest one anyway."""


class Breaker:
    """One agent command's record of starts."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._limits = limits
        self._failures = 0
        self._closed_until = 0.0
        self._reason = ""

    def check(self) -> None:
        """Raises `AgentUnavailable` while the agent is not to be started."""
        left = self._closed_until - self._clock.monotonic()
        if left > 0:
            raise AgentUnavailable(
                f"{self._reason}; it is not started again for {math.ceil(left)} s", retry_after_s=round(left, 1)
            )

    def failed(self, reason: str, *, definite: bool = False) -> bool:
        """A start failed, or the agent died young. True if it is news: the first of its kind in a row."""
        is_news = not self._failures or reason != self._reason
        self._failures += 1
        self._reason = reason
        tolerated = 0 if definite else self._limits.breaker_failures
        if self._failures > tolerated:
            wait = self._limits.breaker_first_s * 2 ** min(self._failures - tolerated - 1, DOUBLINGS)
            self._closed_until = self._clock.monotonic() + min(wait, self._limits.breaker_most_s)
        return is_news

    def succeeded(self) -> None:
        """The agent works."""
        self._failures = 0
        self._closed_until = 0.0
