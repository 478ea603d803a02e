"""How fast one caller may ask, and how often one address may be wrong.

A caller is a credential, or an address without one. Who is wrong too often is slowed by its address; who is right
never is, from wherever it comes: strangers at the same address, or behind the same proxy, keep nobody out.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from typing import NamedTuple

from turnwire.errors import TooManyRequests
from turnwire.runtime.clock import Clock
from turnwire.server.access.identity import Identity
from turnwire.server.access.origins import network_of

MOST_KEYS = 10_000
"""Callers remembered at a time, some hundred bytes each."""
MINUTE_S = 60.0

logger = logging.getLogger("turnwire.audit")


class _Bucket(NamedTuple):
    left: float
    at: float


class Buckets:
    """One token bucket per key: `per_s` requests a second on average, one burst of `burst`.

    Memory is bounded: the keys that were quiet for the longest are forgotten first.
    """

    def __init__(self, clock: Clock, *, per_s: float, burst: float, keys: int = MOST_KEYS) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = burst
        self._keys = keys
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str) -> float:
        """Use one up. Gives 0, or the seconds until there is one; then nothing was used up."""
        now = self._clock.monotonic()
        left = self._left(key, now)
        if left < 1:
            return (1 - left) / self._per_s
        self._buckets[key] = _Bucket(left - 1, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        return 0.0

    def _left(self, key: str, now: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return self._burst
        return min(self._burst, bucket.left + (now - bucket.at) * self._per_s)


def caller_of(who: Identity, address: str | None) -> str:
    """The key of a caller: its credential, or without one its network."""
    return who.token_id or f"@{network_of(address or '')}"


def request_buckets(clock: Clock, per_s: float) -> Buckets:
    """A second's worth may come at once."""
    return Buckets(clock, per_s=per_s, burst=max(1.0, per_s))


class Failures:
    """Wrong credentials, by the address that they came from. A minute's worth may come at once."""

    def __init__(self, clock: Clock, per_minute: int) -> None:
        self._buckets = Buckets(clock, per_s=per_minute / MINUTE_S, burst=float(per_minute))

    def count(self, address: str | None, method: str) -> None:
        """One more was wrong. Raises `TooManyRequests` if there were too many, which are not told to the log."""
        wait = self._buckets.take(network_of(address or ""))
        if wait:
            raise TooManyRequests(
                "too many wrong credentials came from this address; wait a moment", retry_after=math.ceil(wait)
            )
        extra = {"event": "credential_refused", "address": address, "method": method}
        logger.warning("a credential was refused", extra=extra)
