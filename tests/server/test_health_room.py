"""Health and readiness with a full disk: reported until there is space again, which the daemon detects by
itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.server.seats import Seat, answer, seated
from tests.support.daemons import running_daemon

from turnwire.log.base import Snapshot
from turnwire.server.routes.health import PROBE
from turnwire_testing.faults import SqliteFaults, sqlite_faults

pytestmark = pytest.mark.anyio

FULL = {"status": "degraded", "reason": "log_full"}
PLENTY = 1_000_000


class Disk:
    """The room that the log has, in pages of SQLite beyond those that are in use."""

    def __init__(self, faults: SqliteFaults) -> None:
        self._free: int | None = PLENTY
        faults.before = self._limit

    def leave(self, pages: int) -> None:
        self._free = pages

    def _limit(self, connection: sqlite3.Connection, statement: str) -> None:
        if self._free is None or not statement.startswith("BEGIN IMMEDIATE"):
            return
        # Past the faults, which would see these statements as well.
        (used,) = sqlite3.Connection.execute(connection, "PRAGMA page_count").fetchone()
        sqlite3.Connection.execute(connection, f"PRAGMA max_page_count = {used + self._free}").fetchone()
        self._free = None


@contextmanager
def small_disk() -> Generator[Disk]:
    with sqlite_faults() as faults:
        yield Disk(faults)


async def told(client: httpx.AsyncClient, status: int) -> None:
    deep = answer(await client.get("/health?deep=1"), status)
    ready = answer(await client.get("/ready"), status)
    if status == 503:
        assert (deep, ready) == (FULL, FULL)
    else:
        assert (deep["status"], ready) == ("ok", {"status": "ready"})


async def refused(seat: Seat, size: int) -> None:
    assert (await seat.prompt("say 1 " + "x" * size, 507))["code"] == "log_full"


async def test_a_full_disk_is_told_until_there_is_room_again(tmp_path: Path) -> None:
    with small_disk() as disk:
        async with seated(tmp_path / "d") as seat, httpx.AsyncClient(base_url=seat.running.url) as stranger:
            before = await seat.running.daemon.log.sessions()
            disk.leave(0)
            await told(stranger, 200)  # nobody has written, so nobody knows
            await refused(seat, 50_000)
            for _ in range(2):
                await told(stranger, 503)
            assert answer(await stranger.get("/health"), 200) == {"status": "ok"}

            disk.leave(PLENTY)
            await told(stranger, 200)
            assert await seat.running.daemon.log.sessions() == before
            assert (await seat.run("say 1 fine")).prompt_id


async def test_a_full_disk_is_the_explanation_of_a_session(tmp_path: Path) -> None:
    with small_disk() as disk:
        async with seated(tmp_path / "d") as seat:
            path = f"/session/{seat.session_id}/explain"
            assert "log" not in answer(await seat.client.get(path), 200)
            disk.leave(0)
            await refused(seat, 50_000)
            assert answer(await seat.client.get(path), 200)["log"] == "log_full"
            disk.leave(PLENTY)
            await told(seat.client, 200)
            assert "log" not in answer(await seat.client.get(path), 200)


async def test_room_for_less_than_what_did_not_fit_is_not_enough(tmp_path: Path) -> None:
    with small_disk() as disk:
        async with seated(tmp_path / "d") as seat:
            disk.leave(80)
            await refused(seat, 500_000)
            await told(seat.client, 503)
            await seat.run("say 1 fine")
            await told(seat.client, 503)
            disk.leave(160)
            await told(seat.client, 200)


async def test_an_append_as_large_as_what_did_not_fit_says_that_there_is_room(tmp_path: Path) -> None:
    with small_disk() as disk:
        async with seated(tmp_path / "d") as seat:
            disk.leave(0)
            await refused(seat, 50_000)
            disk.leave(PLENTY)
            await seat.run("say 1 " + "x" * 50_000)
            await told(seat.client, 200)
            assert await seat.running.daemon.log.load_snapshot(seat.session_id, PROBE) is None


async def test_looking_for_room_leaves_nothing_that_grows(tmp_path: Path) -> None:
    with small_disk() as disk:
        async with seated(tmp_path / "d") as seat:
            log = seat.running.daemon.log
            for turn in range(3):
                disk.leave(0)
                await refused(seat, 500_000)
                await told(seat.client, 503)
                disk.leave(PLENTY)
                await told(seat.client, 200)
                kept = await log.load_snapshot(seat.session_id, PROBE)
                assert kept is not None
                assert kept.body == b""
                # Fill the freed space: otherwise the next prompt would fit in there.
                await log.save_snapshot(seat.session_id, Snapshot(f"filler {turn}", 0, 1, b"x" * 600_000))


async def test_a_log_without_a_session_finds_out_that_there_is_room_again(tmp_path: Path) -> None:
    with sqlite_faults() as faults:
        async with running_daemon(tmp_path / "d") as running, running.client() as client:
            faults.fail("INSERT INTO sessions", sqlite3.SQLITE_FULL)
            assert answer(await client.post("/session", json={}), 507)["code"] == "log_full"
            await told(client, 503)
            faults.before = None
            await told(client, 200)
            assert await running.daemon.log.sessions() == []
