"""The ring: bounded, shared, encoded once, and ignorant of its readers."""

from __future__ import annotations

import anyio
import pytest

from turnwire.ids import Epoch
from turnwire.limits import KiB, Limits
from turnwire.runtime.tail import Tail, stored
from turnwire.testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

LIMITS = Limits(ring_events=16, ring_bytes=64 * KiB)
MANY, MUCH = 1000, 1 << 30


def bodies(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def ring(head: int = 0, limits: Limits = LIMITS) -> Tail:
    return Tail(limits, Epoch("e"), head)


class Counting:
    """A projection that counts how often each event is encoded."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def __call__(self, offset: int, body: bytes) -> bytes:
        self.offsets.append(offset)
        return b"%d:%b" % (offset, body)


def test_a_slice_is_what_lies_behind_the_cursor() -> None:
    tail = ring(head=10)
    tail.publish(bodies(11, 15))
    channel = tail.channel(stored)
    assert (tail.first, tail.head) == (11, 15)
    assert channel.frames(10, MANY, MUCH) == bodies(11, 15)
    assert channel.frames(13, MANY, MUCH) == bodies(14, 15)
    assert channel.frames(15, MANY, MUCH) == []
    assert channel.frames(20, MANY, MUCH) == []
    assert channel.frames(9, MANY, MUCH) is None


def test_a_page_is_bounded_by_events_and_bytes_and_is_never_empty_while_there_is_more() -> None:
    tail = ring()
    tail.publish([b"x" * 100, b"y" * 50, b"z" * 50, b"w"])
    channel = tail.channel(stored)
    assert channel.frames(0, 2, MUCH) == [b"x" * 100, b"y" * 50]
    assert channel.frames(1, MANY, 100) == [b"y" * 50, b"z" * 50]
    assert channel.frames(1, MANY, 99) == [b"y" * 50]
    assert channel.frames(0, MANY, 10) == [b"x" * 100], "one event that is larger than a page is a page"


def test_the_ring_keeps_between_one_and_two_times_its_events() -> None:
    tail = ring()
    for number in range(1, 1001):
        tail.publish([b"%d" % number])
        assert 16 <= tail.head - tail.first + 1 <= 32 or number < 16
        kept = tail.channel(stored).frames(tail.first - 1, MANY, MUCH)
        assert kept == bodies(tail.first, number)


def test_the_ring_is_bounded_by_bytes_too() -> None:
    tail = ring()
    for number in range(200):
        tail.publish([b"%d" % number + b"x" * 10 * KiB])
        kept = tail.channel(stored).frames(tail.first - 1, MANY, MUCH)
        assert kept is not None
        assert sum(map(len, kept)) <= 2 * LIMITS.ring_bytes + 11 * KiB
    tail.publish([b"y" * 1000 * KiB])
    assert tail.first == tail.head + 1, "one event larger than the ring is read from the log"
    assert tail.channel(stored).frames(tail.head, MANY, MUCH) == []
    assert tail.channel(stored).frames(tail.head - 1, MANY, MUCH) is None


def test_each_frame_is_encoded_once_however_many_read_and_wherever_they_begin() -> None:
    tail, count = ring(), Counting()
    tail.publish(bodies(1, 12))
    channel = tail.channel(count)
    for after in (9, 4, 7, 0, 11, 2):
        for _ in range(50):
            assert channel.frames(after, MANY, MUCH) == [b"%d:%d" % (n, n) for n in range(after + 1, 13)]
    tail.publish(bodies(13, 14))
    for after in (0, 5, 12):
        channel.frames(after, MANY, 8)
        channel.frames(after, MANY, MUCH)
    assert sorted(count.offsets) == list(range(1, 15))


def test_one_channel_per_projection() -> None:
    tail, count = ring(), Counting()
    assert tail.channel(count) is tail.channel(count)
    assert tail.channel(count) is not tail.channel(stored)


def test_what_nobody_reads_is_not_encoded() -> None:
    tail, count = ring(), Counting()
    channel = tail.channel(count)
    for first in range(1, 401, 4):
        tail.publish(bodies(first, first + 3))
    assert count.offsets == []
    assert channel.frames(399, MANY, MUCH) == [b"400:400"]
    assert count.offsets == list(range(tail.first, 401)), "what left the ring unread was never encoded"


def test_a_channel_goes_on_over_dropped_events() -> None:
    tail, count = ring(), Counting()
    channel = tail.channel(count)
    cursor = 0
    for first in range(1, 2001, 7):
        tail.publish(bodies(first, first + 6))
        frames = channel.frames(cursor, MANY, MUCH)
        assert frames == [b"%d:%d" % (n, n) for n in range(cursor + 1, first + 7)]
        cursor = first + 6
    assert count.offsets == list(range(1, cursor + 1))


def test_skipping_ahead_starts_over_behind_the_log() -> None:
    tail = ring()
    channel = tail.channel(stored)
    tail.publish(bodies(1, 5))
    channel.frames(0, MANY, MUCH)
    tail.skip_to(3)
    assert tail.head == 5, "a ring never goes back"
    tail.skip_to(9)
    assert (tail.first, tail.head) == (10, 9)
    assert channel.frames(5, MANY, MUCH) is None
    tail.publish(bodies(10, 11))
    assert channel.frames(9, MANY, MUCH) == bodies(10, 11)


async def test_waiting_ends_when_there_is_more_or_when_there_will_be_none() -> None:
    tail, heard = ring(), list[bool]()

    async def wait(after: int) -> None:
        heard.append(await tail.wait(after))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 0)
            await quiet()
            tail.publish([b"1"])
            await quiet()
            assert heard == [True]
            tasks.start_soon(wait, 1)
            tasks.start_soon(wait, 1)
            await quiet()
            tail.end()
        assert heard == [True, False, False]
        assert await tail.wait(0), "what was published is still to be read"
        assert not await tail.wait(1)


async def test_a_cancelled_waiter_leaves_the_others_waiting() -> None:
    tail, woken = ring(), list[str]()

    async def wait(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await tail.wait(0)
            woken.append(name)

    scopes = [anyio.CancelScope() for _ in range(2)]
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for name, scope in zip("ab", scopes, strict=True):
                tasks.start_soon(wait, name, scope)
            await quiet()
            scopes[0].cancel()
            await quiet()
            assert woken == []
            tail.publish([b"1"])
    assert woken == ["b"]
