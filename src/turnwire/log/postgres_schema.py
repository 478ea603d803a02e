"""The tables of a log in PostgreSQL, every statement that touches them, and how they come to be.

    tw_meta       `format`: how many migrations were applied; `oldest`: the least format that still works with them
    tw_nodes      one row per life of a node, which is one run of its process; one that is `gone` never comes back
    tw_sessions   one row per session
        id         what the other tables call it; never used again after a delete
        name       the session's id as clients know it
        epoch, first, head, unsettled   as in `SessionHead`
        owner      the life that appends to it; none if nobody has it
        fence      grows with every claim, release and doubt; an append names the one it was promised
    tw_events     one row per event, offsets first..head without gaps
    tw_snapshots  one row per session and fold; a cache that may be emptied
    tw_forgotten  events up to `upto` that a trim or delete has taken out of the log and is still removing

The UPDATE of a session's row is the expected head, the fence and the lock of an append. A claim is an UPDATE of the
same row, so of the two one waits, and finds what the other left. To look the owner up in a sub-select would take no
lock: a claim could commit between the look and the insert, and the event would appear behind the new owner's back.

Migrations only add. So a node of the last release goes on beside one of this release, until a migration says by
`oldest` that it cannot.
"""

from __future__ import annotations

from typing import NamedTuple

from turnwire.errors import ConfigError, LogTooNew
from turnwire.log.postgres_connection import OLDEST_SERVER, Connection

MIGRATIONS: tuple[str, ...] = (
    """
    create table tw_meta (name text primary key, value text not null);
    create table tw_nodes (
        id bigint generated always as identity primary key,
        name text not null,
        version text not null,
        beat bigint not null default 0,
        draining boolean not null default false,
        gone boolean not null default false,
        started_at timestamptz not null default now()
    );
    create table tw_sessions (
        id bigint generated always as identity primary key,
        name text collate "C" not null unique,
        epoch text not null,
        first bigint not null,
        head bigint not null,
        unsettled boolean not null default false,
        owner bigint,
        fence bigint not null default 0
    ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
    create index tw_sessions_unsettled on tw_sessions (name) where unsettled;
    create index tw_sessions_owner on tw_sessions (owner) where owner is not null;
    create table tw_events (
        session bigint not null,
        "offset" bigint not null,
        body bytea not null,
        primary key (session, "offset")
    );
    create table tw_snapshots (
        session bigint not null references tw_sessions (id) on delete cascade,
        name text not null,
        "offset" bigint not null,
        version integer not null,
        body bytea not null,
        primary key (session, name)
    );
    create table tw_forgotten (session bigint primary key, upto bigint not null);
    """,
)
"""Applied in order, each with its number, all in one transaction. One that was released is never changed."""

VERSION = len(MIGRATIONS)
OLDEST = 1
"""The least format whose code works with the tables as they are after all of `MIGRATIONS`."""

TABLES = ("tw_meta", "tw_nodes", "tw_sessions", "tw_events", "tw_snapshots", "tw_forgotten")

_MIGRATING = "select pg_advisory_xact_lock(hashtextextended('turnwire tables in ' || current_schema(), 0))"
_IS_MADE = "select to_regclass('tw_meta') is not null"
_META = "select coalesce(max(value::int) filter (where name = $1), 0) from tw_meta"
_SET_META = "insert into tw_meta values ($1, $2) on conflict (name) do update set value = excluded.value"


class Format(NamedTuple):
    """What made the tables."""

    version: int
    """0 if there are none."""
    oldest: int

    def check(self) -> None:
        """Raises `LogTooNew`."""
        if self.oldest > VERSION:
            raise LogTooNew(
                f"the tables have format {self.version}, this turnwire knows {VERSION}; use a newer turnwire",
                format=self.version,
                known=VERSION,
            )


async def read_format(connection: Connection) -> Format:
    """What made the tables of the schema that this connection works in."""
    if not await connection.fetchval(_IS_MADE):
        return Format(0, 0)
    version, oldest = [await connection.fetchval(_META, name) for name in ("format", "oldest")]
    return Format(version, oldest)


_FACTS = """
    select current_setting('server_version'), current_setting('server_version_num')::int / 10000,
           current_setting('server_encoding'), current_schema(),
           (select reset_val from pg_settings where name = 'synchronous_commit'),
           current_setting('synchronous_standby_names'),
           current_schema() is not null and has_schema_privilege(current_schema(), 'create')
           and (select coalesce(bool_and(
                   has_table_privilege(c.oid, 'select') and has_table_privilege(c.oid, 'insert')
                   and has_table_privilege(c.oid, 'update') and has_table_privilege(c.oid, 'delete')
               ), true)
               from pg_class c join pg_namespace n on n.oid = c.relnamespace
               where n.nspname = current_schema() and c.relname like 'tw\\_%' and c.relkind = 'r')
"""


class Facts(NamedTuple):
    """A database as an operator should know it."""

    release: str
    version: int
    encoding: str
    schema: str | None
    synchronous_commit: str
    standbys: str
    has_rights: bool

    def check(self) -> None:
        """Raises `ConfigError` if no log can be there."""
        if self.version < OLDEST_SERVER:
            raise ConfigError(f"the server is PostgreSQL {self.release}; use {OLDEST_SERVER} or newer")
        if self.encoding != "UTF8":
            raise ConfigError(f"the database has encoding {self.encoding}; create one with encoding UTF8")
        if not self.has_rights:
            raise ConfigError(
                f"the user may not make or use tables in {self.schema or 'any schema of search_path'};"
                " grant it usage and create there, or let it own the database"
            )


async def read_facts(connection: Connection) -> Facts:
    """What the server says of itself and of us."""
    row = await connection.fetchrow(_FACTS)
    assert row is not None, "a select without a table gives a row"
    return Facts(*row)


async def migrate(connection: Connection) -> None:
    """Make the tables, or add what they lack. Of several who begin at once one does it.

    Raises `LogTooNew`, `ConfigError`.
    """
    (await read_facts(connection)).check()
    async with connection.transaction():
        await connection.execute(_MIGRATING)
        made = await read_format(connection)
        made.check()
        for number in range(made.version, VERSION):
            await connection.execute(MIGRATIONS[number])
            await connection.execute(_SET_META, "format", str(number + 1))
            await connection.execute(_SET_META, "oldest", str(OLDEST))


# -- lives -----------------------------------------------------------------------------------------------------

_NODE = "hashtextextended('turnwire node in ' || current_schema(), 0)"
"""The lock of the one node that may declare all others gone."""
TAKE_LOCK = f"select pg_advisory_lock({_NODE})"
TRY_LOCK = f"select pg_try_advisory_lock({_NODE})"
JOIN = "insert into tw_nodes (name, version) values ($1, $2) returning id"
IS_GONE = "select gone from tw_nodes where id = $1"
LEAVE = "update tw_nodes set gone = true where id = $1"
WHO_ELSE = "select name from tw_nodes where not gone order by id desc limit 1"
BURY_OTHERS = "update tw_nodes set gone = true where id <> $1 and not gone"
# The moved fence waits for an append that runs, and stops one that is still on its way.
FREE_OF_OTHERS = "update tw_sessions set owner = null, fence = fence + 1 where owner <> $1"
RELEASE_ALL = "update tw_sessions set owner = null, fence = fence + 1 where owner = $1"

# -- owners ----------------------------------------------------------------------------------------------------

_HELD = "id, epoch, first, head, unsettled, fence"
# `gone` goes to true and never back, so looking at it without a lock is enough.
CLAIM = f"""
    update tw_sessions s set owner = $2, fence = s.fence + 1
    where s.name = $1
      and (s.owner is null or s.owner = $2 or exists (select from tw_nodes n where n.id = s.owner and n.gone))
      and exists (select from tw_nodes n where n.id = $2 and not n.gone)
    returning {_HELD}
"""
# By owner and not by fence: the answer to an earlier try may have been lost as well.
MOVE_FENCE = f"update tw_sessions set fence = fence + 1 where id = $1 and owner = $2 returning {_HELD}"

# -- sessions --------------------------------------------------------------------------------------------------

CREATE = f"""
    insert into tw_sessions (name, epoch, first, head, owner, fence)
    values ($1, $2, $3::bigint, $3::bigint - 1, $4, 1)
    on conflict (name) do nothing returning {_HELD}
"""
FIND = f"select {_HELD} from tw_sessions where name = $1"
FIND_MANY = f"select {_HELD} from tw_sessions where id = any($1::bigint[])"
LIST = """
    select name, epoch, first, head, unsettled from tw_sessions
    where $1::text is null or name > $1 order by name limit $2
"""
LIST_UNSETTLED = """
    select name, epoch, first, head, unsettled from tw_sessions
    where unsettled and ($1::text is null or name > $1) order by name limit $2
"""
DELETE = """
    with gone as (delete from tw_sessions where name = $1 returning id, head),
    forgotten as (
        insert into tw_forgotten select id, head from gone
        on conflict (session) do update set upto = greatest(tw_forgotten.upto, excluded.upto)
    )
    select id, head from gone
"""

# -- events ----------------------------------------------------------------------------------------------------

APPEND = """
    with wanted as (
        select * from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::boolean[])
            as w (id, fence, expected, count, unsettled)
    ), moved as (
        update tw_sessions s set head = s.head + w.count, unsettled = w.unsettled from wanted w
        where s.id = w.id and s.fence = w.fence and s.head = w.expected
        returning s.id
    ), stored as (
        insert into tw_events (session, "offset", body)
        select e.session, e.at, e.body
        from unnest($6::bigint[], $7::bigint[], $8::bytea[]) as e (session, at, body)
        join moved on moved.id = e.session
    )
    select array(select id from moved)
"""
"""One group: the sessions, their fences, expected heads, numbers of events and marks; then the events. Gives those
sessions that matched; of the others nothing is stored."""

# One snapshot of the tables, so a page never has part of an append. The sum is cut on the server.
READ = """
    select s.epoch, s.first, s.head, s.unsettled, p.bodies, p.last
    from tw_sessions s left join lateral (
        select array_agg(q.body order by q."offset") as bodies, max(q."offset") as last
        from (
            select "offset", body, sum(octet_length(body)) over (order by "offset") as size
            from (
                select "offset", body from tw_events
                where session = s.id and "offset" > $2::bigint and "offset" <= least(s.head, $5::bigint)
                order by "offset" limit $3
            ) part
        ) q
        where q.size <= $4::bigint or q."offset" = $2::bigint + 1
    ) p on true
    where s.name = $1
"""
TRIM = """
    with moved as (
        update tw_sessions set first = greatest(first, least($2::bigint, head) + 1) where name = $1
        returning id, first
    ), forgotten as (
        insert into tw_forgotten select id, first - 1 from moved where first > 1
        on conflict (session) do update set upto = greatest(tw_forgotten.upto, excluded.upto)
    )
    select id, first from moved
"""
_SWEPT = 1000
"""Events per statement: some milliseconds of work, so that nobody waits for long."""
LIST_FORGOTTEN = "select session, upto from tw_forgotten"
# Losing a sweep, as losing a snapshot, loses time: neither waits for the disk.
SWEEP = f"""
    with removed as (
        delete from tw_events where session = $1 and "offset" <= least(
            $2::bigint, (select min("offset") from tw_events where session = $1) + {_SWEPT - 1}
        ) returning 1
    )
    select set_config('synchronous_commit', 'off', true), count(*) as count from removed
"""
SWEPT = "delete from tw_forgotten where session = $1 and upto <= $2"

# -- snapshots -------------------------------------------------------------------------------------------------

SAVE_SNAPSHOT = """
    with s as (
        select id, epoch, first, head, unsettled from tw_sessions
        where name = $1 and ($6::bigint is null or id = $6)
    ), saved as (
        insert into tw_snapshots (session, name, "offset", version, body)
        select id, $2, $3::bigint, $4, $5 from s where $3::bigint between 0 and head
        on conflict (session, name) do update
        set "offset" = excluded."offset", version = excluded.version, body = excluded.body
        where excluded."offset" >= tw_snapshots."offset"
    )
    select set_config('synchronous_commit', 'off', true), epoch, first, head, unsettled from s
"""
FIND_SNAPSHOT = """
    select n.name, n."offset", n.version, n.body
    from tw_sessions s left join tw_snapshots n on n.session = s.id and n.name = $2 where s.name = $1
"""
