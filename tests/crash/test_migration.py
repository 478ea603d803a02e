"""A log of version 0.1.0 is opened with all that was in it, also when who moves it to the next format is killed.

`log_0_1_0` was written by that version: `sessions.db` by a node that was killed in the middle of turns,
`trimmed.db` with sessions that were trimmed and deleted; `content.json` has what it said of them.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
from tests.crash.lane import ChildProgram
from tests.crash.orders import Order
from tests.crash.witness import Witness, copied

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, Position, Snapshot, SqliteEventLog
from turnwire.log import sqlite_file as sql

OLD = Path(__file__).parent / "log_0_1_0"
FILES = ("sessions.db", "trimmed.db")
CONTENT: dict[str, dict[str, list[Any]]] = json.loads((OLD / "content.json").read_text())


def unpacked(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.decompress((OLD / f"{name}.gz").read_bytes()))
    return path


async def content_of(log: SqliteEventLog) -> dict[str, list[Any]]:
    content: dict[str, list[Any]] = {}
    for head in await log.sessions():
        crc, at = 0, head.first - 1
        while at < head.head:
            for each in await log.read(head.session_id, Position(head.epoch, at), max_events=100, max_bytes=20_000):
                crc, at = crc32(each.body, crc), each.offset
        content[head.session_id] = [head.epoch, head.first, head.head, head.unsettled, crc]
    return content


async def opened(path: Path) -> SqliteEventLog:
    return await SqliteEventLog.open(path, limits=Limits(), durability=Durability.NORMAL)


async def content_at(path: Path) -> dict[str, list[Any]]:
    async with await opened(path) as log:
        return await content_of(log)


@pytest.mark.anyio
@pytest.mark.requirement("G1")
@pytest.mark.parametrize("name", FILES)
async def test_a_log_of_0_1_0_has_all_that_was_in_it(tmp_path: Path, name: str) -> None:
    path = unpacked(tmp_path, name)
    for _ in range(2):
        assert await content_at(path) == CONTENT[name]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.anyio
async def test_a_log_of_0_1_0_goes_on(tmp_path: Path) -> None:
    trimmed, emptied, new = SessionId("trimmed"), SessionId("emptied"), SessionId("new")
    async with await opened(unpacked(tmp_path, "trimmed.db")) as log:
        assert await log.load_snapshot(trimmed, "fold") == Snapshot("fold", 1000, 3, b"folded")
        assert await log.append(trimmed, [b"x"], expected=1500, unsettled=True, durable=True) == 1501
        assert await log.trim(trimmed, upto=1400) == 1401
        assert await log.append(emptied, [b"4"], expected=3, unsettled=False, durable=False) == 4
        await log.create(new)
    async with await opened(tmp_path / "trimmed.db") as log:
        heads = {each.session_id: (each.first, each.head) for each in await log.sessions()}
        assert heads == {trimmed: (1401, 1501), emptied: (4, 4), new: (1, 0)}
    with closing(sqlite3.connect(tmp_path / "trimmed.db")) as connection:
        (key,) = connection.execute("SELECT id FROM sessions WHERE name = 'new'").fetchone()
        assert key > 3, "the number of a deleted session is not used again"


@pytest.mark.requirement("G1", "G3")
def test_a_node_on_a_log_of_0_1_0_ends_the_turns_that_were_open(tmp_path: Path) -> None:
    path = unpacked(tmp_path, "sessions.db")
    witness = Witness(path)
    with closing(copied(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert witness.look() == []
    active = witness.active()
    assert active
    order = Order(str(path), seed=1, generation=9, profile="v1plus", durability="normal", last=True)
    with ChildProgram() as child:
        outcome = child.run(order)
    assert (outcome.failures, outcome.exit_code, outcome.recovered) == ([], 0, True)
    assert [*witness.look(), *witness.hear(outcome.claims), *witness.recovered(active), *witness.settled()] == []


# -- a move that is killed
# ------------------------------------------------------------------------------------------


def large(path: Path) -> dict[str, int]:
    """A file of format 1 with many events: each session and the checksum of its events."""
    bodies = {name: [b"%d " % number * (number % 40) for number in range(20_000)] for name in ("a", "b")}
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for statement in sql.MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
        for key, (name, each) in enumerate(bodies.items(), 1):
            connection.execute("INSERT INTO sessions VALUES (?, ?, 'e', 1, ?, 0)", (key, name, len(each)))
            rows = ((key, offset, body) for offset, body in enumerate(each, 1))
            connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
    return {name: crc32(b"".join(each)) for name, each in bodies.items()}


def killed_while_opening(path: Path, die: Callable[[], None], within_s: float | None) -> bool:
    """Open the file in a child that dies; false if it was done before."""
    pid = os.fork()
    if not pid:
        try:
            die()
            sql.SqliteFile.open(path, Limits())
        finally:
            os._exit(0)
    if within_s is not None and signal.sigtimedwait({signal.SIGCHLD}, within_s) is None:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def die_after(moves: int) -> Callable[[], None]:
    """Die when so many transactions of the move are done."""

    def wrap() -> None:
        move, left = sql.move_some, moves

        def dying(connection: sqlite3.Connection) -> bool:
            nonlocal left
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return move(connection)

        sql.move_some = dying

    return wrap


@pytest.mark.requirement("G1")
def test_a_move_that_is_killed_at_any_instant_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    expected = large(path)
    chance = Random(17)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        deaths = 0
        for moves in (0, 1, 0, 2, 1, 3):
            deaths += killed_while_opening(path, die_after(moves), None)
        assert deaths == 6, "each boundary between two transactions"
        for _ in range(20):
            deaths += killed_while_opening(path, lambda: None, chance.uniform(0.001, 0.03))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    content = asyncio.run(content_at(path))
    assert {name: (each[1], each[2], each[4]) for name, each in content.items()} == {
        name: (1, 20_000, crc) for name, crc in expected.items()
    }
