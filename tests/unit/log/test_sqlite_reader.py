"""Reads in parallel with the writer: they block nothing, and see one state of the file."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import anyio
import pytest

from turnwire.errors import LogCorrupt, LogUnavailable, PositionLost, SessionNotFound
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, Position, SqliteEventLog, Stored
from turnwire.log.sqlite import READERS
from turnwire_testing.faults import WAIT_S, SqliteFaults

pytestmark = pytest.mark.anyio

A = SessionId("a")
READ = "SELECT key, ends, bodies, crc FROM segments"


async def opened(folder: Path) -> SqliteEventLog:
    return await SqliteEventLog.open(folder / "log.db", limits=Limits(), durability=Durability.NORMAL)


async def filled(log: SqliteEventLog) -> Epoch:
    epoch = (await log.create(A)).epoch
    await log.append(A, [b"x"] * 10, expected=0, unsettled=False, durable=False)
    return epoch


async def read(log: SqliteEventLog, epoch: Epoch, after: int = 0) -> list[Stored]:
    return await log.read(A, Position(epoch, after), max_events=100, max_bytes=1000)


async def test_a_slow_read_delays_neither_the_loop_nor_the_writer(tmp_path: Path, faults: SqliteFaults) -> None:
    pages: list[list[Stored]] = []
    async with await opened(tmp_path) as log:
        epoch = await filled(log)
        faults.hold(READ)

        async def read_slowly() -> None:
            pages.append(await read(log, epoch))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_slowly)
            await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
            with anyio.fail_after(WAIT_S / 2):
                await log.append(A, [b"y"], expected=10, unsettled=False, durable=True)
                assert [stored.body for stored in await read(log, epoch, 9)] == [b"x", b"y"]
            faults.release()
        assert [stored.offset for stored in pages[0]] == [*range(1, 11)], "the head as of the call"


@pytest.mark.parametrize(("deleted", "error"), [(False, PositionLost), (True, SessionNotFound)])
async def test_a_read_overtaken_by_a_trim_or_delete_says_so(
    tmp_path: Path, faults: SqliteFaults, deleted: bool, error: type[Exception]
) -> None:
    raised: list[type[BaseException]] = []
    async with await opened(tmp_path) as log:
        epoch = await filled(log)

        async def read_late() -> None:
            with pytest.raises(error) as refusal:
                await read(log, epoch)
            raised.append(refusal.type)

        async with anyio.create_task_group() as tasks:
            # The reader has not yet begun to look at the file.
            faults.hold("SELECT id, name, epoch")
            tasks.start_soon(read_late)
            await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
            await (log.delete(A) if deleted else log.trim(A, upto=5))
            faults.release()
    assert raised == [error]


async def test_closing_waits_for_a_read_that_runs(tmp_path: Path, faults: SqliteFaults) -> None:
    pages: list[list[Stored]] = []
    log = await opened(tmp_path)
    epoch = await filled(log)
    faults.hold(READ)

    async def read_slowly() -> None:
        pages.append(await read(log, epoch))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_slowly)
        await anyio.to_thread.run_sync(faults.reached.wait, WAIT_S)
        tasks.start_soon(log.aclose)
        await anyio.lowlevel.checkpoint()
        with pytest.raises(LogUnavailable):
            await read(log, epoch)
        faults.release()
    assert len(pages[0]) == 10


async def test_reads_are_bounded_in_number(tmp_path: Path, faults: SqliteFaults) -> None:
    running: set[int] = set()
    full, go_on = threading.Event(), threading.Event()

    def gather(_: sqlite3.Connection, sql: str) -> None:
        if sql.strip().startswith(READ):
            running.add(threading.get_ident())
            if len(running) == READERS:
                full.set()
            assert go_on.wait(WAIT_S)

    async with await opened(tmp_path) as log:
        epoch = await filled(log)
        faults.before = gather
        async with anyio.create_task_group() as tasks:
            for _ in range(5 * READERS):
                tasks.start_soon(read, log, epoch)
            await anyio.to_thread.run_sync(full.wait, WAIT_S)
            assert len(running) == READERS
            go_on.set()
    assert len(running) == READERS


async def test_an_error_of_a_read_is_a_log_error_and_the_next_read_works(
    tmp_path: Path, faults: SqliteFaults
) -> None:
    async with await opened(tmp_path) as log:
        epoch = await filled(log)
        for code, error in ((sqlite3.SQLITE_CORRUPT, LogCorrupt), (sqlite3.SQLITE_IOERR_READ, LogUnavailable)):
            faults.fail(READ, code)
            with pytest.raises(error):
                await read(log, epoch)
            faults.before = None
            assert len(await read(log, epoch)) == 10
