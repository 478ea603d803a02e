"""The contract of `turnwire.hosting.base.FrameLink` as checks against any link.

Each check opens two connected ends, uses them and closes them; a failure names the broken obligation. No check
depends on anything outside the contract; every wait is bounded. With pytest:

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    async def test_my_link_keeps_the_contract(check):
        await check(open_my_pair)

A link needs room for 32 small frames to pass.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

import anyio
import pytest
from anyio import fail_after

from turnwire.errors import LimitExceeded, LinkBroken, LinkClosed, LocalProtocolError
from turnwire.hosting.base import FrameLink
from turnwire_testing.patience import WAIT_S, quiet

Pair: TypeAlias = tuple[FrameLink, FrameLink]
OpenPair: TypeAlias = Callable[[], Awaitable[Pair]]

MANY = 200_000
"""More frames of `FILLER` than any link may accept without a reader."""

FILLER = b"x" * 1024


async def take(link: FrameLink, count: int) -> list[bytes]:
    """Receive until `count` frames have arrived."""
    frames: list[bytes] = []
    with fail_after(WAIT_S):
        while len(frames) < count:
            frames += await link.receive()
    return frames


def fill(link: FrameLink) -> int:
    """Send without waiting until the link refuses; how many frames it took."""
    for taken in range(MANY):
        try:
            link.send_nowait(b"%d %b" % (taken, FILLER))
        except LimitExceeded:
            return taken
    pytest.fail(f"the link took {MANY} frames that nobody read")


async def send_for_ever(link: FrameLink) -> None:
    while True:
        await link.send(FILLER)


class Check:
    """One obligation of the contract as a function. `str(check)` names the obligation and the promise."""

    def __init__(self, obligation: str, run: Callable[[FrameLink, FrameLink], Awaitable[None]]) -> None:
        self.obligation = obligation
        self._run = run

    async def __call__(self, open_pair: OpenPair) -> None:
        near, far = await open_pair()
        async with aclosing(near), aclosing(far):
            await self._run(near, far)

    def __str__(self) -> str:
        return f"{self.obligation}_{self._run.__name__}"


def check(obligation: str) -> Callable[[Callable[[FrameLink, FrameLink], Awaitable[None]]], Check]:
    """Make a function over two ends a check of this obligation."""
    return lambda run: Check(obligation, run)


@check("K1")
async def frames_arrive_in_order_each_once(near: FrameLink, far: FrameLink) -> None:
    sent = [b'{"n":%d}' % number for number in range(500)]

    async def send_all() -> None:
        for frame in sent:
            await near.send(frame)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send_all)
        assert await take(far, len(sent)) == sent


@check("K1")
async def both_directions_are_independent(near: FrameLink, far: FrameLink) -> None:
    await near.send(b"there")
    await far.send(b"back")
    assert await take(near, 1) == [b"back"]
    assert await take(far, 1) == [b"there"]


@check("K1")
async def send_nowait_does_not_overtake_send(near: FrameLink, far: FrameLink) -> None:
    await near.send(b"first")
    near.send_nowait(b"second")
    assert await take(far, 2) == [b"first", b"second"]


@check("K2")
async def large_and_odd_frames_arrive_whole(near: FrameLink, far: FrameLink) -> None:
    sent = [b"x" * 3_000_000, "{'grüße': '\u2028'}".encode(), b"\x00\xff", b"y"]

    async def send_all() -> None:
        for frame in sent:
            await near.send(frame)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send_all)
        assert await take(far, len(sent)) == sent


@check("K3")
async def send_nowait_refuses_when_nobody_reads_and_sends_nothing(near: FrameLink, far: FrameLink) -> None:
    taken = fill(near)
    with pytest.raises(LimitExceeded):
        near.send_nowait(b"refused" + FILLER)
    frames = await take(far, taken)
    assert [frame.split()[0] for frame in frames] == [b"%d" % number for number in range(taken)]


@check("K3")
async def send_waits_for_room_and_goes_on_when_there_is_some(near: FrameLink, far: FrameLink) -> None:
    taken = fill(near)
    done = anyio.Event()

    async def send_one_more() -> None:
        await near.send(FILLER)
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send_one_more)
        await quiet()
        assert not done.is_set()
        assert (await take(far, taken + 1))[-1] == FILLER
        with fail_after(WAIT_S):
            await done.wait()


@check("K4")
async def what_arrived_is_given_before_broken_and_broken_stays(near: FrameLink, far: FrameLink) -> None:
    for frame in (b"one", b"two", b"three"):
        await near.send(frame)
    await near.aclose()
    assert await take(far, 3) == [b"one", b"two", b"three"]
    for _ in range(3):
        with fail_after(WAIT_S), pytest.raises(LinkBroken):
            await far.receive()


@check("K4")
async def a_reader_that_waits_learns_that_the_peer_closed(near: FrameLink, far: FrameLink) -> None:

    async def expect_broken() -> None:
        with pytest.raises(LinkBroken):
            await far.receive()

    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_broken)
            await quiet()
            await near.aclose()


@check("K4")
async def sending_to_a_peer_that_is_gone_ends_in_broken(near: FrameLink, far: FrameLink) -> None:
    await far.aclose()
    with fail_after(WAIT_S), pytest.raises(LinkBroken):
        await send_for_ever(near)


@check("K4")
async def a_sender_that_waits_learns_that_the_peer_closed(near: FrameLink, far: FrameLink) -> None:
    fill(near)

    async def expect_broken() -> None:
        with pytest.raises(LinkBroken):
            await send_for_ever(near)

    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_broken)
            await quiet()
            await far.aclose()


@check("K5")
async def after_closing_every_call_but_closing_is_refused(near: FrameLink, far: FrameLink) -> None:
    await far.send(b"unread")
    await near.aclose()
    await near.aclose()
    with pytest.raises(LinkClosed):
        await near.receive()
    with pytest.raises(LinkClosed):
        await near.send(b"late")
    with pytest.raises(LinkClosed):
        near.send_nowait(b"late")


@check("K5")
async def closing_wakes_the_own_reader(near: FrameLink, far: FrameLink) -> None:

    async def expect_closed() -> None:
        with pytest.raises(LinkClosed):
            await near.receive()

    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_closed)
            await quiet()
            await near.aclose()


@check("K6")
async def a_second_reader_is_refused_and_the_first_goes_on(near: FrameLink, far: FrameLink) -> None:
    received: list[bytes] = []

    async def read() -> None:
        received.extend(await far.receive())

    with fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await quiet()
            with pytest.raises(LocalProtocolError):
                await far.receive()
            await near.send(b"for the first")
    assert received == [b"for the first"]


@check("K7")
async def a_cancelled_receive_loses_no_frame(near: FrameLink, far: FrameLink) -> None:
    received: list[bytes] = []

    async def read() -> None:
        received.extend(await far.receive())

    for number in range(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await quiet()
            near.send_nowait(b"%d" % number)
            tasks.cancel_scope.cancel()
    if len(received) < 20:
        received += await take(far, 20 - len(received))
    assert received == [b"%d" % number for number in range(20)]


@check("K7")
async def a_cancelled_send_has_sent_all_or_nothing(near: FrameLink, far: FrameLink) -> None:
    taken = fill(near)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(near.send, b"cancelled")
        await quiet()
        tasks.cancel_scope.cancel()
    frames = await take(far, taken)
    await near.send(b"after")
    rest = frames[taken:] + await take(far, 1)
    while rest[-1] != b"after":
        rest += await take(far, 1)
    assert rest in ([b"after"], [b"cancelled", b"after"])


CHECKS = tuple(value for value in tuple(globals().values()) if isinstance(value, Check))
"""Every check, for every link."""
