"""The writer's thread: groups, refusals, failing disks, cancellation and its end."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from turnwire.errors import AppendConflict, LogError, LogFull, LogLocked, LogUnavailable
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, Position, SqliteEventLog
from turnwire.log.sqlite_writer import SLOW_S, Lane
from turnwire.testing.faults import WAIT_S, SqliteFaults

pytestmark = pytest.mark.anyio

A, B = SessionId("a"), SessionId("b")


async def opened(
    path: Path, limits: Limits | None = None, durability: Durability = Durability.NORMAL
) -> SqliteEventLog:
    return await SqliteEventLog.open(path / "log.db", limits=limits or Limits(), durability=durability)


class Timer:
    """A timer that moves by `step` whenever it is looked at, so that each commit takes as long."""

    now = step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


async def opened_on_a_slow_disk(path: Path, limits: Limits | None = None) -> SqliteEventLog:
    """A log whose writer's thread does all; the timer then stands still, so it stays so."""
    timer = Timer()
    log = await SqliteEventLog.open(
        path / "log.db", limits=limits or Limits(), durability=Durability.NORMAL, timer=timer
    )
    timer.step = 2 * SLOW_S
    for _ in range(2):
        await log.create(A)
        await log.delete(A)
    timer.step = 0.0
    assert log.statistics().lane is Lane.SLOW
    return log


async def append(log: SqliteEventLog, session_id: SessionId, count: int = 1, size: int = 100) -> int:
    head = (await log.head(session_id)).head
    return await log.append(session_id, [b"x" * size] * count, expected=head, unsettled=False, durable=False)


async def test_what_gathers_during_a_commit_is_the_next_commit(tmp_path: Path, faults: SqliteFaults) -> None:
    names = [SessionId(f"s{number:03}") for number in range(100)]
    async with await opened_on_a_slow_disk(tmp_path) as log:
        for name in names:
            await log.create(name)
        before = log.statistics().commits
        faults.hold("COMMIT")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, log, names[0])
            await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
            for name in names[1:]:
                tasks.start_soon(append, log, name)
            with anyio.fail_after(WAIT_S):
                while log.statistics().waiting < len(names):
                    await anyio.lowlevel.checkpoint()
            faults.release()
        assert log.statistics().commits == before + 2
        assert [head.head for head in await log.sessions()] == [1] * 100


async def test_a_refused_job_does_not_fail_its_group(tmp_path: Path, faults: SqliteFaults) -> None:
    results: dict[str, object] = {}
    async with await opened_on_a_slow_disk(tmp_path) as log:
        await log.create(A)
        await log.create(B)
        before = log.statistics().commits
        faults.hold("COMMIT")

        async def attempt(name: str, session_id: SessionId, expected: int) -> None:
            try:
                results[name] = await log.append(
                    session_id, [name.encode()], expected=expected, unsettled=False, durable=False
                )
            except AppendConflict as error:
                results[name] = error.context["head"]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, "first", A, 0)
            await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
            for name, session_id, expected in (("stale", A, 0), ("next", A, 1), ("other", B, 0), ("ahead", B, 7)):
                tasks.start_soon(attempt, name, session_id, expected)
            with anyio.fail_after(WAIT_S):
                while log.statistics().waiting < 5:
                    await anyio.lowlevel.checkpoint()
            faults.release()
        assert results == {"first": 1, "stale": 1, "next": 2, "other": 1, "ahead": 1}
        assert log.statistics().commits == before + 2


@pytest.mark.requirement("G1", "G2")
async def test_a_full_disk_loses_nothing_and_works_again_with_room(tmp_path: Path, faults: SqliteFaults) -> None:
    pages = [20]

    def bound(connection: sqlite3.Connection, sql: str) -> None:
        if sql == "BEGIN IMMEDIATE":
            sqlite3.Connection.execute(connection, f"PRAGMA max_page_count = {pages[0]}")

    async with await opened_on_a_slow_disk(tmp_path) as log:
        epoch = (await log.create(A)).epoch
        await log.create(B)
        faults.before = bound
        kept = 0
        with suppress(LogFull):
            while kept < 1000:
                kept = await append(log, A, 10)
        assert 0 < kept < 1000
        assert (await log.head(A)).head == kept
        # A small append still fits when a large one of the same group does not.
        outcomes: list[object] = []

        async def attempt(session_id: SessionId, size: int) -> None:
            try:
                outcomes.append(await append(log, session_id, 1, size))
            except LogFull as error:
                outcomes.append(error.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, A, 1_000_000)
            tasks.start_soon(attempt, B, 1)
        assert sorted(map(str, outcomes)) == ["1", "log_full"]
        pages[0] = 100_000
        assert await append(log, A, 10) == kept + 10
        page = await log.read(A, Position(epoch, 0), max_events=5000, max_bytes=1 << 20)
        assert [stored.offset for stored in page] == [*range(1, kept + 11)]


async def test_another_writer_makes_it_locked_after_the_timeout(tmp_path: Path) -> None:
    async with await opened(tmp_path, Limits(busy_timeout_s=0.05)) as log:
        await log.create(A)
        with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LogLocked):
                await append(log, A)
            assert (await log.head(A)).head == 0
            other.execute("ROLLBACK")
        assert await append(log, A) == 1


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
async def test_a_failed_transaction_fails_every_job_and_shows_nothing(
    tmp_path: Path, faults: SqliteFaults, code: int, error: type[LogError], statement: str
) -> None:
    async with await opened(tmp_path) as log:
        before = [await log.create(A), await log.create(B)]
        faults.fail(statement, code)
        failed: list[BaseException] = []

        async def attempt(session_id: SessionId) -> None:
            with pytest.raises(LogError) as raised:
                await append(log, session_id)
            failed.append(raised.value)

        async with anyio.create_task_group() as tasks:
            for session_id in (A, B, A):
                tasks.start_soon(attempt, session_id)
        assert [type(each) for each in failed] == [error] * 3
        assert not any("words of SQLite" in f"{each} {each.args}" for each in failed)
        faults.before = None
        assert await log.sessions() == before
        assert await append(log, A) == 1


async def test_after_a_failed_sync_nothing_is_called_durable(tmp_path: Path, faults: SqliteFaults) -> None:
    async with await opened(tmp_path) as log:
        await log.create(A)
        await append(log, A, 3)
        faults.fail("COMMIT", sqlite3.SQLITE_IOERR_FSYNC)
        with pytest.raises(LogUnavailable):
            await append(log, A)
        faults.before = None
        with pytest.raises(LogUnavailable, match="start again"):
            await append(log, A)
        assert (await log.head(A)).head == 3
    async with await opened(tmp_path) as log:
        assert await append(log, A) == 4


async def test_an_event_that_cannot_be_stored_fails_alone(tmp_path: Path) -> None:
    async with await opened_on_a_slow_disk(tmp_path) as log:
        await log.create(A)
        await log.create(B)
        outcomes: dict[SessionId, object] = {}

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
        assert await append(log, A) == 1


async def test_a_stalled_disk_is_heard_when_the_queue_is_full(tmp_path: Path, faults: SqliteFaults) -> None:
    names = [SessionId(f"s{number}") for number in range(16)]
    async with await opened_on_a_slow_disk(tmp_path, Limits(append_queue=16)) as log:
        faults.hold("COMMIT")
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(log.create, name)
            await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
            assert log.statistics().waiting == 16
            with pytest.raises(LogUnavailable, match="does not keep up"):
                await log.create(A)
            faults.release()
        assert [head.session_id for head in await log.sessions()] == sorted(names)
        assert log.statistics().waiting == 0


async def test_a_cancelled_append_is_finished_and_nobody_complains(tmp_path: Path, faults: SqliteFaults) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with await opened_on_a_slow_disk(tmp_path) as log:
        await log.create(A)
        faults.hold("COMMIT")
        async with anyio.create_task_group() as tasks:
            for expected in (0, 99):
                tasks.start_soon(
                    lambda expected=expected: log.append(
                        A, [b"x"], expected=expected, unsettled=False, durable=False
                    )
                )
            await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
            tasks.cancel_scope.cancel()
        faults.release()
        assert (await log.head(A)).head == 1
        assert await append(log, A) == 2
    gc.collect()
    assert complaints == []


async def test_closing_ends_the_threads_and_refuses_what_comes_later(tmp_path: Path) -> None:
    log = await opened(tmp_path)
    await log.create(A)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(log.aclose)
    assert not [each for each in threading.enumerate() if each.name.startswith("turnwire-log")]
    with pytest.raises(LogUnavailable):
        await append(log, A)


def test_the_writer_survives_a_loop_that_is_gone(tmp_path: Path, faults: SqliteFaults) -> None:
    async def leave() -> SqliteEventLog:
        log = await opened_on_a_slow_disk(tmp_path)
        await log.create(A)
        faults.hold("COMMIT")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, log, A)
            await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
            tasks.cancel_scope.cancel()
        return log

    log = asyncio.run(leave())
    faults.release()
    asyncio.run(log.aclose())
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        assert connection.execute("SELECT offset FROM events").fetchall() == [(1,)]
