"""What is synced at which level, when, and by whom."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, SqliteEventLog
from turnwire.testing.faults import SqliteFaults

pytestmark = pytest.mark.anyio

A = SessionId("a")
NORMAL = 1
"""`PRAGMA synchronous`: SQLite syncs the header of a write-ahead log that starts again, and nothing else."""


@pytest.mark.requirement("G2")
@pytest.mark.parametrize("level", list(Durability))
@pytest.mark.parametrize("bodies", [[b"x"], [b"x" * 1_000_000]], ids=["small", "large"])
async def test_the_level_holds_when_an_append_returns(
    tmp_path: Path, level: Durability, bodies: list[bytes]
) -> None:
    synced: list[int] = []

    def sync(file: int) -> None:
        os.fsync(file)
        synced.append(file)

    path = tmp_path / "log.db"
    async with await SqliteEventLog.open(path, limits=Limits(), durability=level, sync=sync) as log:
        await log.create(A)
        for head, durable in enumerate((False, False, True, False, True, True, False)):
            before = len(synced)
            await log.append(A, bodies, expected=head, unsettled=False, durable=durable)
            assert len(synced) - before == (durable or level is Durability.FULL)
        before = len(synced)
        await log.delete(A)
        assert len(synced) > before, "a deletion is synced at every level"
    assert len(set(synced)) == 1


@pytest.mark.parametrize("level", list(Durability))
async def test_a_header_is_synced_by_every_commit_that_writes_one(
    tmp_path: Path, faults: SqliteFaults, level: Durability
) -> None:
    seen: list[int] = []

    def note(connection: sqlite3.Connection, sql: str) -> None:
        if sql == "COMMIT":
            (number,) = sqlite3.Connection.execute(connection, "PRAGMA synchronous").fetchone()
            seen.append(number)

    async with await SqliteEventLog.open(tmp_path / "log.db", limits=Limits(), durability=level) as log:
        faults.before = note
        await log.create(A)
        for head, durable in enumerate((False, True, False)):
            await log.append(A, [b"x"], expected=head, unsettled=False, durable=durable)
    assert seen == [NORMAL] * 4
