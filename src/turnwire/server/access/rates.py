"""Limits on the requests of one caller, and on the wrong credentials of one address.

A caller is a credential, or an address without one. Callers with wrong credentials are slowed by their address;
callers with a valid one never are, wherever they come from: strangers at the same address, or behind the same
proxy, lock no one out.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from typing import NamedTuple

from turnwire.clock import Clock
from turnwire.errors import TooManyRequests
from turnwire.server.access.identity import Identity
from turnwire.server.access.origins import network_of

MOST_KEYS = 10_000
"""Maximum number of callers remembered, some hundred bytes each."""
MINUTE_S = 60.0
LINES_A_MINUTE = 60.0

logger = logging.getLogger("turnwire.audit")


class _Bucket(NamedTuple):
    left: float
    at: float


class Buckets:
    """A token bucket per key: `per_s` requests a second on average, with bursts of up to `burst`.

    Memory is bounded: the keys that were idle for the longest are forgotten first.
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
        """Consume one token and return 0, or consume nothing and return the seconds until one is free."""
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
    """Return the key of a caller: its credential, or its network if it has none."""
    return who.token_id or f"@{network_of(address or '')}"


def request_buckets(clock: Clock, per_s: float) -> Buckets:
    """Return buckets that allow a second's worth of requests at once."""
    return Buckets(clock, per_s=per_s, burst=max(1.0, per_s))


class Failures:
    """Counter of wrong credentials by source address. A minute's worth may come at once."""

    def __init__(self, clock: Clock, per_minute: int) -> None:
        self._buckets = Buckets(clock, per_s=per_minute / MINUTE_S, burst=float(per_minute))

    def count(self, address: str | None, method: str) -> None:
        """Count one wrong credential. Raises `TooManyRequests` beyond the limit; these are not logged."""
        wait = self._buckets.take(network_of(address or ""))
        if wait:
            raise TooManyRequests(
                "too many wrong credentials came from this address; wait a moment", retry_after=math.ceil(wait)
            )
        extra = {"event": "credential_refused", "address": address, "method": method}
        logger.warning("a credential was refused", extra=extra)


class LogLimit:
    """Rate limit for log lines that a stranger can cause: up to `LINES_A_MINUTE`."""

    def __init__(self, clock: Clock) -> None:
        self._buckets = Buckets(clock, per_s=LINES_A_MINUTE / MINUTE_S, burst=LINES_A_MINUTE)
        self._skipped = 0

    def admit(self) -> int | None:
        """Return the number of lines skipped before this one, or None if this one is to be skipped too."""
        if self._buckets.take(""):
            self._skipped += 1
            return None
        skipped, self._skipped = self._skipped, 0
        return skipped
