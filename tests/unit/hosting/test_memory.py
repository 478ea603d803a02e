"""The in-process link's additions to the contract of every link: batches as one list, and its own bound."""

from __future__ import annotations

import anyio
import pytest
from anyio import fail_after

from turnwire.errors import LimitExceeded, LinkBroken, LinkClosed, LocalProtocolError
from turnwire.hosting.base import FrameLink
from turnwire.hosting.memory import memory_pair
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio


async def test_a_burst_is_taken_as_one_list() -> None:
    near, far = memory_pair()
    burst = [b"%d" % number for number in range(1000)]
    for frame in burst:
        near.send_nowait(frame)
    assert await far.receive() == burst


async def test_frames_are_not_copied() -> None:
    near, far = memory_pair()
    frame = b"the same object" * 2
    near.send_nowait(frame)
    [received] = await far.receive()
    assert received is frame


async def test_both_ends_are_frame_links() -> None:
    near, far = memory_pair()
    assert isinstance(near, FrameLink)
    assert isinstance(far, FrameLink)


async def test_the_bound_is_the_number_of_frames_given() -> None:
    near, _ = memory_pair(max_frames=2)
    near.send_nowait(b"1")
    near.send_nowait(b"2")
    with pytest.raises(LimitExceeded) as refusal:
        near.send_nowait(b"3")
    assert refusal.value.context == {"limit": "max_frames", "value": 2}


def test_a_link_without_room_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        memory_pair(max_frames=0)


async def test_senders_that_wait_keep_their_order_with_room_for_one_frame() -> None:
    near, far = memory_pair(max_frames=1)
    received: list[bytes] = []
    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(near.send, b"%d" % number)
            await quiet()
            while len(received) < 10:
                received += await far.receive()
    assert received == [b"%d" % number for number in range(10)]


async def test_send_nowait_does_not_overtake_a_sender_that_waits() -> None:
    near, far = memory_pair(max_frames=1)
    near.send_nowait(b"1")
    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(near.send, b"2")
            await quiet()
            with pytest.raises(LimitExceeded):
                near.send_nowait(b"3")
            assert await far.receive() == [b"1"]
    assert await far.receive() == [b"2"]


async def test_a_cancelled_sender_leaves_no_frame_and_does_not_block_the_next() -> None:
    near, far = memory_pair(max_frames=1)
    near.send_nowait(b"1")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(near.send, b"cancelled")
        await quiet()
        tasks.cancel_scope.cancel()
    assert await far.receive() == [b"1"]
    near.send_nowait(b"2")
    assert await far.receive() == [b"2"]


@pytest.mark.parametrize(("who", "error"), [("near", LinkClosed), ("far", LinkBroken)])
async def test_closing_either_end_wakes_a_sender_that_waits(who: str, error: type[Exception]) -> None:
    near, far = memory_pair(max_frames=1)
    near.send_nowait(b"1")

    async def expect_refusal() -> None:
        with pytest.raises(error):
            await near.send(b"2")

    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_refusal)
            await quiet()
            await {"near": near, "far": far}[who].aclose()


async def test_a_sender_whose_frame_was_taken_succeeds_although_its_end_closes_at_once() -> None:
    near, far = memory_pair(max_frames=1)
    near.send_nowait(b"1")
    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(near.send, b"2")
            await quiet()
            assert await far.receive() == [b"1"]
            await near.aclose()
        assert await far.receive() == [b"2"]
