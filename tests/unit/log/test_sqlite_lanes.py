"""Who commits and who syncs: the loop while the disk is quick, and it syncs for one session alone; else the thread.
And what a failing disk does to either."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
import pytest

from turnwire.errors import LogError, LogFull, LogUnavailable
from turnwire.ids import SessionId
from turnwire.limits import KiB, Limits
from turnwire.log import Durability, Position, SqliteEventLog
from turnwire.log.sqlite_writer import (
    ALONE_S,
    LITTLE_BYTES,
    LONGEST_REST_S,
    REST_S,
    SLOW_S,
    SLOW_SYNC_S,
    SMALL_BYTES,
    SMALL_EVENTS,
    Lane,
)
from turnwire.testing.faults import WAIT_S, SqliteFaults
from turnwire.testing.patience import quiet

pytestmark = pytest.mark.anyio

T = TypeVar("T")

A, B = SessionId("a"), SessionId("b")
LONG = SessionId("long")
"""It makes the write-ahead log so long that nothing but the test happens to it."""


class Disk:
    """A disk whose syncs are counted, held and broken, and on which time passes in commits and syncs alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.commit_s = self.loop_s = self.sync_s = 0.0
        self.syncs = 0
        self.syncers: list[str] = []
        self.at_sync: Callable[[], None] = lambda: None
        self.fails_at = 0
        """At which sync it fails; never at 0."""
        self.reached, self._go_on = threading.Event(), threading.Event()
        self._go_on.set()
        self.committers: list[str] = []

    def hold(self) -> None:
        """The next sync waits for `release`."""
        self.reached.clear()
        self._go_on.clear()

    def release(self) -> None:
        self._go_on.set()

    async def wait_for_sync(self) -> None:
        assert await anyio.to_thread.run_sync(self.reached.wait, WAIT_S)

    def sync(self, file: int) -> None:
        self.syncs += 1
        self.now += self.sync_s
        self.syncers.append(_who())
        self.at_sync()
        self.reached.set()
        assert self._go_on.wait(WAIT_S), "nobody released the sync"
        if self.syncs == self.fails_at:
            raise OSError(errno.EIO, "words of the system")
        os.fsync(file)

    def timer(self) -> float:
        return self.now

    def before(self, _: sqlite3.Connection, sql: str) -> None:
        """For `SqliteFaults.before`."""
        if sql == "COMMIT":
            who = _who()
            self.now += self.commit_s + (self.loop_s if who == "loop" else 0.0)
            self.committers.append(who)


def _who() -> str:
    return "loop" if threading.current_thread() is threading.main_thread() else "thread"


@pytest.fixture
def disk(faults: SqliteFaults) -> Disk:
    disk = Disk()
    faults.before = disk.before
    return disk


async def opened(
    folder: Path, disk: Disk, limits: Limits | None = None, durability: Durability = Durability.NORMAL
) -> SqliteEventLog:
    """A log with two sessions, past all that happens once: the file is long, and nobody but the test uses it."""
    limits = limits or Limits()
    log = await SqliteEventLog.open(
        folder / "log.db", limits=limits, durability=durability, sync=disk.sync, timer=disk.timer
    )
    await log.create(LONG)
    await log.append(LONG, [b"x" * (SMALL_BYTES + 1)], expected=0, unsettled=False, durable=False)
    wal = anyio.Path(folder / "log.db-wal")
    length = min(limits.checkpoint_bytes, 4 * SMALL_BYTES + 4)
    with anyio.fail_after(WAIT_S):
        while (await wal.stat()).st_size < length or log.statistics().is_checkpointing:
            await anyio.lowlevel.checkpoint()
    # The thread waits until the file may be used.
    await log.trim(LONG, upto=0)
    for name in (A, B):
        await log.create(name)
    disk.syncs = 0
    return log


async def append(
    log: SqliteEventLog, name: SessionId, expected: int, *, durable: bool = False, count: int = 1
) -> int:
    bodies = [b"%d" % (expected + 1 + number) for number in range(count)]
    return await log.append(name, bodies, expected=expected, unsettled=False, durable=durable)


async def bodies_of(log: SqliteEventLog, name: SessionId) -> list[bytes]:
    head = await log.head(name)
    page = await log.read(name, Position(head.epoch, 0), max_events=head.head + 1, max_bytes=1 << 30)
    return [each.body for each in page]


def at_once(call: Awaitable[T]) -> T:
    """The result of a call that must not wait for anything."""
    steps = call.__await__()
    try:
        next(steps)
    except StopIteration as done:
        return done.value
    raise AssertionError("the call waits")


# -- a quick disk ----------------------------------------------------------------------------------------------


async def test_a_small_append_is_committed_by_the_loop_and_waits_for_nobody(tmp_path: Path, disk: Disk) -> None:
    async with await opened(tmp_path, disk) as log:
        disk.committers.clear()
        for head in range(10):
            assert at_once(append(log, A, head)) == head + 1
        assert (await log.head(A)).head == 10
        assert log.statistics().lane is Lane.INLINE
        assert log.statistics().waiting == 0
        assert disk.committers == ["loop"] * 10
        assert disk.syncs == 0
        assert await bodies_of(log, A) == [b"%d" % number for number in range(1, 11)]


@pytest.mark.parametrize(("count", "size"), [(SMALL_EVENTS + 1, 1), (1, SMALL_BYTES + 1)])
async def test_a_large_append_and_other_changes_are_the_threads(
    tmp_path: Path, disk: Disk, count: int, size: int
) -> None:
    async with await opened(tmp_path, disk) as log:
        disk.committers.clear()
        await log.append(A, [b"x" * size] * count, expected=0, unsettled=False, durable=False)
        await log.trim(A, upto=1)
        await log.delete(A)
        assert set(disk.committers) == {"thread"}
        assert log.statistics().lane is Lane.INLINE, "and then it is the loop's turn again"


@pytest.mark.requirement("G2")
async def test_a_durable_append_is_in_no_head_before_it_is_synced(tmp_path: Path, disk: Disk) -> None:
    async with await opened(tmp_path, disk) as log, anyio.create_task_group() as tasks:
        disk.hold()
        tasks.start_soon(lambda: append(log, A, 0, durable=True))
        await disk.wait_for_sync()
        assert disk.committers[-1] == "loop"
        assert (await log.head(A)).head == 0
        assert await bodies_of(log, A) == []
        assert at_once(append(log, B, 0)) == 1, "others do not wait for it"
        disk.release()
        with anyio.fail_after(WAIT_S):
            while (await log.head(A)).head == 0:
                await anyio.lowlevel.checkpoint()
    assert disk.syncs == 1


async def test_one_sync_is_for_all_that_were_committed_before_it_began(tmp_path: Path, disk: Disk) -> None:
    names = [SessionId(f"s{number}") for number in range(20)]
    async with await opened(tmp_path, disk) as log:
        for name in names:
            await log.create(name)
        disk.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: append(log, A, 0, durable=True))
            await disk.wait_for_sync()
            for name in names:
                tasks.start_soon(lambda name=name: append(log, name, 0, durable=True))
            await anyio.lowlevel.checkpoint()
            disk.release()
        assert disk.syncs == 2
        assert {each.head for each in await log.sessions() if each.session_id not in (B, LONG)} == {1}


async def test_an_append_behind_an_unsynced_one_waits_with_it(tmp_path: Path, disk: Disk) -> None:
    ended: list[int] = []
    async with await opened(tmp_path, disk) as log:

        async def one(expected: int, *, durable: bool, count: int = 1) -> None:
            ended.append(await append(log, A, expected, durable=durable, count=count))

        disk.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: one(0, durable=True))
            await disk.wait_for_sync()
            tasks.start_soon(lambda: one(1, durable=False))
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(lambda: one(2, durable=False, count=SMALL_EVENTS + 1))
            await quiet()
            assert ended == []
            assert (await log.head(A)).head == 0
            disk.release()
        assert ended == [1, 2, 3 + SMALL_EVENTS]
        assert at_once(append(log, A, ended[-1])) == ended[-1] + 1


async def test_appends_queue_behind_what_the_thread_has(tmp_path: Path, disk: Disk, faults: SqliteFaults) -> None:
    ended: list[int] = []
    async with await opened(tmp_path, disk) as log:

        async def one(expected: int, count: int) -> None:
            ended.append(await append(log, A, expected, count=count))

        faults.hold("COMMIT")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, 0, SMALL_EVENTS + 1)
            await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
            tasks.start_soon(one, SMALL_EVENTS + 1, 1)
            tasks.start_soon(one, SMALL_EVENTS + 2, 1)
            await quiet()
            assert ended == []
            assert log.statistics().lane is Lane.THREAD
            faults.release()
        assert ended == [SMALL_EVENTS + 1, SMALL_EVENTS + 2, SMALL_EVENTS + 3]
        assert log.statistics().lane is Lane.INLINE


async def test_a_program_that_holds_the_file_does_not_hold_the_loop(tmp_path: Path, disk: Disk) -> None:
    async with await opened(tmp_path, disk) as log, anyio.create_task_group() as tasks:
        with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            tasks.start_soon(append, log, A, 0)
            await anyio.lowlevel.checkpoint()
            assert log.statistics().lane is Lane.THREAD
            assert (await log.head(A)).head == 0
            other.execute("ROLLBACK")
        with anyio.fail_after(WAIT_S):
            while (await log.head(A)).head == 0:
                await anyio.lowlevel.checkpoint()
    assert disk.committers[-1] == "thread"


async def test_the_commit_after_a_checkpoint_is_the_threads(tmp_path: Path, disk: Disk) -> None:
    limits = Limits(checkpoint_bytes=256 * KiB)
    async with await opened(tmp_path, disk, limits) as log:
        disk.committers.clear()
        head = 0
        with anyio.fail_after(WAIT_S):
            while "thread" not in disk.committers:
                head = await append(log, A, head, count=100)
                await anyio.lowlevel.checkpoint()
        assert log.statistics().lane is Lane.INLINE
        assert await bodies_of(log, A) == [b"%d" % number for number in range(1, head + 1)]


# -- one session alone
# ----------------------------------------------------------------------------------------------


async def known_quick(folder: Path, disk: Disk, durability: Durability = Durability.NORMAL) -> SqliteEventLog:
    """A log whose first sync was quick, long ago; `A` has one event."""
    log = await opened(folder, disk, durability=durability)
    await append(log, A, 0, durable=True)
    disk.now += 2 * ALONE_S
    disk.syncs = 0
    disk.syncers.clear()
    return log


@pytest.mark.requirement("G2")
async def test_what_one_session_wants_is_synced_by_the_loop_before_its_head_moves(
    tmp_path: Path, disk: Disk
) -> None:
    async with await known_quick(tmp_path, disk) as log:
        heads: list[int] = []
        disk.at_sync = lambda: heads.append(at_once(log.head(A)).head)
        for head in range(1, 11):
            assert at_once(append(log, A, head, durable=True)) == head + 1
            assert (await log.head(A)).head == head + 1
        assert heads == [*range(1, 11)]
        assert disk.syncers == ["loop"] * 10
        assert log.statistics().waiting == 0
        assert await bodies_of(log, A) == [b"%d" % number for number in range(1, 12)]


async def test_the_first_sync_is_the_threads_for_nobody_knows_the_disk(tmp_path: Path, disk: Disk) -> None:
    async with await opened(tmp_path, disk) as log:
        disk.syncers.clear()
        head = await append(log, A, 0, durable=True)
        assert disk.syncers == ["thread"]
        assert at_once(append(log, A, head, durable=True)) == 2


async def test_at_full_every_append_of_one_session_is_synced_by_the_loop(tmp_path: Path, disk: Disk) -> None:
    async with await known_quick(tmp_path, disk, Durability.FULL) as log:
        for head in range(1, 6):
            assert at_once(append(log, A, head)) == head + 1
        assert disk.syncers == ["loop"] * 5


async def test_while_several_sessions_want_a_sync_the_thread_syncs(tmp_path: Path, disk: Disk) -> None:
    async with await known_quick(tmp_path, disk) as log:
        assert at_once(append(log, B, 0, durable=True)) == 1
        disk.now += ALONE_S / 2
        assert await append(log, A, 1, durable=True) == 2
        disk.now += ALONE_S / 2
        assert await append(log, B, 1, durable=True) == 2
        assert disk.syncers == ["loop", "thread", "thread"]
        assert at_once(append(log, B, 2, durable=True)) == 3, "the same one again"
        disk.now += ALONE_S
        assert at_once(append(log, A, 2, durable=True)) == 3, "nobody else for a while"


async def test_the_loop_does_not_sync_while_the_thread_does(tmp_path: Path, disk: Disk) -> None:
    async with await known_quick(tmp_path, disk) as log, anyio.create_task_group() as tasks:
        await append(log, B, 0, durable=True)
        disk.hold()
        tasks.start_soon(lambda: append(log, A, 1, durable=True))
        await disk.wait_for_sync()
        disk.now += 2 * ALONE_S
        tasks.start_soon(lambda: append(log, B, 1, durable=True))
        await quiet()
        assert log.statistics().waiting == 2
        disk.release()
    assert disk.syncers[1:] == ["thread", "thread"]


@pytest.mark.parametrize("count", [1, 8], ids="in {}".format)
async def test_much_that_is_not_synced_is_the_threads_to_sync(tmp_path: Path, disk: Disk, count: int) -> None:
    async with await known_quick(tmp_path, disk) as log:
        for number in range(count):
            call = log.append(
                A, [b"x" * (LITTLE_BYTES // count)], expected=1 + number, unsettled=True, durable=False
            )
            assert at_once(call) == 2 + number
        head = await append(log, A, 1 + count, durable=True)
        assert disk.syncers == ["thread"]
        assert at_once(append(log, A, head, durable=True)) == head + 1, "it has synced all of it"


async def test_what_the_thread_has_committed_is_the_threads_to_sync(tmp_path: Path, disk: Disk) -> None:
    async with await known_quick(tmp_path, disk) as log:
        await append(log, A, 1, count=SMALL_EVENTS + 1)
        head = await append(log, A, SMALL_EVENTS + 2, durable=True)
        head = await append(log, A, head, durable=True, count=SMALL_EVENTS + 1)
        assert disk.syncers == ["thread"] * 2
        assert at_once(append(log, A, head, durable=True)) == head + 1


async def test_the_loop_does_not_sync_beside_a_checkpoint(tmp_path: Path, disk: Disk, faults: SqliteFaults) -> None:
    limits = Limits(checkpoint_bytes=256 * KiB)
    async with await opened(tmp_path, disk, limits) as log:
        head = await append(log, A, 0, durable=True)
        faults.hold("PRAGMA wal_checkpoint(PASSIVE)")
        with anyio.fail_after(WAIT_S):
            while not faults.reached.is_set():
                head = await append(log, A, head, count=100)
                await anyio.lowlevel.checkpoint()
        head = await append(log, A, head, durable=True)
        disk.syncers.clear()
        head = await append(log, A, head, durable=True)
        assert disk.syncers == ["thread"]
        faults.release()
        with anyio.fail_after(WAIT_S):
            while "loop" not in disk.syncers:
                head = await append(log, A, head, durable=True)
                await anyio.lowlevel.checkpoint()


async def test_a_slow_sync_is_the_last_one_of_the_loop_until_the_thread_finds_the_disk_quick(
    tmp_path: Path, disk: Disk
) -> None:
    async with await known_quick(tmp_path, disk) as log:
        disk.sync_s = 2 * SLOW_SYNC_S
        assert at_once(append(log, A, 1, durable=True)) == 2
        head = 2
        for _ in range(3):
            disk.now += 100 * SLOW_SYNC_S
            head = await append(log, A, head, durable=True)
        assert disk.syncers == ["loop", *["thread"] * 3], "however long ago the last one was"
        assert at_once(append(log, A, head)) == head + 1, "it commits as before"
        head += 1
        disk.sync_s = 0.0
        head = await append(log, A, head, durable=True)
        disk.now += 40 * SLOW_SYNC_S
        head = await append(log, A, head, durable=True)
        assert disk.syncers[-2:] == ["thread"] * 2, "it rests for many times as long as the slow one took"
        disk.now += 20 * SLOW_SYNC_S
        assert at_once(append(log, A, head, durable=True)) == head + 1


async def test_a_disk_that_is_slow_time_and_again_holds_the_loop_for_a_small_part_of_the_time(
    tmp_path: Path, disk: Disk
) -> None:
    async with await known_quick(tmp_path, disk) as log:
        began, head, held_s = disk.now, 1, 0.0
        for number in range(1000):
            disk.sync_s = (0.0, 0.0, 4 * SLOW_SYNC_S)[number % 3]
            head = await append(log, A, head, durable=True)
            held_s += disk.sync_s if disk.syncers[-1] == "loop" else 0.0
        assert 0 < held_s < (disk.now - began) / 20


@pytest.mark.requirement("G1", "G2")
@pytest.mark.parametrize("level", list(Durability))
@pytest.mark.parametrize("fails_at", [1, 2, 9])
async def test_a_sync_of_the_loop_that_fails_fails_its_append_and_everything_after(
    tmp_path: Path, disk: Disk, level: Durability, fails_at: int
) -> None:
    log = await known_quick(tmp_path, disk, level)
    disk.fails_at = fails_at
    head = 1
    for _ in range(fails_at - 1):
        head = at_once(append(log, A, head, durable=True))
    with pytest.raises(LogUnavailable) as caught:
        at_once(append(log, A, head, durable=True))
    assert "words of the system" not in str(caught.value)
    assert disk.syncers == ["loop"] * fails_at
    assert (await log.head(A)).head == head
    assert len(await bodies_of(log, A)) == head, "nobody sees it"
    for name, expected, durable in ((A, head, True), (A, head, False), (A, head + 1, True), (B, 0, False)):
        with pytest.raises(LogUnavailable, match="start again"):
            await append(log, name, expected, durable=durable)
    assert disk.syncs == fails_at
    assert log.statistics().waiting == 0
    await log.aclose()
    async with await SqliteEventLog.open(tmp_path / "log.db", limits=Limits(), durability=level) as log:
        kept = await bodies_of(log, A)
        assert kept == [b"%d" % number for number in range(1, len(kept) + 1)]
        assert len(kept) in (head, head + 1)
        assert await append(log, A, len(kept), durable=True) == len(kept) + 1


# -- a disk that becomes slow, and quick again
# ----------------------------------------------------------------------


async def test_one_slow_commit_sends_the_work_to_the_thread_until_the_disk_was_quick_for_a_while(
    tmp_path: Path, disk: Disk
) -> None:
    async with await opened(tmp_path, disk) as log:
        disk.commit_s = 2 * SLOW_S
        assert at_once(append(log, A, 0)) == 1
        assert log.statistics().lane is Lane.SLOW
        disk.committers.clear()
        disk.commit_s = 0.0
        head = await append(log, A, 1)
        disk.now += REST_S / 2
        head = await append(log, A, head, durable=True)
        assert disk.committers == ["thread"] * 2
        disk.now += REST_S
        assert at_once(append(log, A, head)) == 4
        assert log.statistics().lane is Lane.INLINE


async def test_a_slow_commit_of_the_thread_keeps_the_work_there(tmp_path: Path, disk: Disk) -> None:
    async with await opened(tmp_path, disk) as log:
        disk.commit_s = 10 * SLOW_S
        head = await append(log, A, 0)
        for _ in range(5):
            disk.now += 0.7 * REST_S
            head = await append(log, A, head)
        assert disk.committers[-5:] == ["thread"] * 5


async def test_a_disk_that_stays_slow_holds_the_loop_ever_more_seldom(tmp_path: Path, disk: Disk) -> None:
    async with await opened(tmp_path, disk) as log:
        held: list[float] = []
        head = 0
        # Quick in the thread, so that it is tried again and again.
        disk.loop_s = 2 * SLOW_S
        while len(held) < 10:
            disk.committers.clear()
            head = await append(log, A, head)
            if disk.committers == ["loop"]:
                held.append(disk.now)
            disk.now += REST_S / 5
        pauses = [later - earlier for earlier, later in pairwise(held)]
        assert pauses[0] >= REST_S
        assert max(pauses) <= LONGEST_REST_S + REST_S
        assert min(pauses[-3:]) >= LONGEST_REST_S


# -- a disk that fails
# ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("G1", "G2")
@pytest.mark.parametrize("level", list(Durability))
@pytest.mark.parametrize("fails_at", [1, 2, 3, 7])
async def test_a_sync_that_fails_fails_all_that_wait_for_one_and_everything_after(
    tmp_path: Path, disk: Disk, level: Durability, fails_at: int
) -> None:
    acknowledged: dict[SessionId, int] = {}
    failed: list[str] = []
    log = await opened(tmp_path, disk, durability=level)
    names = [SessionId(f"s{number}") for number in range(6)]
    for name in names:
        await log.create(name)
    disk.fails_at = disk.syncs + fails_at

    async def work(name: SessionId) -> None:
        head = 0
        try:
            while True:
                # Every third one is the thread's.
                count = SMALL_EVENTS + 1 if head % 3 == 2 else 1
                acknowledged[name] = head = await append(log, name, head, durable=True, count=count)
        except LogUnavailable as error:
            failed.append(str(error))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(work, name)
    assert len(failed) == len(names)
    assert not any("words of the system" in each for each in failed)
    heads = {each.session_id: each.head for each in await log.sessions() if each.head}
    assert heads == {**acknowledged, LONG: 1}
    for durable in (False, True):
        with pytest.raises(LogUnavailable, match="start again"):
            await append(log, A, 0, durable=durable)
    assert log.statistics().waiting == 0
    await log.aclose()
    async with await SqliteEventLog.open(tmp_path / "log.db", limits=Limits(), durability=level) as log:
        for name in names:
            kept = await bodies_of(log, name)
            assert kept == [b"%d" % number for number in range(1, len(kept) + 1)]
            assert len(kept) >= acknowledged.get(name, 0)
            assert await append(log, name, len(kept), durable=True) == len(kept) + 1


async def test_a_cancelled_durable_append_is_in_the_head_that_is_asked_for(tmp_path: Path, disk: Disk) -> None:
    async with await opened(tmp_path, disk) as log:
        disk.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: append(log, A, 0, durable=True))
            await disk.wait_for_sync()
            tasks.cancel_scope.cancel()
        heads: list[int] = []

        async def ask() -> None:
            heads.append((await log.head(A)).head)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await quiet()
            assert heads == []
            disk.release()
        assert heads == [1]
        assert at_once(append(log, A, 1)) == 2


async def test_closing_syncs_the_appends_that_wait(tmp_path: Path, disk: Disk) -> None:
    ended: list[SessionId] = []
    names = [SessionId(f"s{number}") for number in range(5)]
    log = await opened(tmp_path, disk)
    for name in names:
        await log.create(name)

    async def one(name: SessionId) -> None:
        await append(log, name, 0, durable=True)
        ended.append(name)

    disk.hold()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one, names[0])
        await disk.wait_for_sync()
        for name in names[1:]:
            tasks.start_soon(one, name)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(log.aclose)
        await quiet()
        assert ended == []
        disk.release()
    assert sorted(ended) == names
    assert disk.syncs == 2


async def test_closing_tells_those_who_wait_that_the_sync_failed(tmp_path: Path, disk: Disk) -> None:
    log = await opened(tmp_path, disk)
    disk.fails_at = 1
    disk.hold()

    async def one() -> None:
        with pytest.raises(LogUnavailable):
            await append(log, A, 0, durable=True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        await disk.wait_for_sync()
        tasks.start_soon(log.aclose)
        disk.release()


async def test_a_full_disk_in_the_middle_of_a_group_fails_those_that_do_not_fit(
    tmp_path: Path, disk: Disk, faults: SqliteFaults
) -> None:
    names = [SessionId(f"s{number}") for number in range(8)]
    outcomes: dict[SessionId, object] = {}
    async with await opened(tmp_path, disk) as log:
        for name in names:
            await log.create(name)

        async def one(name: SessionId, size: int) -> None:
            try:
                outcomes[name] = await log.append(
                    name, [b"x" * size], expected=0, unsettled=False, durable=name == names[4]
                )
            except LogFull as error:
                outcomes[name] = error.code

        def bound(connection: sqlite3.Connection, sql: str) -> None:
            if sql == "BEGIN IMMEDIATE":
                sqlite3.Connection.execute(connection, "PRAGMA max_page_count = 200")

        faults.hold("COMMIT")
        async with anyio.create_task_group() as tasks:
            # Holds the thread, so that the others gather behind it.
            tasks.start_soon(lambda: append(log, A, 0, count=SMALL_EVENTS + 1))
            await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
            for name in names:
                tasks.start_soon(one, name, 1_000_000 if name in names[2:6:2] else 10)
            with anyio.fail_after(WAIT_S):
                while log.statistics().waiting < 1 + len(names):
                    await anyio.lowlevel.checkpoint()
            faults.before = bound
            faults.release()
        assert outcomes == {name: "log_full" if name in names[2:6:2] else 1 for name in names}
        for name in names:
            assert len(await bodies_of(log, name)) == (await log.head(name)).head == (outcomes[name] == 1)


@contextmanager
def files_no_longer_than(size: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def copied(path: Path) -> Path:
    """The log as a kill at this moment would leave it."""
    copy = path.with_name("copy.db")
    for suffix in ("", "-wal"):
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    return copy


@pytest.mark.requirement("G1")
@pytest.mark.parametrize("count", [1, 5, 200], ids="{} events".format)
@pytest.mark.parametrize("room", [1, 23, 25, 4000, 4121, 9000])
async def test_a_write_that_ends_in_the_middle_loses_nothing(tmp_path: Path, room: int, count: int) -> None:
    """The system takes a part of a write and then no more; the next append writes over that part."""
    wal = tmp_path / "log.db-wal"
    async with await SqliteEventLog.open(tmp_path / "log.db", limits=Limits(), durability=Durability.NORMAL) as log:
        await log.create(A)
        head = await append(log, A, 0, count=3)
        with files_no_longer_than(wal.stat().st_size + room):
            with pytest.raises(LogError):
                # Too much for any of these rooms.
                await log.append(A, [b"y" * 9000] * count, expected=head, unsettled=True, durable=True)
            assert (await log.head(A)).head == head
            assert await bodies_of(log, A) == [b"1", b"2", b"3"]
        assert await append(log, A, head, durable=True, count=2) == 5
        expected = [b"1", b"2", b"3", b"4", b"5"]
        assert await bodies_of(log, A) == expected
        async with await SqliteEventLog.open(
            copied(tmp_path / "log.db"), limits=Limits(), durability=Durability.FULL
        ) as again:
            assert await bodies_of(again, A) == expected


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_FULL])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_commit_that_fails_on_the_loop_fails_alone(
    tmp_path: Path, disk: Disk, faults: SqliteFaults, code: int, durable: bool
) -> None:
    async with await opened(tmp_path, disk) as log:
        faults.fail("COMMIT", code)
        with pytest.raises(LogError):
            at_once(append(log, A, 0, durable=durable))
        faults.before = disk.before
        assert (await log.head(A)).head == 0
        assert await append(log, A, 0, durable=durable) == 1
        assert await bodies_of(log, A) == [b"1"]
