"""Connections to the log's database: opening them, bounding statements, and translating PostgreSQL's errors.

A statement is never cancelled. One that exceeds its time is ended by dropping its connection: a cancelled wait for
a standby would be reported as a success. Errors are classified by PostgreSQL's codes and never contain its text,
and passwords are never shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol, cast

import anyio
import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from turnwire.errors import ConfigError, LogCorrupt, LogError, LogFull, LogUnavailable
from turnwire.limits import Limits
from turnwire.log import address, rules

READERS = 4
"""Connections for all statements but appends. A statement needs about a millisecond, so more would wait for the
loop.
"""

NEXT_HOST_S = 0.25
"""Delay before the next host of the address is tried in parallel. Near hosts answer in some milliseconds."""

OLDEST_SERVER = 13
"""The oldest release of PostgreSQL that was still maintained when this was written."""


class Message(Protocol):
    """A notice of the server."""

    severity_en: str


class Connection(Protocol):
    """The used part of asyncpg's connection."""

    async def fetchrow(self, query: str, *given: object) -> Sequence[Any] | None: ...
    async def fetchval(self, query: str, *given: object) -> Any: ...
    async def fetch(self, query: str, *given: object) -> list[Any]: ...
    async def execute(self, query: str, *given: object) -> str: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...
    def add_log_listener(self, callback: Callable[[Connection, Message], None]) -> None: ...
    def add_termination_listener(self, callback: Callable[[Connection], None]) -> None: ...
    async def add_listener(self, channel: str, callback: Callable[[Connection, int, str, str], None]) -> None: ...
    def get_server_pid(self) -> int: ...
    def get_server_version(self) -> Any: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self, *, timeout: float | None = None) -> None: ...


_asyncpg = cast("Any", asyncpg)
BROKEN: tuple[type[Exception], ...] = (
    OSError,
    TimeoutError,
    _asyncpg.PostgresError,
    _asyncpg.InterfaceError,
    _asyncpg.InternalClientError,
)
"""Errors of a statement that was not answered properly."""

# Settings of every connection: only this process ends a statement; a commit waits for the disk, and for more if the
# operator configures that; a node that vanishes is noticed soon, and its locks are released.
_PREPARE = """
    select set_config('synchronous_commit', case current_setting('synchronous_commit')
               when 'remote_apply' then 'remote_apply' else 'on' end, false),
           set_config('statement_timeout', '0', false),
           set_config('lock_timeout', '0', false),
           set_config('default_transaction_isolation', 'read committed', false),
           set_config('tcp_keepalives_idle', '5', false),
           set_config('tcp_keepalives_interval', '2', false),
           set_config('tcp_keepalives_count', '3', false),
           current_setting('transaction_read_only') = 'on' as is_read_only
"""


class Database:
    """The location of the log. Its `str` is safe to show."""

    def __init__(self, dsn: str, limits: Limits) -> None:
        self._hosts = address.each_host(dsn)
        self._shown = address.shown(dsn)
        self.patience_s = limits.database_s
        self._idle: list[Connection] = []
        self._limiter = anyio.CapacityLimiter(READERS)
        self._connecting: set[asyncio.Task[Connection]] = set()
        self._is_closed = False

    def __str__(self) -> str:
        return self._shown

    async def connect(self, purpose: str, patience_s: float | None = None) -> Connection:
        """Return a separate connection, to the first usable host. Raises one of `BROKEN`, `LogUnavailable`.

        Hosts of the address are tried in parallel, each a moment after the previous one: otherwise a host that
        accepts connections without answering would use up the time of all.
        """
        patience_s = patience_s or self.patience_s
        if len(self._hosts) == 1:
            return await self._connect_to(self._hosts[0], purpose, patience_s)
        pause_s = min(NEXT_HOST_S, patience_s / len(self._hosts) / 2)
        return await _first_usable(
            [
                partial(self._connect_to, host, purpose, patience_s - number * pause_s)
                for number, host in enumerate(self._hosts)
            ],
            pause_s,
        )

    async def _connect_to(self, host: str, purpose: str, patience_s: float) -> Connection:
        """Return a writable connection to one host of the address."""
        connection = await self._open(host, purpose, patience_s)
        try:
            with self.bounded(connection, patience_s):
                row = await connection.fetchrow(_PREPARE)
        except BaseException:
            connection.terminate()
            raise
        if row is None or row[-1]:
            connection.terminate()
            raise _read_only()
        return connection

    async def _open(self, host: str, purpose: str, timeout_s: float) -> Connection:
        """Connect with asyncpg. The attempt is never cancelled: that would drop a protocol with an unretrieved
        error.

        If the caller is cancelled, the attempt continues until its own timeout, and its connection is closed.
        """
        connect = _asyncpg.connect(
            host, timeout=timeout_s, server_settings={"application_name": f"turnwire {purpose}"}
        )
        # A task group would wait for an attempt that is not needed any more; `aclose` waits for all of them.
        task: asyncio.Task[Connection] = asyncio.create_task(connect)  # noqa: TID251
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.add_done_callback(_discard_connection)
            raise
        return task.result()

    @contextmanager
    def bounded(self, connection: Connection, patience_s: float | None = None) -> Generator[None]:
        """Drop the connection if the statement inside exceeds its time; that then raises one of `BROKEN`."""
        timer = asyncio.get_running_loop().call_later(patience_s or self.patience_s, connection.terminate)
        try:
            yield
        finally:
            timer.cancel()

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[Connection]:
        """Lend a connection for one short statement, shared with other callers in turn.

        A cancelled caller ends when its statement has ended. Raises `LogError` for the statement's error.
        """
        if self._is_closed:
            raise rules.closed()
        async with self._limiter:
            with anyio.CancelScope(shield=True):
                async with self._usable() as connection:
                    yield connection

    @asynccontextmanager
    async def _usable(self) -> AsyncGenerator[Connection]:
        connection: Connection | None = None
        try:
            while self._idle and (connection is None or connection.is_closed()):
                connection = self._idle.pop()
            if connection is None or connection.is_closed():
                connection = await self.connect("read")
            with self.bounded(connection):
                yield connection
        except BROKEN as error:
            raise log_error(error) from error
        except BaseException as error:
            if isinstance(error, Exception) and connection is not None and connection.is_closed():
                # The driver raises this if a connection breaks between two of its own steps.
                raise log_error(error) from error
            # Cancelled from outside of our scopes during a statement: its answer may still arrive.
            if connection is not None:
                connection.terminate()
            raise
        finally:
            if connection is not None and not connection.is_closed():
                self._idle.append(connection)

    async def aclose(self) -> None:
        """Close the connections after the last statement."""
        self._is_closed = True
        for _ in range(READERS):
            await self._limiter.acquire_on_behalf_of(object())
        while self._idle:
            await hang_up(self._idle.pop())
        if self._connecting:
            await asyncio.wait(self._connecting)


def _discard_connection(task: asyncio.Task[Connection]) -> None:
    """Close the connection of an attempt whose caller was cancelled; ignore its error."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


async def _first_usable(attempts: Sequence[Callable[[], Awaitable[Connection]]], pause_s: float) -> Connection:
    """Return the result of the first attempt that succeeds. The next one begins after a pause, or when the previous
    failed.

    The others are cancelled, and connections they may have opened are closed. If all fail, raise one of their
    errors.
    """
    usable: list[Connection] = []
    failures: list[Exception] = []
    try:
        async with anyio.create_task_group() as tasks:

            async def attempt(connecting: Callable[[], Awaitable[Connection]], failed: anyio.Event) -> None:
                try:
                    usable.append(await connecting())
                    tasks.cancel_scope.cancel()
                except Exception as error:  # noqa: BLE001  Whatever it is, another host may do.
                    failures.append(error)
                    failed.set()

            for connecting in attempts:
                failed = anyio.Event()
                tasks.start_soon(attempt, connecting, failed)
                with anyio.move_on_after(pause_s):
                    await failed.wait()
    except BaseException:
        for each in usable:
            each.terminate()
        raise
    for each in usable[1:]:
        each.terminate()
    if not usable:
        # The error of a server that answered is more useful than that of one that could not be reached.
        raise next((each for each in failures if not isinstance(each, OSError)), failures[-1])
    return usable[0]


async def hang_up(connection: Connection) -> None:
    """Close an unused connection, gracefully if the server responds."""
    try:
        await connection.close(timeout=1.0)
    except BROKEN:
        connection.terminate()


# -- translation of PostgreSQL errors --------------------------------------------------------------------------

_BY_CODE: dict[str, tuple[type[LogError], str]] = {
    "53100": (LogFull, "the database has no room left; free some on its server, then try again"),
    "53300": (
        LogUnavailable,
        "the database takes no more connections; raise its max_connections, or end other programs",
    ),
    "57P03": (LogUnavailable, "the database is starting or stopping; it is tried again"),
    "3D000": (LogUnavailable, "there is no such database; create it, or name another one"),
    "42501": (LogUnavailable, "the database's user may not do this; grant it its tables and its schema"),
    "42P07": (LogCorrupt, "the schema has tables of these names that are not turnwire's; use another one"),
    "3F000": (LogUnavailable, "the schema of search_path is not there; create it, or name another one"),
    "54000": (LogError, "an event is larger than PostgreSQL stores; lower the frame limit"),
}
_BY_CLASS: dict[str, tuple[type[LogError], str]] = {
    "28": (LogUnavailable, "the database refuses this user or its password; check both (PGPASSWORD, ~/.pgpass)"),
    "23": (LogCorrupt, "the database has events that its sessions do not know of; stop and restore a backup"),
    "42": (LogCorrupt, "the database lacks a table or a column of the log; stop and restore a backup"),
    "XX": (LogCorrupt, "the database says that it is damaged; stop and restore a backup"),
}
_READ_ONLY = "25006"
NO_PARENT = "23503"
"""The row that a new row refers to has just been deleted."""
_FAILED = (LogUnavailable, "the database did not do this; see its server's log. It is tried again")
_AWAY = (LogUnavailable, "the database cannot be reached, or did not answer; it is tried again")
SETTLED_AT_START = ("28", "3D", "3F", "42501")
"""Codes of errors that waiting does not fix: a setting has to be changed."""


def sqlstate(error: BaseException) -> str:
    """Return PostgreSQL's code, or an empty text if the server did not send one."""
    if isinstance(error, _asyncpg.PostgresError):
        return str(getattr(error, "sqlstate", None) or "")
    return ""


def is_refusal(error: BaseException) -> bool:
    """Return true if the server answered that it did nothing; otherwise a statement may be done, or may yet be."""
    code = sqlstate(error)
    # 08 is a broken connection. 57 means that the server shuts down or was asked to stop waiting.
    return bool(code) and code[:2] not in ("08", "57")


def may_be_one_events_fault(error: BaseException) -> bool:
    """Return true if the appends of a rejected group may succeed one by one (L10)."""
    return is_refusal(error) and sqlstate(error) in ("53100", "53200", "54000")


def log_error(error: BaseException) -> LogError:
    """Return the `LogError` to raise instead of `error`."""
    if isinstance(error, LogError):
        return error
    code = sqlstate(error)
    if code == _READ_ONLY or isinstance(error, _asyncpg.TargetServerAttributeNotMatched):
        return _read_only()
    what, message = _BY_CODE.get(code) or _BY_CLASS.get(code[:2]) or (_FAILED if is_refusal(error) else _AWAY)
    return what(message, sqlstate=code or None)


def start_error(error: BaseException, database: Database) -> LogError | ConfigError:
    """Return the same for a start, where the address may be shown; an error that waiting does not fix is a
    `ConfigError`.
    """
    ours = log_error(error)
    words = f"{database}: {ours}"
    if isinstance(error, _asyncpg.InterfaceError) or sqlstate(error).startswith(SETTLED_AT_START):
        return ConfigError(words.replace("; it is tried again", "; check the address"))
    return type(ours)(words.replace("; it is tried again", "; start it, or check the address"), **ours.context)


def _read_only() -> LogUnavailable:
    return LogUnavailable("the database is read-only; point the address at the primary server, or make it writable")
