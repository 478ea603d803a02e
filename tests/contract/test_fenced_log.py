"""PostgreSQL fulfils L12 (fencing), whatever breaks between a node and the database."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, cast

import anyio
import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import pytest
from tests.support.postgres import PostgresServer

from turnwire.errors import LogUnavailable
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log import postgres_writer as writer
from turnwire.log.owners import NodeIdentity
from turnwire.log.postgres import PostgresEventLog, open_postgres_log
from turnwire_testing.contracts.fenced_log import FENCED_CHECKS, FencedCheck, OwnedLog, put
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

A = SessionId("a")
LANES = "from pg_stat_activity where application_name = 'turnwire append'"


class RowLock(NamedTuple):
    """`HeldUp` by a transaction that has a session's row."""

    connection: Any
    transaction: Any

    async def reached(self) -> None:
        with anyio.fail_after(WAIT_S):
            while not await self.connection.fetchval("select count(*) from pg_locks where not granted"):
                pass

    async def end(self) -> None:
        await self.transaction.commit()


class PostgresLogs:
    """`FencedLogs` in one schema."""

    def __init__(self, address: str, connection: Any) -> None:
        self._address = address
        self.other = connection
        """A separate connection to the same tables."""

    def open(self, place: str = "here") -> AbstractAsyncContextManager[PostgresEventLog]:
        node = NodeIdentity("node", place)
        return open_postgres_log(self._address, limits=Limits(), node=node, alone=False)

    async def lose_others(self, log: OwnedLog) -> None:
        await self.other.execute("update tw_nodes set gone = id <> $1", log.owners.life)

    async def hold_up(self, session_id: SessionId, *, claiming: bool) -> RowLock:
        transaction = self.other.transaction()
        await transaction.start()
        change = "owner = 1000000, fence = fence + 1" if claiming else "owner = owner"
        await self.other.execute(f"update tw_sessions set {change} where name = $1", session_id)
        return RowLock(self.other, transaction)

    async def cut(self, log: OwnedLog) -> None:
        await self.other.fetch(f"select pg_terminate_backend(pid) {LANES}")


@pytest.fixture
async def logs(postgres: PostgresServer) -> AsyncGenerator[PostgresLogs]:
    address = postgres.new_log()
    connection = await cast("Any", asyncpg).connect(address)
    try:
        yield PostgresLogs(address, connection)
    finally:
        await connection.close()


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("check", FENCED_CHECKS, ids=str)
async def test_postgresql_keeps_its_fences(check: FencedCheck, logs: PostgresLogs) -> None:
    await check(logs)


@pytest.mark.parametrize(
    "check",
    [each for each in FENCED_CHECKS if each.name.startswith(("an_append_under", "an_append_that_waited"))],
    ids=str,
)
async def test_without_the_fence_in_the_statement_the_checks_fail(
    check: FencedCheck, logs: PostgresLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "APPEND", writer.APPEND.replace("and s.fence = w.fence", ""))
    with pytest.raises(AssertionError, match="L12"):
        await check(logs)


async def break_an_append(logs: PostgresLogs, log: OwnedLog, expected: int) -> None:
    """Break an append so that its outcome is unknown."""
    held_up = await logs.hold_up(A, claiming=False)

    async def append() -> None:
        with pytest.raises(LogUnavailable):
            await put(log, b"broken", expected)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(append)
        await held_up.reached()
        await logs.cut(log)
    await held_up.end()


async def test_a_moved_fence_survives_that_its_answer_was_lost(logs: PostgresLogs) -> None:
    async with logs.open() as log:
        await log.create(A)
        await break_an_append(logs, log, 0)
        # The fence moves, and its requester is never notified.
        await logs.other.execute("update tw_sessions set fence = fence + 1")
        assert (await log.head(A)).head == 0
        assert await put(log, b"on", 0) == 1


async def test_a_session_that_is_unsure_takes_nothing_before_its_head_was_asked(logs: PostgresLogs) -> None:
    async with logs.open() as log:
        await log.create(A)
        await break_an_append(logs, log, 0)
        with pytest.raises(LogUnavailable, match="unknown end"):
            await put(log, b"too soon", 0)
        assert (await log.head(A)).head == 0
        assert await put(log, b"on", 0) == 1


async def test_a_wait_for_the_standby_that_was_cancelled_acknowledges_nothing(
    logs: PostgresLogs, postgres: PostgresServer
) -> None:
    """PostgreSQL warns, and then reports success: the event is here and nowhere else."""
    postgres.ask("alter system set synchronous_standby_names = 'nobody'")
    refusals: list[str] = []
    try:
        async with logs.open() as log:
            await log.create(A)
            postgres.ask("select pg_reload_conf()")
            await logs.other.execute("set synchronous_commit = local")

            async def append() -> None:
                with pytest.raises(LogUnavailable):
                    await put(log, b"alone", 0)
                refusals.append("told")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append)
                with anyio.fail_after(WAIT_S):
                    while not refusals:
                        await logs.other.fetch(
                            "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'"
                        )
            postgres.ask("alter system reset synchronous_standby_names")
            postgres.ask("select pg_reload_conf()")
            assert (await log.head(A)).head == 1
    finally:
        postgres.ask("alter system reset synchronous_standby_names")
        postgres.ask("select pg_reload_conf()")
    assert refusals
