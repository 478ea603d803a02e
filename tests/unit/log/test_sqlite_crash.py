"""What a killed process had acknowledged is in the file; what it had not is whole or not there."""

from __future__ import annotations

import os
import random
import select
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, Position, SqliteEventLog
from turnwire.testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

KILLS = 20
SESSIONS = [SessionId(f"s{number}") for number in range(4)]
BATCH = 5

CHILD = f"""
import asyncio, os, sys
from turnwire.limits import Limits
from turnwire.log import Durability, SqliteEventLog

async def write(log, session):
    head = (await log.head(session)).head
    while True:
        bodies = [b"%d " % (head + 1 + number) + b"x" * 300 for number in range({BATCH})]
        durable = head % 3 == 0
        head = await log.append(session, bodies, expected=head, unsettled=True, durable=durable)
        os.write(1, f"{{session}} {{head}}\\n".encode())

async def main():
    limits = Limits(checkpoint_bytes=256 * 1024)
    log = await SqliteEventLog.open(sys.argv[1], limits=limits, durability=Durability(sys.argv[2]))
    known = [each.session_id for each in await log.sessions()]
    for session in {SESSIONS!r}:
        if session not in known:
            await log.create(session)
    async with asyncio.TaskGroup() as tasks:
        for session in {SESSIONS!r}:
            tasks.create_task(write(log, session))

asyncio.run(main())
"""


def run_and_kill(path: Path, level: Durability, acknowledgements: int) -> dict[SessionId, int]:
    """Heads that a child acknowledged on its pipe before it was killed."""
    command = [sys.executable, "-c", CHILD, str(path), str(level)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        said = b""
        while said.count(b"\n") < acknowledgements:
            assert select.select([child.stdout], [], [], 30)[0], "the child says nothing"
            chunk = os.read(child.stdout.fileno(), 65536)
            assert chunk, "the child died by itself"
            said += chunk
        child.kill()
        said += child.stdout.read()
        child.wait(timeout=WAIT_S)
    acknowledged: dict[SessionId, int] = {}
    # What follows the last line end was not said whole.
    for line in said.split(b"\n")[:-1]:
        name, head = line.decode().split()
        acknowledged[SessionId(name)] = int(head)
    return acknowledged


@pytest.mark.requirement("G1", "G2")
@pytest.mark.parametrize("level", list(Durability))
async def test_acknowledged_events_survive_kill_9(tmp_path: Path, level: Durability) -> None:
    path = tmp_path / "log.db"
    chance = random.Random(7)
    for _ in range(KILLS // 2 if level is Durability.NORMAL else KILLS // 4):
        acknowledged = run_and_kill(path, level, chance.randint(1, 200))
        async with await SqliteEventLog.open(path, limits=Limits(), durability=level) as log:
            heads = {each.session_id: each for each in await log.sessions()}
            for session_id, least in acknowledged.items():
                head = heads[session_id]
                assert head.head >= least
                assert head.head % BATCH == 0, "an append was stored in part"
                await expect_whole(log, session_id)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def expect_whole(log: SqliteEventLog, session_id: SessionId) -> None:
    head = await log.head(session_id)
    seen = 0
    while seen < head.head:
        page = await log.read(session_id, Position(head.epoch, seen), max_events=1000, max_bytes=1 << 20)
        for offset, body in page:
            seen += 1
            assert offset == seen
            assert body == b"%d " % seen + b"x" * 300
