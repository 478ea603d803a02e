"""The log in PostgreSQL beyond the contract: access control, error messages, the effects of a killed server."""

from __future__ import annotations

import gc
import shutil
import socket
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.patience import SOON_S
from tests.support.certificates import self_signed
from tests.support.cut_proxy import cutting
from tests.support.postgres import PostgresServer, need_postgres, postgres_server, schema_of

from turnwire.errors import (
    ConfigError,
    LocalProtocolError,
    LogCorrupt,
    LogError,
    LogFull,
    LogLocked,
    LogUnavailable,
    LogVersionMismatch,
    SessionNotFound,
)
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log import Durability, MemoryEventLog, SqliteEventLog
from turnwire.log.base import Position, Snapshot
from turnwire.log.copying import copy_log, every_session
from turnwire.log.postgres import PostgresEventLog, inspect_database, open_postgres_log
from turnwire.log.postgres_connection import BROKEN, Database, hang_up, log_error
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

A, B = SessionId("a"), SessionId("b")
CUT_LOCK = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'turnwire node'"
NEGOTIATION = 300
"""Bytes of the server's answers that are cut one by one."""
QUICK = Limits(busy_timeout_s=0.2)


def opened(address: str, limits: Limits = QUICK) -> AbstractAsyncContextManager[PostgresEventLog]:
    return open_postgres_log(address, limits=limits)


async def put(log: PostgresEventLog, session_id: SessionId, *bodies: bytes) -> int:
    head = (await log.head(session_id)).head
    return await log.append(session_id, bodies, expected=head, unsettled=False, durable=True)


# -- broken connections ----------------------------------------------------------------------------------------


async def test_connection_cut_at_any_byte_of_the_negotiation_is_reported(
    tmp_path: Path,
) -> None:
    """Each error is one of `BROKEN`, and none remains for the event loop to report."""
    with postgres_server(need_postgres()) as server:
        enable_tls(server, tmp_path)
        cuts = (*range(NEGOTIATION), *range(NEGOTIATION, 4 * NEGOTIATION, 20))
        async with cutting(f"http://127.0.0.1:{server.port}", cuts) as proxy:
            port = proxy.url.rpartition(":")[2]
            database = Database(f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=require", QUICK)
            failed = 0
            for _ in cuts:
                try:
                    (await database.connect("test")).terminate()
                except BROKEN:
                    failed += 1
            assert failed > NEGOTIATION
            # Without a cut it works.
            await hang_up(await database.connect("test"))
            await database.aclose()
    # anyio's test runner raises errors that the event loop reports.
    gc.collect()
    await anyio.lowlevel.checkpoint()


def enable_tls(server: PostgresServer, folder: Path) -> None:
    """Let a running server accept TLS with a certificate that it signed itself."""
    data = server.folder / "data"
    for made, name in zip(self_signed(folder), ("server.crt", "server.key"), strict=True):
        shutil.copyfile(made, data / name)
        (data / name).chmod(0o600)
        shutil.chown(data / name, data.owner(), data.group())
    server.ask("alter system set ssl = on")
    server.ask("select pg_reload_conf()")


# -- several hosts ---------------------------------------------------------------------------------------------


@contextmanager
def silent_host() -> Generator[int]:
    """Return the port of a machine that hangs: it accepts connections, and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def with_hosts(server: PostgresServer, *ports: int) -> str:
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return server.new_log().replace(f"127.0.0.1:{server.port}", hosts) + "&target_session_attrs=read-write"


@pytest.mark.parametrize("patience_s", [None, 1.5])
async def test_a_host_that_hangs_does_not_keep_the_next_one_from_being_tried(
    postgres: PostgresServer, patience_s: float | None
) -> None:
    with silent_host() as silent:
        database = Database(with_hosts(postgres, silent, postgres.port), Limits())
        began = anyio.current_time()
        connection = await database.connect("test", patience_s)
        assert anyio.current_time() - began < SOON_S
        assert await connection.fetchval("select 1") == 1
        await hang_up(connection)


async def test_hosts_that_refuse_cost_no_wait_and_those_in_the_query_are_tried_too(
    postgres: PostgresServer,
) -> None:
    with silent_host() as silent:
        rest = f"user=postgres&search_path={schema_of(postgres.new_log())}"
        several = (
            f"postgresql:///postgres?host=127.0.0.1,127.0.0.1,127.0.0.1&port=1,{silent},{postgres.port}&{rest}"
        )
        connection = await Database(several, Limits()).connect("test")
        assert connection.get_server_pid() > 0
        await hang_up(connection)


async def test_several_hosts_of_which_none_can_be_written_to_say_so(postgres: PostgresServer) -> None:
    several = with_hosts(postgres, postgres.port, postgres.port) + "&default_transaction_read_only=on"
    for address in (several, several.replace("&target_session_attrs=read-write", "")):
        with pytest.raises(LogUnavailable, match="read-only"):
            await inspect_database(address, Limits())


async def test_where_no_host_answers_that_is_said_in_time_and_what_a_server_said_comes_first(
    postgres: PostgresServer,
) -> None:
    with silent_host() as one, silent_host() as other:
        began = anyio.current_time()
        with pytest.raises(TimeoutError):
            await Database(with_hosts(postgres, one, other), Limits()).connect("test", 1.0)
        assert anyio.current_time() - began < WAIT_S
        nowhere = with_hosts(postgres, one, postgres.port, 1).replace("/postgres?", "/nowhere?")
        with pytest.raises(ConfigError, match="no such database"):
            await inspect_database(nowhere, Limits(database_s=1.0))


async def test_a_log_opens_and_is_used_behind_a_host_that_hangs(postgres: PostgresServer) -> None:
    with silent_host() as silent:
        async with opened(with_hosts(postgres, silent, postgres.port)) as log:
            await log.create(A)
            assert await put(log, A, b"1") == 1


# -- who may use it --------------------------------------------------------------------------------------------


async def test_a_second_daemon_is_refused_while_the_first_one_runs(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address) as log:
        await log.create(A)
        with pytest.raises(LogLocked, match="another daemon uses this database"):
            async with opened(address):
                pass
        assert await put(log, A, b"1") == 1
    async with opened(address) as log:
        assert await put(log, A, b"2") == 2


async def test_a_life_that_another_one_took_over_appends_no_more(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address) as old:
        await old.create(A)
        postgres.ask(CUT_LOCK)
        async with opened(address) as new:
            assert await put(new, A, b"new") == 1
            with pytest.raises(LogError):
                await old.append(A, [b"old"], expected=0, unsettled=False, durable=True)
            assert (await new.head(A)).head == 1


async def test_a_lost_lock_is_taken_again_and_costs_nothing(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address) as log:
        await log.create(A)
        assert await put(log, A, b"1") == 1
        postgres.ask(CUT_LOCK)
        assert await put(log, A, b"2") == 2
        # By now it has been notified of the cut.
        assert await put(log, A, b"3") == 3
        with pytest.raises(LogLocked):
            async with opened(address):
                pass


async def test_what_a_life_that_is_gone_sent_is_stopped_by_the_next_one(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address) as log:
        await log.create(A)
        await put(log, A, b"1")
    postgres.ask("insert into tw_nodes (name, version) values ('lost', '0')", schema_of(address))
    postgres.ask("update tw_sessions set owner = (select max(id) from tw_nodes), fence = 7", schema_of(address))
    async with opened(address):
        assert postgres.ask("select owner, fence from tw_sessions", schema_of(address)) == [["", "8"]]
        assert postgres.ask("select gone from tw_nodes where name = 'lost'", schema_of(address)) == [["t"]]


# -- what it says ----------------------------------------------------------------------------------------------


async def test_a_database_that_is_not_there_says_what_to_do_and_shows_no_password(postgres: PostgresServer) -> None:
    host = postgres.address.removeprefix("postgresql://postgres@")
    for address, what, words in (
        ("postgresql://u:hidden@127.0.0.1:1/db", LogUnavailable, "start it, or check the address"),
        (f"postgresql://nobody:hidden@{host}", ConfigError, "refuses this user or its password"),
        (f"postgresql://postgres:hidden@{host.removesuffix('postgres')}none", ConfigError, "no such database"),
        (f"postgresql://postgres:hidden@{host}?search_path=none", ConfigError, "grant it usage and create"),
    ):
        with pytest.raises(what, match=words) as refusal:
            async with opened(address):
                pass
        assert "hidden" not in str(refusal.value)
        with pytest.raises(what, match=words):
            await inspect_database(address, QUICK)


@pytest.mark.parametrize("version", [1, 99])
async def test_tables_of_another_format_are_rejected_and_untouched(postgres: PostgresServer, version: int) -> None:
    address = postgres.new_log()
    async with opened(address) as log:
        await log.create(A)
    postgres.ask(f"update tw_meta set value = '{version}' where name = 'format'", schema_of(address))
    with pytest.raises(LogVersionMismatch, match=f"format {version} .* another database or schema"):
        async with opened(address):
            pass
    assert postgres.ask("select name from tw_sessions", schema_of(address)) == [[A]]


async def test_two_that_make_the_tables_at_once_do_not_meet(postgres: PostgresServer) -> None:
    address = postgres.new_log()

    async def open_and_leave() -> None:
        async with opened(address, Limits()):
            pass

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(open_and_leave)


async def test_a_read_only_database_says_so(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address):
        pass
    with pytest.raises(LogUnavailable, match="read-only"):
        async with opened(f"{address}&default_transaction_read_only=on"):
            pass


async def test_another_encoding_is_refused(postgres: PostgresServer) -> None:
    postgres.ask("create database ascii encoding 'SQL_ASCII' template template0")
    with pytest.raises(ConfigError, match="UTF8"):
        async with opened(postgres.address.removesuffix("postgres") + "ascii"):
            pass


def test_an_error_of_the_server_is_told_by_its_code() -> None:
    import asyncpg.exceptions as raised  # pyright: ignore[reportMissingTypeStubs]

    for error, what in (
        (raised.DiskFullError("/secret/path"), LogFull),
        (raised.DataCorruptedError("x"), LogCorrupt),
        (raised.UniqueViolationError("x"), LogCorrupt),
        (raised.TooManyConnectionsError("x"), LogUnavailable),
        (raised.ReadOnlySQLTransactionError("x"), LogUnavailable),
        (OSError("x"), LogUnavailable),
    ):
        ours = log_error(error)
        assert type(ours) is what
        assert "secret" not in str(ours)


async def test_a_session_id_with_a_nul_is_refused_by_every_engine(postgres: PostgresServer, tmp_path: Path) -> None:
    sqlite = await SqliteEventLog.open(tmp_path / "log.db", limits=Limits(), durability=Durability.FULL)
    async with sqlite, opened(postgres.new_log()) as log:
        for engine in (sqlite, log, MemoryEventLog()):
            with pytest.raises(LocalProtocolError, match="NUL"):
                await engine.create(SessionId("a\0b"))


async def test_what_is_no_session_id_is_not_found(postgres: PostgresServer) -> None:
    async with opened(postgres.new_log()) as log:
        await log.create(A)
        for odd in map(SessionId, ("", "a\0b", "\ud800")):
            for call in (
                lambda odd=odd: log.head(odd),
                lambda odd=odd: log.read(odd, Position(Epoch("e"), 0), max_events=1, max_bytes=1),
                lambda odd=odd: log.append(odd, [b"x"], expected=0, unsettled=False, durable=True),
                lambda odd=odd: log.delete(odd),
            ):
                with pytest.raises(SessionNotFound):
                    await call()
        assert await log.sessions(after=SessionId("a\0")) == []
        assert len(await log.sessions(after=SessionId("\0"))) == 1


# -- a server that is killed -----------------------------------------------------------------------------------


class Writer:
    """Appends numbers to a session until it is stopped, and reads the head after each failure."""

    def __init__(self, log: PostgresEventLog, name: SessionId) -> None:
        self.name = name
        self.acknowledged = self.refusals = 0
        self._log = log

    async def run(self) -> None:
        head = 0
        while True:
            try:
                head = await self._log.append(
                    self.name, [b"%d" % (head + 1)], expected=head, unsettled=False, durable=True
                )
                self.acknowledged = head
            except LogUnavailable:
                self.refusals += 1
                head = await self._settled()

    async def _settled(self) -> int:
        while True:
            try:
                return (await self._log.head(self.name)).head
            except LogUnavailable:
                await quiet()

    async def more(self) -> None:
        """Return once it has got on."""
        wanted = self.acknowledged + 20
        with anyio.fail_after(WAIT_S):
            while self.acknowledged < wanted:
                await quiet()

    async def check(self) -> None:
        """All that was acknowledged is there, once and in order."""
        head = await self._log.head(self.name)
        assert head.head >= self.acknowledged
        bodies: list[bytes] = []
        while page := await self._log.read(
            self.name, Position(head.epoch, len(bodies)), max_events=999, max_bytes=1 << 20
        ):
            bodies += [each.body for each in page]
        assert bodies == [b"%d" % number for number in range(1, head.head + 1)]


async def test_what_was_acknowledged_survives_a_kill_of_the_server_under_load(postgres: PostgresServer) -> None:
    """Eight sessions append while it is killed three times. Each continues by itself, from the head."""
    async with opened(postgres.new_log(), Limits(database_s=2)) as log:
        writers = [Writer(log, SessionId(f"s{number}")) for number in range(8)]
        for each in writers:
            await log.create(each.name)
        async with anyio.create_task_group() as tasks:
            for each in writers:
                tasks.start_soon(each.run)
            for _ in range(3):
                await writers[0].more()
                postgres.kill()
                await anyio.to_thread.run_sync(postgres.start)
            for each in writers:
                await each.more()
            tasks.cancel_scope.cancel()
        assert all(each.refusals for each in writers)
        for each in writers:
            await each.check()


async def test_while_the_server_is_away_what_was_not_sent_is_known_not_to_be_stored(
    postgres: PostgresServer,
) -> None:
    async with opened(postgres.new_log()) as log:
        await log.create(A)
        assert await put(log, A, b"1") == 1
        await anyio.to_thread.run_sync(postgres.stop)
        try:
            for _ in range(3):
                with pytest.raises(LogUnavailable):
                    await log.append(A, [b"2"], expected=1, unsettled=False, durable=True)
        finally:
            await anyio.to_thread.run_sync(postgres.start)
        assert (await log.head(A)).head == 1
        assert await put(log, A, b"2") == 2


# -- copying ---------------------------------------------------------------------------------------------------


async def test_a_copy_keeps_epochs_offsets_and_folds_and_goes_on_where_it_was_ended(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    sqlite = await SqliteEventLog.open(tmp_path / "log.db", limits=Limits(), durability=Durability.NORMAL)
    async with sqlite:
        for name, count in ((A, 3000), (B, 40), (SessionId("empty"), 0)):
            await sqlite.create(name)
            bodies = [b"%s %d" % (name.encode(), number) for number in range(1, count + 1)]
            await sqlite.append(name, bodies, expected=0, unsettled=name == B, durable=False)
        await sqlite.save_snapshot(B, Snapshot("state", 20, 3, b"\0fold"))
        await sqlite.trim(B, upto=20)
        heads = [each async for each in every_session(sqlite)]

        async with opened(postgres.new_log()) as log:

            class Ended(Exception):
                pass

            def end(now: object) -> None:
                ticks.append(now)
                if len(ticks) == 3:
                    raise Ended

            ticks: list[object] = []
            with pytest.raises(Ended):
                await copy_log(sqlite, log, ("state", "view"), end)
            assert 0 < (await log.head(A)).head < 3000
            copied = await copy_log(sqlite, log, ("state", "view"), lambda now: None)
            assert [each async for each in every_session(log)] == heads
            assert 0 < copied.events < 3020
            assert await log.load_snapshot(B, "state") == Snapshot("state", 20, 3, b"\0fold")
            again = await copy_log(sqlite, log, ("state", "view"), lambda now: None)
            assert (again.events, again.digest) == (0, copied.digest)
            # And back.
            memory = MemoryEventLog()
            assert (await copy_log(log, memory, ("state",), lambda now: None)).digest == copied.digest
            assert await put(log, B, b"41") == 41
            with pytest.raises(LogError, match="has gone on"):
                await copy_log(sqlite, log, (), lambda now: None)


async def test_a_copy_into_a_log_with_another_session_of_that_name_is_refused() -> None:
    source, target = MemoryEventLog(), MemoryEventLog()
    await source.restore(A, Epoch("one"), 1)
    await target.restore(A, Epoch("two"), 1)
    with pytest.raises(LogError, match="not the source's"):
        await copy_log(source, target, (), lambda now: None)
