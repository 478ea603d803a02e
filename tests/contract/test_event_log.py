"""Every engine of the event log fulfils the contract; SQLite at every durability level.

The additional contract for several owners (L12) is in `test_fenced_log.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.postgres import PostgresServer

from turnwire.limits import Limits
from turnwire.log import Durability, EventLog, MemoryEventLog, SqliteEventLog
from turnwire.log.postgres import open_postgres_log
from turnwire_testing.contracts.event_log import CHECKS, REOPEN_CHECKS, Check, OpenLog

pytestmark = pytest.mark.anyio

OBLIGATIONS = {f"L{number}" for number in range(1, 12)}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def open_memory(_: Path) -> OpenLog:
    @asynccontextmanager
    async def open_log() -> AsyncGenerator[EventLog]:
        log = MemoryEventLog()
        yield log
        await log.aclose()

    return open_log


def open_sqlite(durability: Durability) -> Callable[[Path], OpenLog]:
    def at(folder: Path) -> OpenLog:
        @asynccontextmanager
        async def open_log() -> AsyncGenerator[EventLog]:
            path = folder / "log.db"
            async with await SqliteEventLog.open(path, limits=Limits(), durability=durability) as log:
                yield log

        return open_log

    return at


def open_postgres(server: PostgresServer) -> OpenLog:
    address = server.new_log()
    return lambda: open_postgres_log(address, limits=Limits())


SQLITE = {f"sqlite-{level}": open_sqlite(level) for level in Durability}
ENGINES = {"memory": open_memory, **SQLITE}


@pytest.mark.guarantee("G1", "G2")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_engine_keeps_the_contract(engine: str, check: Check, tmp_path: Path) -> None:
    await check(ENGINES[engine](tmp_path))


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("engine", SQLITE)
@pytest.mark.parametrize("check", REOPEN_CHECKS, ids=str)
async def test_engine_keeps_the_contract_over_a_reopen(engine: str, check: Check, tmp_path: Path) -> None:
    await check(SQLITE[engine](tmp_path))


@pytest.mark.guarantee("G1", "G2")
@pytest.mark.parametrize("check", [*CHECKS, *REOPEN_CHECKS], ids=str)
async def test_postgresql_keeps_the_contract(check: Check, postgres: PostgresServer) -> None:
    await check(open_postgres(postgres))


def test_every_obligation_has_a_check() -> None:
    assert {check.obligation for check in (*CHECKS, *REOPEN_CHECKS)} == OBLIGATIONS


async def test_a_check_fails_on_a_log_that_breaks_its_obligation() -> None:
    class Forgetful(MemoryEventLog):
        async def trim(self, session_id: object, *, upto: int) -> int:
            return upto + 1

    @asynccontextmanager
    async def open_log() -> AsyncGenerator[EventLog]:
        yield Forgetful()

    trimming = [check for check in CHECKS if check.obligation == "L9"]
    for check in trimming:
        with pytest.raises(AssertionError, match="L9"):
            await check(open_log)
