"""The writer's thread: the invariants W1 to W8 of `turnwire.log.sqlite_writer`."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import sqlite3
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnwire.errors import AppendConflict, LogError, LogFull, LogLocked, LogUnavailable
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, Position, SqliteEventLog
from turnwire_testing.faults import WAIT_S, SqliteFaults
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

A, B = SessionId("a"), SessionId("b")


class Disk:
    """A disk whose syncs are counted, blocked and failed."""

    def __init__(self) -> None:
        self.syncs = 0
        self.fails_at = 0
        """Number of the sync that fails; 0 for no failure."""
        self._reached, self._released = threading.Event(), threading.Event()
        self._released.set()

    def sync(self, file: int) -> None:
        self.syncs += 1
        self._reached.set()
        assert self._released.wait(WAIT_S), "the test did not release the sync"
        if self.syncs == self.fails_at:
            raise OSError(errno.EIO, "words of the system")
        os.fsync(file)

    @asynccontextmanager
    async def holding(self, log: SqliteEventLog) -> AsyncGenerator[None]:
        """Block a durable append to B in its sync inside the context; all later ones wait after it."""
        self._reached.clear()
        self._released.clear()
        try:
            async with anyio.create_task_group() as tasks:
                expected = (await log.head(B)).head
                tasks.start_soon(lambda: append(log, B, expected, durable=True))
                assert await anyio.to_thread.run_sync(self._reached.wait, WAIT_S)
                yield
                self._released.set()
        finally:
            self._released.set()


@pytest.fixture
def disk() -> Disk:
    return Disk()


async def opened(
    path: Path, disk: Disk, limits: Limits | None = None, durability: Durability = Durability.NORMAL
) -> SqliteEventLog:
    """Open a log with two sessions."""
    log = await SqliteEventLog.open(
        path / "log.db", limits=limits or Limits(), durability=durability, sync=disk.sync
    )
    if not await log.sessions():
        for name in (A, B):
            await log.create(name)
    disk.syncs = 0
    return log


async def append(
    log: SqliteEventLog, name: SessionId, expected: int, *, count: int = 1, durable: bool = False
) -> int:
    bodies = [b"%d" % (expected + 1 + number) for number in range(count)]
    return await log.append(name, bodies, expected=expected, unsettled=False, durable=durable)


async def bodies_of(log: SqliteEventLog, name: SessionId) -> list[bytes]:
    head = await log.head(name)
    page = await log.read(name, Position(head.epoch, 0), max_events=head.head + 1, max_bytes=1 << 30)
    return [each.body for each in page]


def numbers(upto: int) -> list[bytes]:
    return [b"%d" % number for number in range(1, upto + 1)]


# -- groups and syncs


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("level", list(Durability))
async def test_durable_append_is_synced_before_it_returns(tmp_path: Path, disk: Disk, level: Durability) -> None:
    async with await opened(tmp_path, disk, durability=level) as log:
        for head, durable in enumerate((False, False, True, False, True, True, False)):
            before = disk.syncs
            await append(log, A, head, durable=durable)
            assert disk.syncs - before == (durable or level is Durability.FULL)
        before = disk.syncs
        await log.delete(A)
        assert disk.syncs > before, "a deletion is synced at every level"


@pytest.mark.guarantee("G2")
async def test_durable_append_is_invisible_until_it_is_synced(tmp_path: Path, disk: Disk) -> None:
    """W3, W4."""
    async with await opened(tmp_path, disk) as log:
        async with disk.holding(log):
            with closing(sqlite3.connect(tmp_path / "log.db")) as other:
                assert other.execute("SELECT count(*) FROM events").fetchone() == (1,), "it is committed"
            assert (await log.head(B)).head == 0
            assert await bodies_of(log, B) == []
        assert (await log.head(B)).head == 1


async def test_changes_that_arrive_during_a_sync_are_one_group(tmp_path: Path, disk: Disk) -> None:
    """W1, W2."""
    names = [SessionId(f"s{number:03}") for number in range(100)]
    async with await opened(tmp_path, disk) as log:
        for name in names:
            await log.create(name)
        async with anyio.create_task_group() as tasks, disk.holding(log):
            for name in names:
                tasks.start_soon(lambda name=name: append(log, name, 0, durable=True))
            await quiet()
        assert disk.syncs == 2
        assert {(await log.head(name)).head for name in names} == {1}


async def test_rejected_change_does_not_fail_its_group(tmp_path: Path, disk: Disk) -> None:
    """W1, W2."""
    results: dict[str, int] = {}
    async with await opened(tmp_path, disk) as log:

        async def attempt(name: str, session_id: SessionId, expected: int) -> None:
            try:
                results[name] = await append(log, session_id, expected, durable=True)
            except AppendConflict as error:
                results[name] = -int(str(error.context["head"]))

        async with anyio.create_task_group() as tasks, disk.holding(log):
            for name, session_id, expected in (
                ("first", A, 0),
                ("stale", A, 0),
                ("next", A, 1),
                ("other", B, 1),
                ("ahead", B, 7),
            ):
                tasks.start_soon(attempt, name, session_id, expected)
            await quiet()
        assert results == {"first": 1, "stale": -1, "next": 2, "other": 2, "ahead": -2}
        assert disk.syncs == 2


async def test_full_queue_rejects_changes_at_once(tmp_path: Path, disk: Disk) -> None:
    """W6."""
    async with await opened(tmp_path, disk, Limits(append_queue=16)) as log:
        async with anyio.create_task_group() as tasks, disk.holding(log):
            for number in range(15):
                tasks.start_soon(log.create, SessionId(f"s{number}"))
            await quiet()
            with pytest.raises(LogUnavailable, match="does not keep up"):
                await append(log, A, 0)
        assert len(await log.sessions()) == 17


# -- failures


@pytest.mark.guarantee("G1", "G2")
@pytest.mark.parametrize("level", list(Durability))
@pytest.mark.parametrize("fails_at", [1, 2, 7])
async def test_failed_sync_fails_its_group_and_everything_after(
    tmp_path: Path, disk: Disk, level: Durability, fails_at: int
) -> None:
    """W5."""
    acknowledged: dict[SessionId, int] = {A: 0, B: 0}
    failed: list[str] = []
    log = await opened(tmp_path, disk, durability=level)
    disk.fails_at = fails_at

    async def work(name: SessionId) -> None:
        try:
            while True:
                acknowledged[name] = await append(log, name, acknowledged[name], durable=True)
        except LogUnavailable as error:
            failed.append(str(error))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, A)
            tasks.start_soon(work, B)
    assert len(failed) == 2
    assert not any("words of the system" in each for each in failed)
    assert {each.session_id: each.head for each in await log.sessions()} == acknowledged
    for durable in (False, True):
        with pytest.raises(LogUnavailable, match="start again"):
            await append(log, A, acknowledged[A], durable=durable)
    assert disk.syncs == fails_at
    await log.aclose()
    async with await opened(tmp_path, Disk(), durability=level) as log:
        for name in (A, B):
            stored = await bodies_of(log, name)
            assert stored == numbers(len(stored))
            assert len(stored) in (acknowledged[name], acknowledged[name] + 1)
            assert await append(log, name, len(stored), durable=True) == len(stored) + 1


async def test_failed_sync_inside_a_commit_stops_the_log(tmp_path: Path, disk: Disk, faults: SqliteFaults) -> None:
    """W5: SQLite itself syncs the header of a write-ahead log that starts again."""
    async with await opened(tmp_path, disk) as log:
        faults.fail("COMMIT", sqlite3.SQLITE_IOERR_FSYNC)
        with pytest.raises(LogUnavailable):
            await append(log, A, 0)
        faults.before = None
        with pytest.raises(LogUnavailable, match="start again"):
            await append(log, A, 0)
        assert (await log.head(A)).head == 0


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (sqlite3.SQLITE_IOERR_WRITE, LogUnavailable),
        (sqlite3.SQLITE_READONLY, LogUnavailable),
        (sqlite3.SQLITE_FULL, LogFull),
        (sqlite3.SQLITE_BUSY, LogLocked),
    ],
)
@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "COMMIT"])
async def test_failed_transaction_fails_its_changes_and_shows_nothing(
    tmp_path: Path, disk: Disk, faults: SqliteFaults, code: int, error: type[LogError], statement: str
) -> None:
    """W2, W3."""
    async with await opened(tmp_path, disk) as log:
        before = await log.sessions()
        faults.fail(statement, code)
        failed: list[BaseException] = []

        async def attempt(session_id: SessionId) -> None:
            with pytest.raises(LogError) as raised:
                await append(log, session_id, 0)
            failed.append(raised.value)

        async with anyio.create_task_group() as tasks:
            for session_id in (A, B, A):
                tasks.start_soon(attempt, session_id)
        assert [type(each) for each in failed] == [error] * 3
        assert not any("words of SQLite" in f"{each} {each.args}" for each in failed)
        faults.before = None
        assert await log.sessions() == before
        assert await append(log, A, 0) == 1


@pytest.mark.guarantee("G1", "G2")
async def test_full_disk_loses_nothing_and_works_again_with_room(
    tmp_path: Path, disk: Disk, faults: SqliteFaults
) -> None:
    pages = [20]

    def bound(connection: sqlite3.Connection, sql: str) -> None:
        if sql == "BEGIN IMMEDIATE":
            sqlite3.Connection.execute(connection, f"PRAGMA max_page_count = {pages[0]}")

    async with await opened(tmp_path, disk) as log:
        faults.before = bound
        stored = 0
        with suppress(LogFull):
            while stored < 100_000:
                stored = await append(log, A, stored, count=500)
        assert 0 < stored < 100_000
        pages[0] = 200
        outcomes: dict[SessionId, object] = {}

        async def attempt(name: SessionId, expected: int, size: int) -> None:
            try:
                outcomes[name] = await log.append(
                    name, [b"x" * size], expected=expected, unsettled=False, durable=False
                )
            except LogFull as error:
                outcomes[name] = error.code

        # W2: a small append still fits when a large one of the same group does not.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, A, stored, 1_000_000)
            tasks.start_soon(attempt, B, 0, 1)
        assert outcomes == {A: "log_full", B: 1}
        pages[0] = 100_000
        assert await append(log, A, stored, count=10) == stored + 10
        assert await bodies_of(log, A) == numbers(stored + 10)


@contextmanager
def files_no_longer_than(size: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def copied(path: Path) -> Path:
    """Return the log as a kill at this moment would leave it."""
    copy = path.with_name("copy.db")
    for suffix in ("", "-wal"):
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    return copy


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("count", [1, 5, 200], ids="{} events".format)
@pytest.mark.parametrize("room", [1, 23, 25, 4000, 4121, 9000])
async def test_partial_write_loses_nothing(tmp_path: Path, disk: Disk, room: int, count: int) -> None:
    """The system accepts part of a write and then no more; the next append overwrites that part."""
    wal = tmp_path / "log.db-wal"
    async with await opened(tmp_path, disk) as log:
        head = await append(log, A, 0, count=3)
        with files_no_longer_than(wal.stat().st_size + room):
            with pytest.raises(LogError):
                # Too much for any of these rooms.
                await log.append(A, [b"y" * 9000] * count, expected=head, unsettled=True, durable=True)
            assert await bodies_of(log, A) == numbers(head)
        assert await append(log, A, head, durable=True, count=2) == 5
        assert await bodies_of(log, A) == numbers(5)
        async with await SqliteEventLog.open(
            copied(tmp_path / "log.db"), limits=Limits(), durability=Durability.FULL
        ) as again:
            assert await bodies_of(again, A) == numbers(5)


async def test_event_that_cannot_be_stored_fails_alone(tmp_path: Path, disk: Disk) -> None:
    """W2."""
    outcomes: dict[SessionId, object] = {}
    async with await opened(tmp_path, disk) as log:

        async def attempt(session_id: SessionId, body: Any) -> None:
            try:
                outcomes[session_id] = await log.append(
                    session_id, [b"", body], expected=0, unsettled=False, durable=False
                )
            except LogError as error:
                outcomes[session_id] = error.code

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, A, object())
            tasks.start_soon(attempt, B, b"fine")
        assert outcomes == {A: "log_unavailable", B: 2}
        assert await append(log, A, 0) == 1


async def test_file_that_another_program_holds_is_locked_after_the_timeout(tmp_path: Path, disk: Disk) -> None:
    async with await opened(tmp_path, disk, Limits(busy_timeout_s=0.05)) as log:
        with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LogLocked):
                await append(log, A, 0)
            assert (await log.head(A)).head == 0
            other.execute("ROLLBACK")
        assert await append(log, A, 0) == 1


# -- cancellation and the end


async def test_cancelled_append_is_finished_and_in_the_next_head(tmp_path: Path, disk: Disk) -> None:
    """W7."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with await opened(tmp_path, disk) as log:
        heads: list[int] = []

        async def ask() -> None:
            heads.append((await log.head(A)).head)

        async with anyio.create_task_group() as tasks, disk.holding(log):
            async with anyio.create_task_group() as cancelled:
                for expected in (0, 99):
                    cancelled.start_soon(append, log, A, expected)
                await quiet()
                cancelled.cancel_scope.cancel()
            tasks.start_soon(ask)
            await quiet()
            assert heads == []
        assert heads == [1]
        assert await append(log, A, 1) == 2
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize("fails", [False, True])
async def test_closing_finishes_the_appends_that_wait(tmp_path: Path, disk: Disk, fails: bool) -> None:
    """W8."""
    outcomes: list[object] = []
    log = await opened(tmp_path, disk)

    async def attempt(expected: int) -> None:
        try:
            outcomes.append(await append(log, A, expected, durable=True))
        except LogUnavailable as error:
            outcomes.append(error.code)

    disk.fails_at = 2 if fails else 0
    async with anyio.create_task_group() as tasks, disk.holding(log):
        for expected in range(3):
            tasks.start_soon(attempt, expected)
        await quiet()
        for _ in range(3):
            tasks.start_soon(log.aclose)
        await quiet()
        assert outcomes == []
    assert outcomes == (["log_unavailable"] * 3 if fails else [1, 2, 3])
    assert not [each for each in threading.enumerate() if each.name.startswith("turnwire-log")]
    with pytest.raises(LogUnavailable):
        await append(log, A, 3)


async def test_append_stores_the_bodies_as_they_were_at_the_call(tmp_path: Path, disk: Disk) -> None:
    bodies = numbers(2)
    async with await opened(tmp_path, disk) as log:
        async with anyio.create_task_group() as tasks, disk.holding(log):
            tasks.start_soon(lambda: log.append(A, bodies, expected=0, unsettled=False, durable=False))
            await quiet()
            bodies.append(b"changed after the call")
        assert await bodies_of(log, A) == numbers(2)


def test_writer_survives_the_end_of_the_loop(tmp_path: Path, faults: SqliteFaults) -> None:
    """W8."""

    async def leave() -> SqliteEventLog:
        log = await opened(tmp_path, Disk())
        faults.hold("COMMIT")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, log, A, 0)
            await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
            tasks.cancel_scope.cancel()
        return log

    log = asyncio.run(leave())
    faults.release()
    asyncio.run(log.aclose())
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        assert connection.execute("SELECT offset FROM events").fetchall() == [(1,)]
