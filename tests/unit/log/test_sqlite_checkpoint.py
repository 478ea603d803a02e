"""Checkpoints: the write-ahead log stays short, and their failures are seen."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from turnwire.errors import LogUnavailable
from turnwire.ids import SessionId
from turnwire.limits import KiB, Limits
from turnwire.log import Durability, Position, SqliteEventLog
from turnwire_testing.faults import WAIT_S, SqliteFaults

pytestmark = pytest.mark.anyio

A, B = SessionId("a"), SessionId("b")
LIMIT = 256 * KiB
BATCH = [b"x" * 1000] * 30


async def opened(folder: Path) -> SqliteEventLog:
    limits = Limits(checkpoint_bytes=LIMIT)
    return await SqliteEventLog.open(folder / "log.db", limits=limits, durability=Durability.NORMAL)


def wal_bytes(folder: Path) -> int:
    return (folder / "log.db-wal").stat().st_size


async def append(log: SqliteEventLog, head: int, name: SessionId = A) -> int:
    return await log.append(name, BATCH, expected=head, unsettled=False, durable=False)


async def test_wal_stays_short_under_continuous_writes_and_reads(tmp_path: Path) -> None:
    async with await opened(tmp_path) as log, anyio.create_task_group() as tasks:
        epoch = (await log.create(A)).epoch
        await log.create(B)

        async def write_on() -> None:
            head = 0
            while True:
                head = await append(log, head, B)

        async def read_on() -> None:
            after = 0
            while True:
                page = await log.read(A, Position(epoch, after), max_events=100, max_bytes=LIMIT)
                after = page[-1].offset if page else after
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(write_on)
        for _ in range(4):
            tasks.start_soon(read_on)
        head = longest = 0
        with anyio.fail_after(WAIT_S):
            while head * len(BATCH[0]) < 20 * LIMIT:
                head = await append(log, head)
                longest = max(longest, wal_bytes(tmp_path))
        assert longest < 4 * LIMIT
        tasks.cancel_scope.cancel()


async def test_reader_that_stays_does_not_stop_appends(tmp_path: Path) -> None:
    async with await opened(tmp_path) as log:
        await log.create(A)
        head = await append(log, 0)
        with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM events").fetchone() == (head,)
            while wal_bytes(tmp_path) < 20 * LIMIT:
                head = await append(log, head)
            assert reader.execute("SELECT count(*) FROM events").fetchone() == (len(BATCH),)
        with anyio.fail_after(WAIT_S):
            while wal_bytes(tmp_path) > LIMIT:
                head = await append(log, head)


async def test_failed_checkpoint_is_logged_and_appends_continue(
    tmp_path: Path, faults: SqliteFaults, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "turnwire.log")
    async with await opened(tmp_path) as log:
        await log.create(A)
        faults.fail("PRAGMA wal_checkpoint", sqlite3.SQLITE_FULL)
        head = 0
        with anyio.fail_after(WAIT_S):
            while not caplog.records:
                head = await append(log, head)
        assert caplog.records[0].getMessage() == "checkpoint failed"
        longest = wal_bytes(tmp_path)
        faults.before = None
        for _ in range(3 * LIMIT // len(BATCH) // len(BATCH[0])):
            head = await append(log, head)
        assert wal_bytes(tmp_path) <= max(LIMIT, longest)


async def test_failed_sync_of_a_checkpoint_stops_the_log(
    tmp_path: Path, faults: SqliteFaults, caplog: pytest.LogCaptureFixture
) -> None:
    """W5."""
    async with await opened(tmp_path) as log:
        await log.create(A)
        faults.fail("PRAGMA wal_checkpoint", sqlite3.SQLITE_IOERR_FSYNC)
        head = 0
        with anyio.fail_after(WAIT_S), suppress(LogUnavailable):
            while True:
                head = await append(log, head)
        assert "checkpoint failed" in caplog.text
        faults.before = None
        with pytest.raises(LogUnavailable, match="start again"):
            await append(log, head)
    async with await opened(tmp_path) as log:
        assert (await log.head(A)).head == head
        assert await append(log, head) == head + len(BATCH)
