"""Credentials and login links in the database of the log: their statements, each of which is one transaction.

`granted_by` refers to the row that a credential ends with. So a login that is created on one node while its token
is revoked on another is rejected, or removed with it. The expiry of links and rows is decided by the database's
clock, so that no node's clock decides for the others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager

from turnwire.errors import LogError
from turnwire.limits import Limits
from turnwire.log.bell import Bell, NoBell
from turnwire.log.credentials import CredentialRow
from turnwire.log.postgres_connection import NO_PARENT, Connection, Database, sqlstate, start_error

WORD = "tokens"
"""The bell's word for a credential that has ended."""

_NOW_MS = "(extract(epoch from now()) * 1000)::bigint"
_COLUMNS = ", ".join(CredentialRow._fields)
_ARRAYS = (
    "$1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::text[]"
)
_VALUES = "$1::text, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::text, $8::text, $9::text"

_IS_MADE = "select to_regclass('tw_tokens') is not null"
_IS_VALID = f"(expires_at is null or expires_at > {_NOW_MS})"
_FIND = f"select {_COLUMNS} from tw_tokens where id = any($1::text[]) and {_IS_VALID}"
_MISSING = f"""
    select asked.id from unnest($1::text[]) as asked (id)
    where not exists (select from tw_tokens t where t.id = asked.id and {_IS_VALID})
"""
_ALL = f"select {_COLUMNS} from tw_tokens where {_IS_VALID} order by created_at, id"
_FORGET_EXPIRED = f"delete from tw_tokens where expires_at <= {_NOW_MS}"
_ADD = f"""
    insert into tw_tokens ({_COLUMNS}) select {_VALUES} where (select count(*) from tw_tokens) < $10::bigint
    returning id
"""
# A transaction that waited for the lock checks again when it has it.
_ONE_AT_A_TIME = "select pg_advisory_xact_lock(hashtextextended('turnwire tokens in ' || current_schema(), 0))"
_ADD_FIRST = f"""
    insert into tw_tokens ({_COLUMNS}) select {_VALUES} where not exists (
        select from tw_tokens where role = $3 and kind = $8 and {_IS_VALID}
    ) returning id
"""
_MARK = "insert into tw_meta (name, value) values ($1, now()::text) on conflict (name) do nothing returning name"
_ADD_MANY = f"insert into tw_tokens ({_COLUMNS}) select * from unnest({_ARRAYS}) on conflict (id) do nothing"
_REMOVE = """
    with recursive gone as (
        select id from tw_tokens where id = $1
        union select t.id from tw_tokens t join gone g on t.granted_by = g.id
    )
    delete from tw_tokens where id in (select id from gone) returning id
"""
_PUT_LINK = """
    insert into tw_links (digest, until, granted_by) values ($1, now() + make_interval(secs => $2), $3)
    on conflict (digest) do nothing
"""
_FORGET_LINKS = """
    delete from tw_links where until <= now()
        or digest in (select digest from tw_links order by until desc, digest offset $1)
"""
_TAKE_LINK = """
    delete from tw_links where digest = $1 and until > now()
    returning extract(epoch from until - now())::float8, granted_by
"""


class PostgresCredentials:
    """`Credentials` in PostgreSQL."""

    def __init__(self, database: Database, bell: Bell) -> None:
        self._database = database
        self._bell = bell

    async def find(self, ids: Collection[str]) -> list[CredentialRow]:
        async with self._database.lend() as connection:
            return [CredentialRow(*row) for row in await connection.fetch(_FIND, list(ids))]

    async def missing(self, ids: Collection[str]) -> list[str]:
        async with self._database.lend() as connection:
            return [row[0] for row in await connection.fetch(_MISSING, list(ids))]

    async def all(self) -> list[CredentialRow]:
        async with self._database.lend() as connection:
            return [CredentialRow(*row) for row in await connection.fetch(_ALL)]

    async def add(self, row: CredentialRow, most: int) -> bool:
        async with self._granting() as connection:
            await connection.execute(_FORGET_EXPIRED)
            return await connection.fetchval(_ADD, *row, most) is not None

    async def add_first(self, row: CredentialRow) -> bool:
        async with self._database.lend() as connection, connection.transaction():
            await connection.execute(_ONE_AT_A_TIME)
            return await connection.fetchval(_ADD_FIRST, *row) is not None

    async def take_over(self, rows: Sequence[CredentialRow], mark: str) -> bool:
        async with self._database.lend() as connection, connection.transaction():
            if await connection.fetchval(_MARK, f"tokens of {mark}") is None:
                return False
            if rows:
                await connection.execute(_ADD_MANY, *(list(column) for column in zip(*rows, strict=True)))
            return True

    async def remove(self, token_id: str) -> list[str]:
        async with self._database.lend() as connection:
            gone = [row[0] for row in await connection.fetch(_REMOVE, token_id)]
        if gone:
            self._bell.ring(WORD)
        return gone

    async def heard(self) -> None:
        await self._bell.heard(WORD)

    async def put_link(self, digest: bytes, seconds: float, granted_by: str | None, most: int) -> None:
        async with self._granting() as connection:
            await connection.execute(_PUT_LINK, digest, seconds, granted_by)
            await connection.execute(_FORGET_LINKS, most)

    async def take_link(self, digest: bytes) -> tuple[float, str | None] | None:
        async with self._database.lend() as connection:
            row = await connection.fetchrow(_TAKE_LINK, digest)
        return None if row is None else (row[0], row[1])

    @asynccontextmanager
    async def _granting(self) -> AsyncGenerator[Connection]:
        """Lend a connection for a statement that may refer to a credential which ends at this moment."""
        try:
            async with self._database.lend() as connection:
                yield connection
        except LogError as error:
            if error.__cause__ is not None and sqlstate(error.__cause__) == NO_PARENT:
                raise LogError("the credential that grants this has ended") from None
            raise


@asynccontextmanager
async def open_credentials(dsn: str, limits: Limits) -> AsyncGenerator[PostgresCredentials | None]:
    """Open the credentials in a database, for a caller that is no node; `None` if no node has created the tables
    yet.

    Raises `ConfigError`, `LogError`.
    """
    database = Database(dsn, limits)
    try:
        try:
            async with database.lend() as connection:
                is_made = await connection.fetchval(_IS_MADE)
        except LogError as error:
            raise start_error(error.__cause__ or error, database) from None
        yield PostgresCredentials(database, NoBell()) if is_made else None
    finally:
        await database.aclose()
