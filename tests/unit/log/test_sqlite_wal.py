"""Checkpoints: when one may begin, and that the write-ahead log stays short."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import anyio
import pytest

from turnwire.errors import LogUnavailable
from turnwire.ids import SessionId
from turnwire.limits import KiB, Limits
from turnwire.log import Durability, Position, SqliteEventLog
from turnwire.log.sqlite_wal import WalFile, WalGate
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
    gate.committed()
    assert gate.begin()
    gate.end(complete=False)
    assert gate.begin()
    gate.end(complete=True)
    assert not gate.begin()
    gate.committed()
    assert gate.begin()


def test_the_commit_after_a_checkpoint_may_restart_the_wal() -> None:
    gate = WalGate()
    assert gate.may_restart
    gate.committed()
    assert not gate.may_restart
    for complete in (False, True):
        gate.begin()
        gate.committed()
        assert not gate.may_restart
        gate.end(complete=complete)
        assert gate.may_restart
        gate.committed()
        assert not gate.may_restart


def test_the_loop_is_never_kept_waiting_at_the_gate() -> None:
    gate = WalGate()
    assert gate.enter()
    assert not gate.enter()
    gate.leave()
    with gate.pause():
        assert not gate.enter()
    with gate.transaction():
        assert not gate.enter()
    assert gate.enter()
    gate.leave()


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


# -- the file -------------------------------------------------------------------------------------------------


def test_the_content_of_a_wal_is_measured_whatever_lies_behind_it(tmp_path: Path) -> None:
    path, length = tmp_path / "any.db", 0
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE t (x)")
        wal = WalFile(f"{path}-wal")
        for number in range(40):
            connection.execute("INSERT INTO t VALUES (?)", [b"x" * 3000])
            length = Path(wal.path).stat().st_size
            with Path(wal.path).open("ab") as file:
                file.write(bytes(number * 1000))
            assert wal.content_bytes() == length
            assert wal.is_longer_than(length - 4120)
            assert not wal.is_longer_than(length)
            os.truncate(wal.path, length)
        # A new round, in front of what is left of the old one.
        assert connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
        connection.execute("INSERT INTO t VALUES (1)")
        assert 0 < wal.content_bytes() < length // 10
        wal.close()


def test_an_empty_wal_has_no_content(tmp_path: Path) -> None:
    for content in (b"", bytes(100_000)):
        (tmp_path / "wal").write_bytes(content)
        wal = WalFile(str(tmp_path / "wal"))
        assert wal.content_bytes() == 0
        assert not wal.is_longer_than(0)
        wal.close()


async def test_the_wal_is_longer_than_its_content_and_read_without_that(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with await SqliteEventLog.open(path, limits=Limits(), durability=Durability.NORMAL) as log:
        await log.create(A)
        head = 0
        wal = WalFile(f"{path}-wal")
        with anyio.fail_after(WAIT_S):
            while wal.content_bytes() == wal_bytes(tmp_path):
                head = await append(log, head)
                await anyio.lowlevel.checkpoint()
        assert wal.content_bytes() < wal_bytes(tmp_path) <= Limits().checkpoint_bytes
        wal.close()
        head = await append(log, head)
        copy = tmp_path / "copy.db"
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        async with await SqliteEventLog.open(copy, limits=Limits(), durability=Durability.NORMAL) as again:
            assert (await again.head(A)).head == head


async def test_without_room_for_zeros_appends_go_on(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with await SqliteEventLog.open(tmp_path / "log.db", limits=Limits(), durability=Durability.NORMAL) as log:
        await log.create(A)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500 * KiB, hard))
        try:
            head = 0
            for _ in range(6):
                head = await append(log, head)
                await log.append(A, [], expected=head, unsettled=False, durable=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (await log.head(A)).head == head
