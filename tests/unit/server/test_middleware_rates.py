"""Rates: a burst, then a steady pace, in bounded memory."""

from __future__ import annotations

import pytest

from turnwire.errors import TooManyRequests
from turnwire.server.access.middleware import Buckets, Failures, request_buckets
from turnwire.server.access.origins import Proxies, network_of
from turnwire_testing import ManualClock

pytestmark = pytest.mark.guarantee("G13")


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


def test_failures_are_counted_by_the_minute_and_by_address() -> None:
    clock = ManualClock()
    failures = Failures(clock, 3)
    for _ in range(3):
        failures.count("192.0.2.7", "GET")
    with pytest.raises(TooManyRequests) as slowed:
        failures.count("192.0.2.7", "GET")
    assert slowed.value.context["retry_after"] == 20
    failures.count("192.0.2.8", "GET")
    clock.advance(20)
    failures.count("192.0.2.7", "GET")
    with pytest.raises(TooManyRequests):
        failures.count("192.0.2.7", "GET")


def test_memory_is_bounded_and_the_quietest_is_forgotten_first() -> None:
    buckets = Buckets(ManualClock(), per_s=1, burst=1, keys=2)
    for key in ("a", "b", "c"):
        buckets.take(key)
    assert len(buckets) == 2
    assert buckets.take("c") > 0
    assert buckets.take("b") > 0
    assert buckets.take("a") == 0


def test_addresses_of_one_network_count_as_one() -> None:
    networks = {
        "192.0.2.7": "192.0.2.7",
        "::1": "::1",
        "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64",
        "2001:db8:1:2:ffff::": "2001:db8:1:2::/64",
        "::ffff:192.0.2.7": "192.0.2.7",
        "fe80::1%eth0": "fe80::/64",
        "": "",
        "/run/turnwire.sock": "/run/turnwire.sock",
    }
    assert {each: network_of(each) for each in networks} == networks


PROXY, CLIENT, OTHER = "10.0.0.1", "192.0.2.7", "198.51.100.9"


def test_only_a_trusted_proxy_names_another_client() -> None:
    proxies = Proxies.of(["10.0.0.0/8", "fd00::/8"])
    cases: list[tuple[str, dict[str, str], str]] = [
        (PROXY, {}, PROXY),
        (PROXY, {"x-forwarded-for": CLIENT}, CLIENT),
        (PROXY, {"forwarded": f"for={CLIENT};proto=https"}, CLIENT),
        (PROXY, {"forwarded": f'proto=http; For="{CLIENT}:4711"'}, CLIENT),
        (PROXY, {"forwarded": 'for="[2001:db8::1]:80"'}, "2001:db8::1"),
        (f"::ffff:{PROXY}", {"x-forwarded-for": CLIENT}, CLIENT),
        # Values sent with the request are to the left of those that the proxy wrote.
        (PROXY, {"x-forwarded-for": f"{OTHER}, {CLIENT}"}, CLIENT),
        (PROXY, {"forwarded": f"for={OTHER}, for={CLIENT}"}, CLIENT),
        (PROXY, {"forwarded": f'for="{OTHER}, for={CLIENT}'}, CLIENT),
        (PROXY, {"x-forwarded-for": f"{OTHER}, {CLIENT}, 10.0.0.2"}, CLIENT),
        (PROXY, {"x-forwarded-for": "10.0.0.3, 10.0.0.2"}, "10.0.0.3"),
        # A proxy writes one header, and passes on the other as it came.
        (PROXY, {"x-forwarded-for": CLIENT, "forwarded": f"for={OTHER}"}, PROXY),
        (PROXY, {"x-forwarded-for": OTHER, "forwarded": "for=_hidden"}, PROXY),
        (PROXY, {"x-forwarded-for": CLIENT, "forwarded": f"for={CLIENT}"}, CLIENT),
        (PROXY, {"x-forwarded-for": f"{CLIENT}, unknown"}, PROXY),
        (PROXY, {"x-forwarded-for": "999.1.1.1"}, PROXY),
        (PROXY, {"x-forwarded-for": ""}, PROXY),
        (CLIENT, {"x-forwarded-for": OTHER}, CLIENT),
        (CLIENT, {"forwarded": f"for={OTHER}"}, CLIENT),
        ("", {"x-forwarded-for": OTHER}, ""),
    ]
    for peer, headers, client in cases:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        assert proxies.client_of(peer, raw) == client, (peer, headers)


def test_without_a_trusted_proxy_no_header_is_believed() -> None:
    assert Proxies.of([]).client_of(PROXY, [(b"x-forwarded-for", CLIENT.encode())]) == PROXY
