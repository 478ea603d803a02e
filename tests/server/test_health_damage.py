"""Health and readiness over a damaged log."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.server.seats import answer, seated

from turnwire.errors import LogCorrupt
from turnwire.log import Position

pytestmark = pytest.mark.anyio


async def test_damage_that_a_read_finds_makes_the_daemon_not_ready(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        await seat.run("say 1 fine")
        epoch = (await seat.running.daemon.log.head(seat.session_id)).epoch
    with closing(sqlite3.connect(tmp_path / "d" / "turnwire.db")) as connection, connection:
        connection.execute("UPDATE segments SET ends = CAST(x'ff' AS TEXT) WHERE key & 0xFFFFFFFFF = 2")
    async with seated(tmp_path / "d", seat.session_id) as seat:
        with pytest.raises(LogCorrupt):
            await seat.running.daemon.log.read(seat.session_id, Position(epoch, 1), max_events=1, max_bytes=1)
        damaged = {"status": "degraded", "reason": "log_corrupt"}
        for _ in range(2):
            assert answer(await seat.client.get("/ready"), 503) == damaged
            assert answer(await seat.client.get("/health?deep=1"), 503) == damaged
