"""The tables of a log file, how they came to be, and every statement that touches them.

Gives text only, never runs it. The file is meant to be read by others: any SQLite tool may open it read-only
while turnwire owns it.

    sessions   one row per session
        id         what the other tables call it; never used again after a delete
        name       the session's id as clients know it
        epoch      this life of the session's log
        first      offset of the oldest kept event, head + 1 when none is kept
        head       offset of the newest event, 0 when there was none
        unsettled  1 while a turn is open or prompts wait
    events     one row per event, offsets first..head without gaps
        session    sessions.id
        offset     1, 2, 3 …
        body       the event as it was given
    snapshots  one row per session and fold; a cache that may be emptied
        session, name, offset, version, body
    forgotten  events up to `upto` that a trim or delete has taken out of the log and is still removing
        session, upto

`PRAGMA user_version` is the number of migrations applied; `PRAGMA application_id` marks the file as ours.
"""

from __future__ import annotations

APPLICATION_ID = 0x74776C67
"""`twlg`, where tools such as `file` look for it."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE sessions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT NOT NULL UNIQUE,
            epoch TEXT NOT NULL,
            first INTEGER NOT NULL,
            head INTEGER NOT NULL,
            unsettled INTEGER NOT NULL
        )
        """,
        """
        CREATE TABLE events (
            session INTEGER NOT NULL,
            offset INTEGER NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (session, offset)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE snapshots (
            session INTEGER NOT NULL,
            name TEXT NOT NULL,
            offset INTEGER NOT NULL,
            version INTEGER NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (session, name)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE forgotten (
            session INTEGER NOT NULL PRIMARY KEY,
            upto INTEGER NOT NULL
        )
        """,
        f"PRAGMA application_id = {APPLICATION_ID}",
    ),
)
"""Applied in order, one transaction each. A migration that was released is never changed."""

VERSION = len(MIGRATIONS)

COUNT_TABLES = "SELECT count(*) FROM sqlite_schema"

LIST_SESSIONS = """
    SELECT id, name, epoch, first, head, unsettled,
           (SELECT min(offset) FROM events WHERE session = sessions.id),
           (SELECT max(offset) FROM events WHERE session = sessions.id)
    FROM sessions
"""
FIND_SESSION = "SELECT id, epoch, first, head, unsettled FROM sessions WHERE name = ?"
ADD_SESSION = "INSERT INTO sessions (name, epoch, first, head, unsettled) VALUES (?, ?, 1, 0, 0)"
MOVE_SESSION = "UPDATE sessions SET first = ?, head = ?, unsettled = ? WHERE id = ?"
DELETE_SESSION = "DELETE FROM sessions WHERE id = ?"

ADD_EVENT = "INSERT INTO events (session, offset, body) VALUES (?, ?, ?)"

EVENTS_AT_ONCE = 64
"""Rows of one statement. The interpreter's lock is taken once per statement, so many rows in one keep the writer
out of the event loop's way; measured, more rows gain nothing."""

ADD_EVENTS = "INSERT INTO events (session, offset, body) VALUES " + ", ".join(
    f"(?1, ?2 + {row}, ?{row + 3})" for row in range(EVENTS_AT_ONCE)
)
"""The session, the first offset, then as many bodies."""
PAGE_OF_EVENTS = """
    SELECT offset, body FROM events
    WHERE session = ? AND offset > ? AND offset <= ? ORDER BY offset LIMIT ?
"""

FORGET = """
    INSERT INTO forgotten (session, upto) VALUES (?, ?)
    ON CONFLICT (session) DO UPDATE SET upto = max(upto, excluded.upto)
"""
NEXT_FORGOTTEN = """
    SELECT session, upto, (SELECT min(offset) FROM events WHERE session = forgotten.session)
    FROM forgotten LIMIT 1
"""
DELETE_EVENTS = "DELETE FROM events WHERE session = ? AND offset <= ?"
FORGOTTEN_IS_GONE = "DELETE FROM forgotten WHERE session = ?"

FIND_SNAPSHOT = "SELECT name, offset, version, body FROM snapshots WHERE session = ? AND name = ?"
SAVE_SNAPSHOT = """
    INSERT INTO snapshots (session, name, offset, version, body) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (session, name) DO UPDATE
    SET offset = excluded.offset, version = excluded.version, body = excluded.body
    WHERE excluded.offset >= snapshots.offset
"""
DELETE_SNAPSHOTS = "DELETE FROM snapshots WHERE session = ?"
