"""Ten thousand readers of busy sessions: each sees every event once and in order, whatever its pace (F1 to F5).

A publisher appends batches while readers attach at random points, read at random paces, are cut at random points
and resume from their last offset. Rings and pages are tiny, so that every reader moves between ring and log all the
time. The seeds are fixed, so a failure can be repeated.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from turnwire.errors import PositionLost
from turnwire.ids import Epoch, SessionId
from turnwire.limits import KiB, Limits, MiB
from turnwire.log import Durability, EventLog, MemoryEventLog, SqliteEventLog
from turnwire.log.base import Position
from turnwire.log.postgres import open_postgres_log
from turnwire.runtime.follow import Page, follow
from turnwire.runtime.tail import Tail
from turnwire_testing.faults import FaultyLog
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

SESSION = SessionId("s")
TINY = Limits(ring_events=16, ring_bytes=64 * KiB, page_events=16, page_bytes=16 * KiB)

READERS = {"memory": 460, "sqlite": 60, "postgresql": 12}
"""With the visits below: at least 10,000 attach points and as many cuts, counted by the test."""
VISITS = 20


def body(offset: int) -> bytes:
    """Return the content of event number `offset`; some are larger than a page."""
    return b"%d:" % offset + b"." * (20 * KiB if offset % 997 == 0 else offset % 50)


class Publisher:
    """A busy session: appends and publishes, as the session's loop does."""

    def __init__(self, log: EventLog, epoch: Epoch, limits: Limits = TINY) -> None:
        self.log = log
        self.limits = limits
        self.epoch = epoch
        self.tail = Tail(limits, epoch, 0)

    async def say(self, count: int) -> None:
        new = [body(self.tail.head + 1 + number) for number in range(count)]
        await self.log.append(SESSION, new, expected=self.tail.head, unsettled=False, durable=False)
        self.tail.publish(new)

    def follow(self, after: int) -> aclosing[AsyncGenerator[Page]]:
        position = Position(self.epoch, after)
        return aclosing(follow(self.log, self.tail, SESSION, position, self.limits))


@asynccontextmanager
async def publishing(
    engine: str, folder: Path, limits: Limits = TINY, address: str = ""
) -> AsyncGenerator[Publisher]:
    async with AsyncExitStack() as stack:
        log: EventLog = MemoryEventLog()
        if engine == "sqlite":
            sqlite = await SqliteEventLog.open(folder / "log.db", limits=Limits(), durability=Durability.NORMAL)
            log = await stack.enter_async_context(sqlite)
        elif engine == "postgresql":
            database = open_postgres_log(address, limits=Limits())
            log = await stack.enter_async_context(database)
        yield Publisher(log, (await log.create(SESSION)).epoch, limits)


class Reader:
    """One client: attaches at some position, reads at its own pace, is cut, resumes from its position."""

    def __init__(self, publisher: Publisher, seed: int) -> None:
        self._publisher = publisher
        self._random = random.Random(seed)
        self._pace = seed % 3
        """0 reads as fast as it can, 1 pauses, 2 stalls for long between pages."""
        self.visits = 0

    async def run(self) -> None:
        publisher, chance = self._publisher, self._random
        for _ in range(VISITS):
            cursor = chance.randint(0, publisher.tail.head)
            for _ in range(2):
                self.visits += 1
                cursor = await self._visit(cursor)

    async def _visit(self, cursor: int) -> int:
        pages_left = self._random.randint(1, 4)
        async with self._publisher.follow(cursor) as pages:
            async for page in pages:
                expected = [body(offset) for offset in range(cursor + 1, cursor + 1 + len(page.frames))]
                assert page.frames == expected, f"after {cursor}"
                assert page.offset == cursor + len(page.frames)
                cursor = page.offset
                pages_left -= 1
                if not pages_left:
                    break
                await self._pause()
        return cursor

    async def _pause(self) -> None:
        for _ in range((0, 2, 20)[self._pace]):
            await anyio.lowlevel.checkpoint()


@pytest.fixture
def address(engine: str, request: pytest.FixtureRequest) -> str:
    """Return the address of an empty log in a database, if the engine needs one."""
    return request.getfixturevalue("postgres").new_log() if engine == "postgresql" else ""


@pytest.mark.guarantee("G9", "G10")
@pytest.mark.parametrize("engine", READERS)
async def test_every_reader_sees_every_event_once_and_in_order(engine: str, address: str, tmp_path: Path) -> None:
    async with publishing(engine, tmp_path, address=address) as publisher:
        counting = publisher.log = FaultyLog(publisher.log, [])
        await publisher.say(100)
        readers = [Reader(publisher, seed) for seed in range(READERS[engine])]
        running = len(readers)

        async def read(reader: Reader) -> None:
            nonlocal running
            await reader.run()
            running -= 1

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for reader in readers:
                    tasks.start_soon(read, reader)
                chance = random.Random(engine)
                while running:
                    await publisher.say(chance.choice((1, 1, 2, 5, 20, 60)))
                    await anyio.lowlevel.checkpoint()
                publisher.tail.end()
        visits = sum(reader.visits for reader in readers)
        assert visits == READERS[engine] * VISITS * 2
        assert counting.calls["read"] > visits / 4, "the readers hardly ever fell back to the log"
        assert publisher.tail.head > 500


def test_there_are_ten_thousand_attach_points_and_cuts() -> None:
    assert sum(READERS.values()) * VISITS >= 10_000, "fresh attach points"
    assert sum(READERS.values()) * VISITS * 2 >= 20_000, "visits, each with a cut at its end"


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgresql"])
async def test_replay_then_live_equals_live_alone(engine: str, address: str, tmp_path: Path) -> None:
    async with publishing(engine, tmp_path, address=address) as publisher:
        seen: dict[int, list[bytes]] = {}

        async def read(after: int) -> None:
            frames = seen.setdefault(after, [])
            async with publisher.follow(after) as pages:
                async for page in pages:
                    frames += page.frames

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, 0)
                await quiet()
                for number in range(1, 400):
                    await publisher.say(number % 7 + 1)
                    if number % 4 == 0:
                        tasks.start_soon(read, publisher.tail.head - number % 40)
                publisher.tail.end()
        live = seen.pop(0)
        assert live == [body(offset) for offset in range(1, publisher.tail.head + 1)]
        assert len(seen) > 50
        for after, frames in seen.items():
            assert frames == live[after:]


async def next_page(pages: AsyncGenerator[Page]) -> Page | str:
    """Return the next page, or the reason why there is none."""
    try:
        return await anext(pages)
    except PositionLost as error:
        return str(error.context["why"])


@pytest.mark.guarantee("G9")
async def test_a_stalled_reader_whose_events_are_trimmed_is_told_and_never_skips(tmp_path: Path) -> None:
    async with publishing("memory", tmp_path) as publisher:
        await publisher.say(500)
        lost = 0
        for seed in range(300):
            chance = random.Random(seed)
            head = await publisher.log.head(SESSION)
            cursor = chance.randint(head.first - 1, head.head)
            async with publisher.follow(cursor) as pages:
                for _ in range(3):
                    await publisher.say(chance.randint(1, 9))
                    upto = publisher.tail.head - chance.randint(20, 200)
                    first = await publisher.log.trim(SESSION, upto=upto)
                    page = await next_page(pages)
                    if isinstance(page, str):
                        assert page == "trimmed"
                        assert cursor < first - 1
                        lost += 1
                        break
                    assert page.frames == [body(cursor + 1 + number) for number in range(len(page.frames))]
                    cursor = page.offset
        assert 30 < lost < 300


# -- readers are free ----------------------------------------------------------------------------------------


@pytest.mark.guarantee("G10")
async def test_readers_that_stop_for_ever_cost_less_than_a_mebibyte_together(tmp_path: Path) -> None:
    """100 readers hold a page each and never resume; 2,000 events later memory is only that of ring and log."""
    limits = Limits(ring_events=256, page_events=16, page_bytes=16 * KiB)

    async def grown(readers: int) -> int:
        async with AsyncExitStack() as stack, publishing("sqlite", tmp_path / str(readers), limits) as publisher:
            await publisher.say(500)
            for number in range(readers):
                pages = await stack.enter_async_context(publisher.follow(number))
                await anext(pages)
            tracemalloc.start()
            try:
                for _ in range(200):
                    await publisher.say(10)
                return tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()

    (tmp_path / "0").mkdir()
    (tmp_path / "100").mkdir()
    with anyio.fail_after(WAIT_S):
        alone, watched = await grown(0), await grown(100)
    assert watched - alone < MiB


@pytest.mark.guarantee("G10")
async def test_publishing_does_the_same_work_with_a_thousand_stalled_readers_as_with_none(tmp_path: Path) -> None:
    """Counted in calls: append once, wake once, no read for a reader that does not ask."""

    async def work(readers: int) -> tuple[int, int]:
        async with AsyncExitStack() as stack, publishing("memory", tmp_path) as publisher:
            counting = publisher.log = FaultyLog(publisher.log, [])
            await publisher.say(100)
            for number in range(readers):
                pages = await stack.enter_async_context(publisher.follow(number % 100))
                await anext(pages)
            before = (counting.calls["append"], counting.calls["read"])
            for _ in range(100):
                await publisher.say(10)
            after = (counting.calls["append"], counting.calls["read"])
        return after[0] - before[0], after[1] - before[1]

    assert await work(0) == await work(1000) == (100, 0)


@pytest.mark.guarantee("G10")
async def test_stalled_readers_do_not_slow_the_others_down(tmp_path: Path) -> None:
    """A fast reader needs as many steps for the same events with a thousand stalled neighbours as alone."""

    async def steps(neighbours: int) -> int:
        async with AsyncExitStack() as stack, publishing("memory", tmp_path) as publisher:
            await publisher.say(10)
            for _ in range(neighbours):
                pages = await stack.enter_async_context(publisher.follow(0))
                await anext(pages)
            taken = 0
            async with publisher.follow(10) as pages:
                for _ in range(150):
                    await publisher.say(5)
                    page = await anext(pages)
                    taken += 1
                    assert page.offset == publisher.tail.head
            return taken

    assert await steps(0) == await steps(1000) == 150
