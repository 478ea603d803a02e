"""Checkpoints: when one may begin, and that the write-ahead log stays short."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import anyio
import pytest

from turnwire.errors import LogUnavailable
from turnwire.ids import SessionId
from turnwire.limits import KiB, Limits
from turnwire.log import Durability, Position, SqliteEventLog
from turnwire.log.sqlite_wal import WalGate
from turnwire.testing.faults import WAIT_S, SqliteFaults

pytestmark = pytest.mark.anyio

A, B = SessionId("a"), SessionId("b")
LIMIT = 256 * KiB
BATCH = [b"x" * 1000] * 30


async def opened(folder: Path) -> SqliteEventLog:
    limits = Limits(checkpoint_bytes=LIMIT)
    return await SqliteEventLog.open(folder / "log.db", limits=limits, durability=Durability.NORMAL)


def wal_bytes(folder: Path) -> int:
    return (folder / "log.db-wal").stat().st_size


async def append(log: SqliteEventLog, head: int) -> int:
    return await log.append(A, BATCH, expected=head, unsettled=False, durable=False)


def test_a_checkpoint_waits_for_a_commit_after_a_complete_one() -> None:
    gate = WalGate()
    assert not gate.begin()
    gate.committed(synced=True)
    assert gate.begin()
    gate.end(complete=False)
    assert gate.begin()
    gate.end(complete=True)
    assert not gate.begin()
    gate.committed(synced=True)
    assert gate.begin()


def test_a_commit_may_restart_until_one_was_synced_after_the_last_checkpoint() -> None:
    gate = WalGate()
    assert gate.may_restart
    gate.committed(synced=False)
    assert gate.may_restart
    gate.committed(synced=True)
    assert not gate.may_restart
    gate.begin()
    assert gate.may_restart
    gate.committed(synced=True)
    assert gate.may_restart, "the checkpoint may complete after this commit"
    gate.end(complete=True)
    assert gate.may_restart
    gate.committed(synced=True)
    assert not gate.may_restart


def test_a_failed_sync_refuses_all_that_follows() -> None:
    gate = WalGate()
    gate.check_syncs()
    gate.sync_failed = True
    with pytest.raises(LogUnavailable):
        gate.check_syncs()


async def test_the_wal_starts_again_and_again_under_continuous_writes_and_reads(tmp_path: Path) -> None:
    async with await opened(tmp_path) as log, anyio.create_task_group() as tasks:
        epoch = (await log.create(A)).epoch
        await log.create(B)

        async def write_on() -> None:
            head = 0
            while True:
                head = await log.append(B, BATCH, expected=head, unsettled=False, durable=False)

        async def read_on() -> None:
            seen = 0
            while True:
                page = await log.read(A, Position(epoch, seen), max_events=100, max_bytes=LIMIT)
                seen = page[-1].offset if page else seen
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(write_on)
        tasks.start_soon(read_on)
        head = starts = longest = before = 0
        with anyio.fail_after(WAIT_S):
            while starts < 20:
                head = await append(log, head)
                size = wal_bytes(tmp_path)
                starts += size < before
                longest = max(longest, size)
                before = size
        # Eight times the limit, and the commits that ran until the checkpoint had begun.
        assert longest < 16 * LIMIT
        tasks.cancel_scope.cancel()


async def test_a_reader_that_stays_stops_nobody_and_the_wal_is_short_after_it(tmp_path: Path) -> None:
    async with await opened(tmp_path) as log:
        await log.create(A)
        head = await append(log, 0)
        with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM events").fetchone() == (head,)
            while wal_bytes(tmp_path) < 20 * LIMIT:
                head = await append(log, head)
            assert reader.execute("SELECT count(*) FROM events").fetchone() == (30,)
        with anyio.fail_after(WAIT_S):
            while wal_bytes(tmp_path) > LIMIT:
                head = await append(log, head)


async def test_a_failing_checkpoint_is_told_and_appends_go_on(
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
        faults.before = None
        with anyio.fail_after(WAIT_S):
            while wal_bytes(tmp_path) > LIMIT:
                head = await append(log, head)


async def test_a_checkpoint_whose_sync_failed_stops_the_log(
    tmp_path: Path, faults: SqliteFaults, caplog: pytest.LogCaptureFixture
) -> None:
    async with await opened(tmp_path) as log:
        await log.create(A)
        faults.fail("PRAGMA wal_checkpoint", sqlite3.SQLITE_IOERR_FSYNC)
        head = 0
        with anyio.fail_after(WAIT_S):
            with suppress(LogUnavailable):
                while True:
                    head = await append(log, head)
        assert "checkpoint failed" in caplog.text
        faults.before = None
        with pytest.raises(LogUnavailable, match="start again"):
            await append(log, head)
    async with await opened(tmp_path) as log:
        assert (await log.head(A)).head == head
        assert await append(log, head) == head + len(BATCH)
