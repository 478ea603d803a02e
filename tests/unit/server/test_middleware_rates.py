"""Rates: a burst, then a steady pace, in bounded memory."""

from __future__ import annotations

import pytest

from turnwire.server.access.middleware import Buckets, failure_buckets, network_of, request_buckets
from turnwire.testing import ManualClock

pytestmark = pytest.mark.requirement("G13")


def test_a_second_s_worth_comes_at_once_and_then_one_by_one() -> None:
    clock = ManualClock()
    buckets = request_buckets(clock, 4.0)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0]
    assert buckets.take("a") == pytest.approx(0.25)
    clock.advance(0.25)
    assert buckets.take("a") == 0
    assert buckets.take("a") > 0


def test_a_refused_request_costs_nothing_more() -> None:
    clock = ManualClock()
    buckets = request_buckets(clock, 1.0)
    buckets.take("a")
    waits = [buckets.take("a") for _ in range(10)]
    assert waits == [pytest.approx(1.0)] * 10
    clock.advance(1.0)
    assert buckets.take("a") == 0


def test_one_caller_does_not_slow_another() -> None:
    buckets = request_buckets(ManualClock(), 1.0)
    assert buckets.take("a") == 0
    assert buckets.take("b") == 0
    assert buckets.take("a") > 0


def test_a_slow_rate_still_lets_one_through() -> None:
    clock = ManualClock()
    buckets = request_buckets(clock, 0.1)
    assert buckets.take("a") == 0
    assert buckets.take("a") == pytest.approx(10)


def test_quiet_time_is_not_saved_up_beyond_the_burst() -> None:
    clock = ManualClock()
    buckets = request_buckets(clock, 2.0)
    buckets.take("a")
    clock.advance(3600)
    assert [buckets.take("a") == 0 for _ in range(3)] == [True, True, False]


def test_failures_are_counted_by_the_minute() -> None:
    clock = ManualClock()
    failures = failure_buckets(clock, 3)
    assert [failures.take("a") for _ in range(3)] == [0, 0, 0]
    assert failures.wait("a") == pytest.approx(20)
    clock.advance(20)
    assert failures.wait("a") == 0
    assert failures.wait("a") == 0
    assert failures.take("a") == 0
    assert failures.wait("a") > 0


def test_memory_is_bounded_and_the_quietest_is_forgotten_first() -> None:
    buckets = Buckets(ManualClock(), per_s=1, burst=1, keys=2)
    for key in ("a", "b", "c"):
        buckets.take(key)
    assert len(buckets) == 2
    assert buckets.take("c") > 0
    assert buckets.take("b") > 0
    assert buckets.take("a") == 0


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("/run/turnwire.sock", "/run/turnwire.sock"),
    ],
)
def test_addresses_of_one_network_count_as_one(address: str, network: str) -> None:
    assert network_of(address) == network
