"""Frames that are in no log: in order, for any number of readers, and bounded."""

from __future__ import annotations

import anyio
import pytest

from turnwire.server.acp.subscription import BEHIND, FrameQueue, Wake
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio


async def test_what_was_held_goes_to_the_first_reader_and_then_to_all() -> None:
    queue = FrameQueue(100)
    queue.put(b"held")
    with queue.open(Wake()) as one, queue.open(Wake()) as two:
        queue.put(b"both")
        assert [one.next(), one.next(), one.next()] == [b"held", b"both", None]
        assert [two.next(), two.next()] == [b"both", None]
    queue.put(b"later")
    with queue.open(Wake()) as three:
        assert [three.next(), three.next()] == [b"later", None]


async def test_a_frame_waits_behind_its_event() -> None:
    queue = FrameQueue(100)
    queue.put(b"answer", after=7)
    with queue.open(Wake()) as reader:
        assert reader.next(upto=6) is None
        assert reader.next(upto=7) == b"answer"


async def test_a_reader_that_falls_behind_is_let_go_and_delays_nobody() -> None:
    queue = FrameQueue(64)
    with queue.open(Wake()) as slow, queue.open(Wake()) as fast:
        for number in range(200):
            queue.put(b"%d" % number)
            assert fast.next() == b"%d" % number
        assert slow.is_late
        assert slow.next() is None
        assert not queue.is_lost


async def test_a_reader_that_falls_behind_the_log_is_let_go_sooner() -> None:
    queue = FrameQueue(1000)
    with queue.open(Wake()) as slow, queue.open(Wake()) as fast:
        for number in range(BEHIND):
            assert queue.has_room(Wake())
            queue.put_all([b"%d" % number])
            assert fast.rest() == [b"%d" % number]
        assert not slow.is_late
        queue.put_all([b"more"])
        assert slow.is_late
        assert slow.rest() == []
        assert fast.rest() == [b"more"]


async def test_whoever_puts_a_page_of_the_log_waits_until_the_one_before_it_is_taken() -> None:
    queue = FrameQueue(1000)
    put = 0

    async def fill() -> None:
        nonlocal put
        wake = Wake()
        for number in range(20):
            while not queue.has_room(wake):
                await wake.wait()
            queue.put_all([b"%d" % number, b"and"])
            put += 1

    got: list[bytes] = []
    with anyio.fail_after(WAIT_S), queue.open(Wake()) as reader:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill)
            await quiet()
            assert put == 1
            queue.put(b"answer")
            while len(got) < 41:
                got += reader.rest()
                await quiet()
    assert put == 20
    assert got[:4] == [b"0", b"and", b"answer", b"1"]


async def test_pages_of_the_log_can_be_forgotten_while_they_wait() -> None:
    queue = FrameQueue(1000)
    with queue.open(Wake()) as reader:
        queue.put(b"answer")
        queue.put_all([b"page"])
        queue.forget_logged()
        assert reader.rest() == [b"answer"]
        assert queue.has_room(Wake())
