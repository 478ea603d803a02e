"""The tables of a log in PostgreSQL, the statements that use them, and their creation.

    tw_meta       `format`: the format of the tables
    tw_nodes      one row per life of a node, which is one run of its process; one that is `gone` never returns
        place      nodes with the same files, homes and agents share one
        url, digest   the URL for other nodes, and an HMAC of name and address with the cluster's key
        folder     identity of its data folder: the next process that locks it knows that this life has ended
        alone      true if it has the log for itself
    tw_sessions   one row per session
        id         key in the other tables; never used again after a delete
        name       the session's public id
        epoch, first, head, unsettled   as in `SessionHead`
        place      that of the node that hosted it last
        owner      the life that appends to it; null if it has no owner
        fence      grows with every claim, release and doubt; an append names the fence of its claim
    tw_events     one row per event, offsets first..head without gaps
    tw_snapshots  one row per session and fold; a cache that may be emptied
    tw_tokens     credentials: of each secret its digest; `granted_by` is the one that it ends with
    tw_links      unused login links; statements of both: `turnwire.log.postgres_credentials`
    tw_forgotten  events up to `upto` that a trim or delete is removing

The UPDATE of a session's row checks the expected head and the fence, and is the lock of an append. A claim is an
UPDATE of the same row, so one of the two waits and sees the result of the other. Looking the owner up in a
sub-select would acquire no lock: a claim could commit between the look-up and the insert, and the event would
appear unnoticed by the new owner.
"""

from __future__ import annotations

from typing import NamedTuple

from turnwire.errors import ConfigError, LogVersionMismatch
from turnwire.log.postgres_connection import OLDEST_SERVER, Connection

VERSION = 2
"""The format of the tables, in `tw_meta`. Tables of another format are rejected."""

_CREATE = """
    create table tw_meta (name text primary key, value text not null);
    create table tw_nodes (
        id bigint generated always as identity primary key,
        name text not null,
        version text not null,
        beat bigint not null default 0,
        draining boolean not null default false,
        gone boolean not null default false,
        started_at timestamptz not null default now(),
        place text not null default '',
        url text not null default '',
        digest text not null default '',
        folder text not null default '',
        alone boolean not null default true
    );
    create table tw_sessions (
        id bigint generated always as identity primary key,
        name text collate "C" not null unique,
        epoch text not null,
        first bigint not null,
        head bigint not null,
        unsettled boolean not null default false,
        owner bigint,
        fence bigint not null default 0,
        place text not null default ''
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
    create table tw_tokens (
        id text primary key,
        name text not null,
        role text not null,
        digest text not null,
        created_at bigint not null,
        expires_at bigint,
        session_id text,
        kind text not null,
        granted_by text references tw_tokens (id) on delete cascade
    );
    create index tw_tokens_granted on tw_tokens (granted_by) where granted_by is not null;
    create table tw_links (
        digest bytea primary key,
        until timestamptz not null,
        granted_by text references tw_tokens (id) on delete cascade
    );
"""

TABLES = (
    "tw_meta",
    "tw_nodes",
    "tw_sessions",
    "tw_events",
    "tw_snapshots",
    "tw_forgotten",
    "tw_tokens",
    "tw_links",
)

_CREATING = "select pg_advisory_xact_lock(hashtextextended('turnwire tables in ' || current_schema(), 0))"
_IS_MADE = "select to_regclass('tw_meta') is not null"
_FORMAT = "select coalesce(max(value::int) filter (where name = 'format'), 0) from tw_meta"
_SET_FORMAT = "insert into tw_meta values ('format', $1)"


async def read_format(connection: Connection) -> int:
    """Return the format of the tables in the current schema, 0 if there are no tables. Raises
    `LogVersionMismatch`.
    """
    if not await connection.fetchval(_IS_MADE):
        return 0
    version: int = await connection.fetchval(_FORMAT)
    if version != VERSION:
        raise LogVersionMismatch(
            f"the tables have format {version} and this turnwire reads format {VERSION} only;"
            " use the turnwire that made them, or another database or schema",
            format=version,
            known=VERSION,
        )
    return version


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
    """The properties of a database that an operator should know."""

    release: str
    version: int
    encoding: str
    schema: str | None
    synchronous_commit: str
    standbys: str
    has_rights: bool

    def check(self) -> None:
        """Raise `ConfigError` if the database cannot hold a log."""
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
    """Return the server's description of itself and of our rights."""
    row = await connection.fetchrow(_FACTS)
    assert row is not None, "a select without a table gives a row"
    return Facts(*row)


async def create_tables(connection: Connection) -> None:
    """Create the tables unless they exist. Of several callers at once, one does it.

    Raises `LogVersionMismatch`, `ConfigError`.
    """
    (await read_facts(connection)).check()
    async with connection.transaction():
        await connection.execute(_CREATING)
        if not await read_format(connection):
            await connection.execute(_CREATE)
            await connection.execute(_SET_FORMAT, str(VERSION))


# -- lives -----------------------------------------------------------------------------------------------------

_NODE = "hashtextextended('turnwire node in ' || current_schema(), 0)"
"""The lock of nodes: exclusive for a node that is alone, shared by nodes that share the log."""
TAKE_LOCK = f"select pg_advisory_lock({_NODE})"
TRY_LOCK = f"select pg_try_advisory_lock({_NODE})"
SHARE_LOCK = f"select pg_advisory_lock_shared({_NODE})"
TRY_SHARE_LOCK = f"select pg_try_advisory_lock_shared({_NODE})"
JOIN = """
    insert into tw_nodes (name, version, place, url, digest, folder, alone)
    values ($1, $2, $3, $4, $5, $6, $7) returning id
"""
IS_GONE = "select gone from tw_nodes where id = $1"
# A statement that ends a life rings for it in the same transaction (`bell.NODES`), so that idle nodes check as
# well.
_RUNG = """pg_notify('tw_' || md5(current_schema()), '[{}, ["nodes"]]')"""
LEAVE = f"""
    with ended as (update tw_nodes set gone = true where id = $1 returning alone)
    select {_RUNG} from ended where not alone
"""
WHO_ELSE = "select name from tw_nodes where not gone order by id desc limit 1"
SHARING = "select name from tw_nodes where not gone and not alone and (name, folder) <> ($1, $2) order by id"
NAMESAKES = """
    select id, beat from tw_nodes
    where name = $1 and folder <> $2 and id < $3 and not gone and not alone and not draining
"""
BURY_OTHERS = "update tw_nodes set gone = true where id <> $1 and not gone"
BURY_ALONE = "update tw_nodes set gone = true where id <> $1 and not gone and alone"
# The moved fence waits for a running append, and stops one that is still on its way.
FREE_OF_OTHERS = "update tw_sessions set owner = null, fence = fence + 1 where owner <> $1"
RELEASE_ALL = "update tw_sessions set owner = null, fence = fence + 1 where owner = $1"

_LIFE = "select id, name, place, url, digest, version, beat, draining from tw_nodes where not gone"
LIVES = f"{_LIFE} order by id"
FIND_LIFE = f"{_LIFE} and id = $1"
BEAT = "update tw_nodes set beat = beat + 1 where id = $1 and not gone returning beat"
# Only if it has not beaten, and only while the watcher's own beat is unchanged. The lock on the watcher's row makes
# its next beat wait for this; after that beat this finds another number, and does nothing.
BURY = """
    with watcher as (select id from tw_nodes where id = $3 and beat = $4 and not gone for share)
    update tw_nodes n set gone = true from watcher
    where n.id = $1 and n.beat = $2 and not n.gone and n.id <> watcher.id returning n.id
"""
SUCCEED = f"""
    with ended as (
        update tw_nodes set gone = true where name = $1 and folder = $2 and id < $3 and not gone returning id
    )
    select id, {_RUNG} from ended
"""
SET_DRAINING = "update tw_nodes set draining = true where id = $1"
NODES = """
    select n.id, n.name, n.place, n.url, n.version, n.beat, n.draining, n.alone,
           (extract(epoch from n.started_at) * 1000)::bigint,
           count(s.id), count(s.id) filter (where s.unsettled)
    from tw_nodes n left join tw_sessions s on s.owner = n.id where not n.gone group by n.id order by n.id
"""
MOVE_PLACE = """
    with moved as (
        update tw_sessions s set place = $2
        where s.place = $1 and not exists (select from tw_nodes n where n.place = $1 and not n.gone) returning s.id
    ) select count(*) from moved
"""
BURY_BY_HAND = f"""
    with ended as (update tw_nodes set gone = true where id = $1 and beat = $2 and not gone returning id)
    select id, {_RUNG} from ended
"""

# -- owners ----------------------------------------------------------------------------------------------------

_HELD = "id, epoch, first, head, unsettled, fence"
# `gone` becomes true and never false again, so reading it without a lock is sufficient.
_OWNER_IS_GONE = "exists (select from tw_nodes n where n.id = s.owner and n.gone)"
# In these statements $1 is our life and $2 our place.
_WE_LIVE = "exists (select from tw_nodes n where n.id = $1 and not n.gone)"
CLAIM = f"""
    update tw_sessions s
    set owner = $1, fence = s.fence + 1, place = $2
    where s.name = $3 and (s.place in ('', $2) or $4)
      and (s.owner is null or s.owner = $1 or {_OWNER_IS_GONE}) and {_WE_LIVE}
    returning {_HELD}
"""
"""$3 is the session; $4 is true if every place is ours."""
_TAKE = f"""
    update tw_sessions s
    set owner = $1, fence = s.fence + 1,
        place = case s.place when '' then $2 else s.place end
    from free where s.id = free.id and {_WE_LIVE}
    returning s.name, s.place, s.id, s.epoch, s.first, s.head, s.unsettled, s.fence
"""
# Sessions of our place, or of a place without a node that could host them.
_IS_OURS_TO_TAKE = """
    s.unsettled and (s.place in ('', $2) or not exists (
        select from tw_nodes n where n.place = s.place and not n.gone and not n.draining
    ))
"""
# Rows that another node claims at this moment are skipped, so that several nodes share the work.
STEAL = f"""
    with free as (
        select s.id from tw_sessions s where s.owner = $3 and {_OWNER_IS_GONE} and {_IS_OURS_TO_TAKE}
        order by s.id limit $4 for update skip locked
    ) {_TAKE}
"""
ADOPT = f"""
    with free as (
        select s.id from tw_sessions s
        where s.owner is null and s.unsettled and s.place in ('', $2)
        order by s.id limit $3 for update skip locked
    ) {_TAKE}
"""
ORPHANED = f"""
    select distinct s.owner from tw_sessions s
    where s.owner is not null and {_OWNER_IS_GONE} and {_IS_OURS_TO_TAKE} and {_WE_LIVE} order by s.owner
"""
RELEASE = "update tw_sessions set owner = null, fence = fence + 1 where name = $1 and owner = $2"
OWNER = f"""
    select case when {_OWNER_IS_GONE} then null else s.owner end, s.place
    from tw_sessions s where s.name = $1
"""
# By owner and not by fence: the answer to an earlier try may have been lost as well.
MOVE_FENCE = f"update tw_sessions set fence = fence + 1 where id = $1 and owner = $2 returning {_HELD}"

# -- sessions --------------------------------------------------------------------------------------------------

CREATE = f"""
    insert into tw_sessions (name, epoch, first, head, owner, fence, place)
    values ($1, $2, $3::bigint, $3::bigint - 1, $4, 1, $5)
    on conflict (name) do nothing returning {_HELD}
"""
FIND = f"select {_HELD} from tw_sessions where name = $1"
FIND_MANY = f"select {_HELD} from tw_sessions where id = any($1::bigint[])"
HEADS = "select name, epoch, first, head, unsettled from tw_sessions where name = any($1::text[])"
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

# -- locks across nodes ------------------------------------------------------------------------------------------

LOCK = "select pg_try_advisory_lock(hashtextextended('turnwire ' || $1 || ' in ' || current_schema(), 0))"
IS_DONE = "select exists (select from tw_meta where name = 'done: ' || $1)"
DONE = "insert into tw_meta values ('done: ' || $1, '') on conflict (name) do nothing"

# -- the bell ----------------------------------------------------------------------------------------------------

CHANNEL = "select 'tw_' || md5(current_schema())"
"""The notification channel of the log in this schema."""
RING = "select pg_notify($1, payload) from unnest($2::text[]) as payload"
# Losing a notice only loses time, so it waits neither for the disk nor for a standby.
RINGS_ONLY = "set synchronous_commit = off"

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
"""Append one group: the sessions, their fences, expected heads, numbers of events and marks; then the events.
Returns the sessions that matched; for the others nothing is stored.
"""

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
"""Events per statement: some milliseconds of work, so that other statements do not wait for long."""
LIST_FORGOTTEN = "select session, upto from tw_forgotten"
# Losing a sweep or a snapshot only loses time: neither waits for the disk.
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
