"""What each durability level asks of SQLite, and that SQLite does it for the commit at hand."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, SqliteEventLog
from turnwire.log.sqlite_wal import SYNC_FULL, SYNC_NORMAL, SYNC_OFF, sync_for
from turnwire.testing.faults import SqliteFaults

A = SessionId("a")
SYNC_NAMES = {0: SYNC_OFF, 1: SYNC_NORMAL, 2: SYNC_FULL}
ORDINARY = {Durability.FULL: SYNC_FULL, Durability.NORMAL: SYNC_NORMAL, Durability.MEMORY: SYNC_OFF}


@pytest.mark.parametrize("level", list(Durability))
@pytest.mark.parametrize("may_restart", [True, False])
def test_a_durable_commit_is_synced_at_every_level(level: Durability, may_restart: bool) -> None:
    assert sync_for(level, durable=True, may_restart=may_restart) == SYNC_FULL


@pytest.mark.parametrize("level", list(Durability))
def test_an_ordinary_commit_is_as_its_level_says(level: Durability) -> None:
    assert sync_for(level, durable=False, may_restart=False) == ORDINARY[level]


def test_a_commit_that_may_restart_the_wal_is_never_off() -> None:
    assert sync_for(Durability.MEMORY, durable=False, may_restart=True) == SYNC_NORMAL


@pytest.mark.anyio
@pytest.mark.requirement("G2")
@pytest.mark.parametrize("level", list(Durability))
async def test_the_level_holds_when_the_commit_runs(
    tmp_path: Path, faults: SqliteFaults, level: Durability
) -> None:
    seen: list[str] = []

    def note(connection: sqlite3.Connection, sql: str) -> None:
        if sql == "COMMIT":
            (number,) = sqlite3.Connection.execute(connection, "PRAGMA synchronous").fetchone()
            seen.append(SYNC_NAMES[number])

    async with await SqliteEventLog.open(tmp_path / "log.db", limits=Limits(), durability=level) as log:
        await log.create(A)
        faults.before = note
        for head, durable in enumerate((False, False, True, False, True, True, False)):
            await log.append(A, [b"x"], expected=head, unsettled=False, durable=durable)
    ordinary = ORDINARY[level]
    assert seen == [ordinary, ordinary, SYNC_FULL, ordinary, SYNC_FULL, SYNC_FULL, ordinary]
