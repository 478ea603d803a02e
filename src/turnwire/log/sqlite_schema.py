"""The tables of the log file, the statements that use them, and the checksums of their rows.

    sessions   one row per session
        id         key in the other tables; never used again after a delete
        name, epoch, first, unsettled    as in `base.SessionHead`
        head       offset of the newest event when this row was last written; the segments have the newest
        crc        CRC-32 of the row
    segments   the events of one append in one row, or in several; without gaps from `first` on
        key        sessions.id << 36 | offset of the last event
        ends       end of each event in `bodies`, as a JSON array
        bodies     the events, concatenated
        crc        CRC-32 of the row
    snapshots  one row per session and fold; a cache that may be emptied
    forgotten  events up to `upto` that are trimmed or deleted and still being removed
    events     a view of the segments for other programs

The key of a session's newest segment contains its head. So an append writes one row, and `sessions` changes only
when something else does.

SQLite notices damage only where it breaks the structure of the file. So each row has a checksum, the index on the
names is compared with the sessions when the file is opened, and the loss of a session's newest segments shows in
`head`, which is exact while the session is settled.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple
from zlib import crc32

import msgspec

from turnwire.errors import LogCorrupt
from turnwire.ids import Epoch, SessionId
from turnwire.limits import KiB
from turnwire.log.base import SessionHead

APPLICATION_ID, VERSION = 0x74776C67, 3
"""`PRAGMA application_id` (`twlg`) marks the file as ours; `PRAGMA user_version` is the format."""
OFFSET_BITS = 36
"""Bits of the offset in a segment's key: room for 134 million sessions with 68 billion events each."""
LAST_OFFSET = (1 << OFFSET_BITS) - 1

SEGMENT_EVENTS, SEGMENT_BYTES = 256, 256 * KiB
"""Bounds of a segment, because a reader that starts inside one reads all of it. A larger event is alone."""
SWEEP_SEGMENTS = 16
"""Segments that one transaction removes: some milliseconds of work."""

_BEGIN = "CASE each.key WHEN 0 THEN 0 ELSE json_extract(ends, '$[' || (each.key - 1) || ']') END"

TABLES: tuple[str, ...] = (
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, epoch TEXT NOT NULL,
        first INTEGER NOT NULL, head INTEGER NOT NULL, unsettled INTEGER NOT NULL, crc INTEGER NOT NULL)""",
    """CREATE TABLE segments (
        key INTEGER PRIMARY KEY, ends TEXT NOT NULL, bodies BLOB NOT NULL, crc INTEGER NOT NULL)""",
    """CREATE TABLE snapshots (
        session INTEGER NOT NULL, name TEXT NOT NULL, offset INTEGER NOT NULL, version INTEGER NOT NULL,
        body BLOB NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (session, name)) WITHOUT ROWID""",
    "CREATE TABLE forgotten (session INTEGER NOT NULL PRIMARY KEY, upto INTEGER NOT NULL)",
    f"""CREATE VIEW events AS
        SELECT segments.key >> {OFFSET_BITS} AS session,
               (segments.key & {LAST_OFFSET}) - json_array_length(ends) + 1 + each.key AS offset,
               coalesce(substr(bodies, 1 + {_BEGIN}, each.value - {_BEGIN}), zeroblob(0)) AS body
        FROM segments, json_each(segments.ends) AS each""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
"""Statements that create the tables; all run in one transaction."""

_NEWEST_KEY = f"""(
    SELECT key FROM segments WHERE key > sessions.id << {OFFSET_BITS}
    AND key <= sessions.id << {OFFSET_BITS} | {LAST_OFFSET} ORDER BY key DESC LIMIT 1)"""
LIST_SESSIONS = f"SELECT id, name, epoch, first, head, unsettled, crc, {_NEWEST_KEY} FROM sessions"
FIND_SESSION = f"{LIST_SESSIONS} WHERE name = ?"
ADD_SESSION = "INSERT INTO sessions (name, epoch, first, head, unsettled, crc) VALUES (?, ?, ?, 0, 0, 0)"
UPDATE_SESSION = "UPDATE sessions SET first = ?, head = ?, unsettled = ?, crc = ? WHERE id = ?"
DELETE_SESSION = "DELETE FROM sessions WHERE id = ?"
CHECK_SESSIONS = "PRAGMA integrity_check(sessions)"

ADD_SEGMENT = "INSERT INTO segments (key, ends, bodies, crc) VALUES (?, ?, ?, ?)"
SEGMENTS = "SELECT key, ends, bodies, crc FROM segments WHERE key > ? AND key <= ? ORDER BY key"
_DELETE_SEGMENTS = """DELETE FROM segments WHERE key IN (
    SELECT key FROM segments WHERE key > ? AND key <= ? ORDER BY key LIMIT ?)"""
FORGET = """INSERT INTO forgotten (session, upto) VALUES (?, ?)
    ON CONFLICT (session) DO UPDATE SET upto = max(upto, excluded.upto)"""
_NEXT_FORGOTTEN = "SELECT session, upto FROM forgotten LIMIT 1"
_FORGOTTEN_IS_GONE = "DELETE FROM forgotten WHERE session = ?"
FIND_SNAPSHOT = "SELECT session, name, offset, version, body, crc FROM snapshots WHERE session = ? AND name = ?"
SAVE_SNAPSHOT = """INSERT INTO snapshots (session, name, offset, version, body, crc) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (session, name) DO UPDATE
    SET offset = excluded.offset, version = excluded.version, body = excluded.body, crc = excluded.crc
    WHERE excluded.offset >= snapshots.offset"""
DELETE_SNAPSHOTS = "DELETE FROM snapshots WHERE session = ?"


def sweep(connection: sqlite3.Connection) -> bool:
    """Remove some forgotten segments, so few that others hardly wait; return whether there may be more."""
    row = connection.execute(_NEXT_FORGOTTEN).fetchone()
    if row is None:
        return False
    session, upto = row
    base = session << OFFSET_BITS
    if connection.execute(_DELETE_SEGMENTS, (base, base | upto, SWEEP_SEGMENTS)).rowcount < SWEEP_SEGMENTS:
        connection.execute(_FORGOTTEN_IS_GONE, (session,))
    return True


class Segment(NamedTuple):
    key: int
    ends: str
    bodies: bytes
    crc: int


class Row(NamedTuple):
    """A session and its key."""

    key: int
    head: SessionHead


def checksum(*values: object) -> int:
    """Return the checksum of a row of any table but `segments`; its text also distinguishes types."""
    return crc32(repr(values).encode())


def segments_of(session: int, first: int, bodies: Sequence[bytes]) -> list[Segment]:
    """Return the rows for events that start at an offset."""
    segments: list[Segment] = []
    start = size = 0
    for stop, body in enumerate(bodies):
        if stop > start and (stop - start == SEGMENT_EVENTS or size + len(body) > SEGMENT_BYTES):
            segments.append(_segment(session, first + stop - 1, bodies[start:stop]))
            start, size = stop, 0
        size += len(body)
    if start < len(bodies):
        segments.append(_segment(session, first + len(bodies) - 1, bodies[start:]))
    return segments


def _segment(session: int, last: int, bodies: Sequence[bytes]) -> Segment:
    key = session << OFFSET_BITS | last
    ends, joined = msgspec.json.encode(list(accumulate(map(len, bodies)))), b"".join(bodies)
    return Segment(key, ends.decode(), joined, crc32(joined, crc32(b"%d %b" % (key, ends))))


_decode_ends = msgspec.json.Decoder(list[int]).decode


def bodies_in(segment: Segment, after: int) -> tuple[int, list[bytes]]:
    """Return the offset of a segment's first event, and its events after an offset. Raises `LogCorrupt`."""
    key, ends_json, bodies, crc = segment
    try:
        is_whole = crc == crc32(bodies, crc32(b"%d %b" % (key, ends_json.encode())))
    except (TypeError, AttributeError):
        is_whole = False  # Damage to a row's header changes the types of its values.
    if not is_whole:
        raise LogCorrupt("events do not match their checksum; stop and restore the file from a backup")
    ends = _decode_ends(ends_json)
    first = (key & LAST_OFFSET) - len(ends) + 1
    skipped = max(0, after + 1 - first)
    if skipped > len(ends):
        raise LogCorrupt("the index of events is damaged; stop and restore the file from a backup")
    begin = ends[skipped - 1] if skipped else 0
    return first, [bodies[begin:end] for begin, end in pairwise([begin, *ends[skipped:]])]


def row_of(found: tuple[int, str, str, int, int, int, int, int | None]) -> Row:
    """Return a session from a row of `LIST_SESSIONS`. Raises `LogCorrupt`."""
    key, name, epoch, first, known_head, unsettled, crc, newest = found
    if crc != checksum(key, name, epoch, first, known_head, unsettled):
        raise torn(name)
    head = first - 1 if newest is None else newest & LAST_OFFSET
    if head < max(known_head, first - 1):
        raise torn(name)
    return Row(key, SessionHead(SessionId(name), Epoch(epoch), first, head, bool(unsettled)))


def torn(name: str) -> LogCorrupt:
    message = f"the events of session {name!r} do not match its head; stop and restore the file from a backup"
    return LogCorrupt(message, session=name)
