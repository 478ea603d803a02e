"""How fast one caller may ask, and how often it may be wrong.

Takes a key and the steady time; gives the seconds to wait, 0 when it may go on. Memory is bounded: the keys that
were quiet for the longest are forgotten first. Never waits itself.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from functools import lru_cache
from typing import NamedTuple

from turnwire.runtime.clock import Clock

MOST_KEYS = 10_000
"""Callers remembered at a time, some hundred bytes each."""
REMEMBERED = 1024
"""Addresses whose network is worked out once."""
MINUTE_S = 60.0
NETWORK_BITS_V6 = 64
"""One customer of a provider holds a network of this size, so its addresses count as one."""


class _Bucket(NamedTuple):
    left: float
    at: float


class Buckets:
    """One token bucket per key: `per_s` requests a second on average, one burst of `burst`."""

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

    def wait(self, key: str) -> float:
        """What `take` would say, without using one up."""
        left = self._left(key, self._clock.monotonic())
        return 0.0 if left >= 1 else (1 - left) / self._per_s

    def _left(self, key: str, now: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return self._burst
        return min(self._burst, bucket.left + (now - bucket.at) * self._per_s)


def request_buckets(clock: Clock, per_s: float) -> Buckets:
    """A second's worth may come at once."""
    return Buckets(clock, per_s=per_s, burst=max(1.0, per_s))


def failure_buckets(clock: Clock, per_minute: int) -> Buckets:
    """A minute's worth may come at once."""
    return Buckets(clock, per_s=per_minute / MINUTE_S, burst=float(per_minute))


@lru_cache(maxsize=REMEMBERED)
def network_of(address: str) -> str:
    """The key of a remote address: itself, or its network for version 6. A socket's path is itself too."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback:
        return address
    mapped = found.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.ip_network((found, NETWORK_BITS_V6), strict=False))
