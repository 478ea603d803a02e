"""Opening a log file: permissions, rejected files, and that a rejected file is not modified."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from turnwire.errors import ConfigError, LogCorrupt, LogLocked, LogVersionMismatch, TurnwireError
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, Position, SqliteEventLog
from turnwire.log import sqlite_schema as sql
from turnwire_testing.faults import SqliteFaults
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

A = SessionId("a")

OWNER = """
import asyncio, os, sys
from turnwire.limits import Limits
from turnwire.log import Durability, SqliteEventLog

async def main():
    log = await SqliteEventLog.open(sys.argv[1], limits=Limits(), durability=Durability.NORMAL)
    os.write(1, b"open\\n")
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def opened(path: Path) -> SqliteEventLog:
    return await SqliteEventLog.open(path, limits=Limits(busy_timeout_s=0.05), durability=Durability.NORMAL)


async def filled(path: Path, events: int = 10) -> Epoch:
    async with await opened(path) as log:
        created = await log.create(A)
        # Each append is a row, and of a long one several.
        for head in range(10):
            await log.append(A, [b"x" * 500], expected=head, unsettled=False, durable=True)
        await log.append(A, [b"x" * 500] * (events - 10), expected=10, unsettled=False, durable=True)
    return created.epoch


def changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def locks_of(path: Path) -> list[str]:
    """The locks on a file, as the kernel lists them, without their numbers."""
    inode = f":{path.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return sorted(line.split(": ", 1)[1] for line in lines if inode in line)


def names_in(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


async def expect_refused_untouched(path: Path, error: type[TurnwireError]) -> TurnwireError:
    before = content_of(path)
    with pytest.raises(error) as raised:
        await opened(path)
    assert content_of(path) == before
    assert str(path.parent) not in str(raised.value.context)
    return raised.value


async def test_file_and_new_directories_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "state" / "turnwire" / "log.db"
    previous = os.umask(0)
    try:
        async with await opened(path) as log:
            await log.create(A)
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(previous)
    assert set(modes) == {"log.db", "log.db-wal", "log.db-shm", "log.db.lock"}
    assert set(modes.values()) == {0o600}
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path.parent.parent)} == {0o700}


async def test_after_closing_the_log_is_one_file(tmp_path: Path) -> None:
    await filled(tmp_path / "log.db")
    assert names_in(tmp_path) == {"log.db", "log.db.lock"}


@pytest.mark.guarantee("G1")
async def test_the_file_can_be_read_by_others_while_it_is_owned(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with await opened(path) as log:
        await log.create(A)
        await log.append(A, [b"one", b"two"], expected=0, unsettled=True, durable=False)
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            sessions = connection.execute("SELECT name, first, unsettled FROM sessions").fetchall()
            events = connection.execute("SELECT offset, body FROM events ORDER BY offset").fetchall()
    assert sessions == [("a", 1, 1)]
    assert events == [(1, b"one"), (2, b"two")]


@pytest.mark.parametrize("ends", ["[]", "[1,2]", "no JSON", "{}"])
async def test_a_segment_that_is_not_as_long_as_it_says_is_corrupt(tmp_path: Path, ends: str) -> None:
    path = tmp_path / "log.db"
    epoch = await filled(path)
    changed(path, f"UPDATE segments SET ends = '{ends}' WHERE key & {sql.LAST_OFFSET} = 5")
    async with await opened(path) as log:
        with pytest.raises(LogCorrupt):
            await log.read(A, Position(epoch, 0), max_events=100, max_bytes=10_000)


async def test_the_events_are_a_view_for_others(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    given = [
        b"",
        b"\x00",
        b'{"a":1}',
        *(b"%d" % number * (number % 50) for number in range(600)),
        b"z" * 300_000,
        b"",
    ]
    async with await opened(path) as log:
        for name in (A, SessionId("b")):
            await log.create(name)
            await log.append(name, given, expected=0, unsettled=True, durable=False)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT session, offset, body FROM events ORDER BY session, offset").fetchall()
        lengths = connection.execute("SELECT json_array_length(ends), length(bodies) FROM segments").fetchall()
    assert rows == [(session, *event) for session in (1, 2) for event in enumerate(given, 1)]
    assert all(
        events <= sql.SEGMENT_EVENTS and (size <= sql.SEGMENT_BYTES or events == 1) for events, size in lengths
    )


@pytest.mark.parametrize("name", ["a?b#c%41.db", "mit Leerzeichen ü.db"])
async def test_a_path_may_hold_any_character(tmp_path: Path, name: str) -> None:
    await filled(tmp_path / name)
    assert (tmp_path / name).stat().st_size > 0


async def test_a_second_owner_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with await opened(path) as log:
        with pytest.raises(LogLocked, match=str(os.getpid())) as raised:
            await opened(path)
        assert raised.value.context["owner"] == os.getpid()
        alias = tmp_path / "alias.db"
        alias.symlink_to(path)
        with pytest.raises(LogLocked):
            await opened(alias)
        await log.create(A)
    await (await opened(path)).aclose()


async def test_the_lock_of_a_killed_owner_is_not_stale(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with await anyio.open_process([sys.executable, "-c", OWNER, path], stderr=None) as child:
        assert child.stdout is not None
        with anyio.fail_after(WAIT_S):
            assert await child.stdout.receive() == b"open\n"
        with pytest.raises(LogLocked, match=str(child.pid)):
            await opened(path)
        child.kill()
        with anyio.fail_after(WAIT_S):
            await child.wait()
    await (await opened(path)).aclose()


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4096, b"x"])
async def test_a_file_that_is_no_database_is_corrupt_and_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(content)
    await expect_refused_untouched(path, LogCorrupt)


async def test_a_damaged_file_is_corrupt_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path, 1000)
    whole = path.read_bytes()
    # Page 1 stays whole, so that the damage is found where the tables are.
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    await expect_refused_untouched(path, LogCorrupt)


async def test_a_database_of_another_program_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    changed(path, "CREATE TABLE accounts (id)")
    await expect_refused_untouched(path, LogCorrupt)


@pytest.mark.parametrize("version", [sql.VERSION - 1, sql.VERSION + 1])
async def test_log_of_another_format_is_rejected_and_untouched(tmp_path: Path, version: int) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    changed(path, f"PRAGMA user_version = {version}")
    error = await expect_refused_untouched(path, LogVersionMismatch)
    assert error.context == {"format": version, "known": sql.VERSION}
    assert f"format {version}" in str(error)
    assert "--data DIR" in str(error)


async def test_a_log_that_does_not_begin_where_it_says_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    changed(path, f"DELETE FROM segments WHERE key & {sql.LAST_OFFSET} = 1")
    await expect_refused_untouched(path, LogCorrupt)


async def test_missing_events_are_found_when_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    epoch = await filled(path)
    changed(path, f"DELETE FROM segments WHERE key & {sql.LAST_OFFSET} = 5")
    async with await opened(path) as log:
        with pytest.raises(LogCorrupt, match="missing"):
            await log.read(A, Position(epoch, 0), max_events=100, max_bytes=10_000)
        with pytest.raises(LogCorrupt, match="missing"):
            await log.read(A, Position(epoch, 4), max_events=1, max_bytes=10_000)
        assert len(await log.read(A, Position(epoch, 5), max_events=100, max_bytes=10_000)) == 5


async def test_a_directory_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="directory that can be written"):
        await opened(tmp_path / "file" / "log.db")
    with pytest.raises(ConfigError, match="directory that can be written"):
        await opened(tmp_path)


async def test_a_full_disk_does_not_keep_a_log_from_being_read(tmp_path: Path, faults: SqliteFaults) -> None:
    epoch = await filled(tmp_path / "log.db")
    faults.fail("PRAGMA wal_checkpoint(TRUNCATE)", sqlite3.SQLITE_FULL)
    async with await opened(tmp_path / "log.db") as log:
        assert len(await log.read(A, Position(epoch, 0), max_events=100, max_bytes=10_000)) == 10


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists the locks of a file")
async def test_a_refused_second_owner_does_not_touch_the_locks_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with await opened(path):
        before = locks_of(path)
        assert before
        with pytest.raises(LogLocked):
            await opened(path)
        assert locks_of(path) == before


async def test_a_refused_open_leaves_no_lock_behind(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"not a database" * 100)
    await expect_refused_untouched(path, LogCorrupt)
    path.unlink()
    await (await opened(path)).aclose()


async def test_events_left_by_a_broken_off_delete_go_when_the_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path, 3000)
    for statement in ("INSERT INTO forgotten SELECT id, 3000 FROM sessions", "DELETE FROM sessions"):
        changed(path, statement)
    async with await opened(path) as log:
        assert await log.sessions() == []
    with closing(sqlite3.connect(path)) as connection:
        for table in ("events", "forgotten"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


async def test_creating_the_tables_fails_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.db"
    with monkeypatch.context() as patch:
        patch.setattr(sql, "TABLES", (*sql.TABLES, "INSERT INTO nowhere VALUES (1)"))
        with pytest.raises(TurnwireError):
            await opened(path)
    assert not path.exists()
    await filled(path)
    assert names_in(tmp_path) == {"log.db", "log.db.lock"}


@pytest.mark.guarantee("G8")
async def test_log_whose_creation_was_killed_is_created_again(tmp_path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        (tmp_path / f"log.db.new{suffix}").write_bytes(b"half")
    async with await opened(tmp_path / "log.db") as log:
        await log.create(A)
    assert names_in(tmp_path) == {"log.db", "log.db.lock"}


async def test_empty_file_is_not_taken_for_a_new_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()
    error = await expect_refused_untouched(path, LogCorrupt)
    assert str(path) in str(error)
    assert "delete it to start" in str(error)


async def test_missing_file_with_a_write_ahead_log_is_not_taken_for_a_new_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    (tmp_path / "log.db-wal").touch()
    with pytest.raises(LogCorrupt, match=r"log\.db-wal"):
        await opened(path)
    assert not path.exists()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE segments SET crc = 1 WHERE key = (SELECT max(key) FROM segments)",
        "UPDATE sessions SET epoch = CAST(x'ff' AS TEXT)",
        "ALTER TABLE segments RENAME TO segmentt",
        "PRAGMA journal_mode = DELETE",
    ],
    ids=["newest events", "not UTF-8", "no table", "journal mode"],
)
async def test_damage_is_found_on_open(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    changed(path, "DROP VIEW events")
    changed(path, statement)
    error = await expect_refused_untouched(path, LogCorrupt)
    assert error.exit_status == 74


async def test_damage_found_by_a_read_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    epoch = await filled(path)
    changed(path, f"UPDATE segments SET ends = CAST(x'ff' AS TEXT) WHERE key & {sql.LAST_OFFSET} = 5")
    async with await opened(path) as log:
        with pytest.raises(LogCorrupt):
            await log.read(A, Position(epoch, 0), max_events=100, max_bytes=10_000)


@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
async def test_append_to_deleted_file_is_rejected_until_it_is_back(tmp_path: Path, is_replaced: bool) -> None:
    path, elsewhere = tmp_path / "log.db", tmp_path / "elsewhere.db"
    await filled(path)
    async with await opened(path) as log:
        path.rename(elsewhere)
        if is_replaced:
            path.write_bytes(elsewhere.read_bytes())
        with pytest.raises(LogCorrupt, match="deleted or replaced"):
            await log.append(A, [b"x"], expected=10, unsettled=False, durable=False)
        elsewhere.replace(path)
        assert await log.append(A, [b"x"], expected=10, unsettled=False, durable=False) == 11


async def test_lost_session_is_found_on_open(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with await opened(path) as log:
        for name in ("a", "b"):
            await log.create(SessionId(name))
    with closing(sqlite3.connect(path)) as connection:
        [(page,)] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'sessions'")
        [(size,)] = connection.execute("PRAGMA page_size")
    with path.open("r+b") as file:
        file.seek((page - 1) * size + 3)  # the number of rows, in the header of a page (SQLite file format, 1.6)
        file.write((1).to_bytes(2, "big"))
    with pytest.raises(LogCorrupt):
        await opened(path)
