"""Following one session: the seam, the ends, and positions that cannot be honoured (F1 to F5)."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

from turnwire.errors import PositionLost
from turnwire.ids import Epoch, SessionId
from turnwire.limits import KiB, Limits
from turnwire.log import MemoryEventLog
from turnwire.log.base import Position
from turnwire.runtime.follow import Page, follow, start_of
from turnwire.runtime.tail import Tail
from turnwire_testing.faults import FaultyLog
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

SESSION = SessionId("s")
LIMITS = Limits(ring_events=16, page_events=16, page_bytes=16 * KiB)


class Publisher:
    """The actions of a session's loop for its followers: append, then publish."""

    def __init__(self, log: FaultyLog, epoch: Epoch) -> None:
        self.log = log
        self.epoch = epoch
        self.tail = Tail(LIMITS, epoch, 0)

    async def say(self, count: int, size: int = 0) -> None:
        new = [b"%d" % (self.tail.head + 1 + i) + b"." * size for i in range(count)]
        await self.log.append(SESSION, new, expected=self.tail.head, unsettled=False, durable=False)
        self.tail.publish(new)

    def follow(self, after: int, epoch: Epoch | None = None):
        position = Position(epoch or self.epoch, after)
        return aclosing(follow(self.log, self.tail, SESSION, position, LIMITS))


@pytest.fixture
async def publisher() -> Publisher:
    log = FaultyLog(MemoryEventLog(), [])
    return Publisher(log, (await log.create(SESSION)).epoch)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


async def test_history_then_the_present_without_a_seam(publisher: Publisher) -> None:
    await publisher.say(100)
    seen: list[bytes] = []
    with anyio.fail_after(WAIT_S):
        async with publisher.follow(0) as pages:
            async for page in pages:
                seen += page.frames
                assert page.offset == len(seen)
                if len(seen) < 300:
                    await publisher.say(11)
                elif publisher.tail.head == len(seen):
                    break
    assert seen == numbers(1, publisher.tail.head)


async def test_a_reader_at_the_head_waits_and_reads_memory_only(publisher: Publisher) -> None:
    await publisher.say(3)
    seen: list[Page] = []

    async def read() -> None:
        async with publisher.follow(3) as pages:
            seen.append(await anext(pages))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await quiet()
            assert seen == []
            await publisher.say(2)
    assert seen == [Page(5, numbers(4, 5))]
    assert publisher.log.calls["read"] == 0


async def test_a_page_holds_no_more_than_its_bounds_from_ring_and_log(publisher: Publisher) -> None:
    await publisher.say(40, size=3000)
    sizes: list[tuple[int, int]] = []
    with anyio.fail_after(WAIT_S):
        async with publisher.follow(0) as pages:
            async for page in pages:
                sizes.append((len(page.frames), sum(map(len, page.frames))))
                if page.offset == 40:
                    break
    assert publisher.log.calls["read"] > 0
    assert all(count <= 16 and size <= 16 * KiB for count, size in sizes)


async def test_an_event_larger_than_a_page_comes_alone(publisher: Publisher) -> None:
    await publisher.say(1)
    await publisher.say(1, size=40 * KiB)
    await publisher.say(1)
    with anyio.fail_after(WAIT_S):
        async with publisher.follow(0) as pages:
            got = [(await anext(pages)).offset for _ in range(3)]
    assert got == [1, 2, 3]


async def test_a_position_of_another_life_is_refused_before_anything_is_given(publisher: Publisher) -> None:
    await publisher.say(3)
    async with publisher.follow(1, epoch=Epoch("another")) as pages:
        with pytest.raises(PositionLost) as lost:
            await anext(pages)
    assert lost.value.context["why"] == "epoch"


async def test_a_position_beyond_the_head_is_refused_before_anything_is_given(publisher: Publisher) -> None:
    await publisher.say(3)
    async with publisher.follow(4) as pages:
        with pytest.raises(PositionLost) as lost:
            await anext(pages)
    assert lost.value.context["why"] == "ahead"


@pytest.mark.guarantee("G9")
async def test_what_was_trimmed_is_not_skipped(publisher: Publisher) -> None:
    await publisher.say(100)
    await publisher.log.trim(SESSION, upto=50)
    async with publisher.follow(20) as pages:
        with pytest.raises(PositionLost) as lost:
            await anext(pages)
    assert lost.value.context["why"] == "trimmed"
    async with publisher.follow(50) as pages:
        assert (await anext(pages)).frames == numbers(51, 66)


@pytest.mark.guarantee("G9")
async def test_a_reader_trimmed_away_while_it_stalls_hears_so_at_that_point(publisher: Publisher) -> None:
    await publisher.say(100)
    async with publisher.follow(0) as pages:
        first = await anext(pages)
        await publisher.log.trim(SESSION, upto=80)
        with pytest.raises(PositionLost) as lost:
            await anext(pages)
    assert first.frames == numbers(1, 16)
    assert lost.value.context["why"] == "trimmed"


async def test_a_follower_ends_with_its_session_after_the_last_event(publisher: Publisher) -> None:
    await publisher.say(5)
    publisher.tail.end()
    with anyio.fail_after(WAIT_S):
        async with publisher.follow(2) as pages:
            assert [page async for page in pages] == [Page(5, numbers(3, 5))]


def test_the_start_is_before_the_first_event() -> None:
    assert start_of(Epoch("e")) == Position(Epoch("e"), 0)
