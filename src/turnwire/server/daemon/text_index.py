"""The text index: an SQLite FTS5 file next to the log with the text of messages and the titles of tool calls.

The index is derived from the log. A file that is damaged or has another format is removed and filled again. A log
in memory has an index in memory. All SQLite calls run in worker threads, one at a time.

    sessions  one row per session: id, name (the session id), epoch and offset up to which its log is indexed, and
              its title and directory in lower case
    texts     FTS5; the row id is `sessions.id << 32 | event id`

A text matches if it has every word, the last one at least as a prefix. Case and accents do not matter.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread

from turnwire.ids import ChildId, Epoch, PromptId, SessionId
from turnwire.projections.view import VIEW_VERSION

logger = logging.getLogger(__name__)

VERSION: Final = 200 + VIEW_VERSION
"""The format of the file. Texts come from views, so another version of those is another format."""
MAX_CHARACTERS: Final = 1 << 20
"""Only this many characters of a text are indexed."""
SNIPPET_WORDS: Final = 24
SNIPPET_CHARACTERS: Final = 240
"""Longest snippet; text without spaces is one long word."""
MARK, UNMARK = "\1", "\2"
"""Marks around each match in a snippet. Indexed text has neither."""
_ID_BITS: Final = 32
_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        epoch TEXT NOT NULL,
        offset INTEGER NOT NULL,
        names TEXT NOT NULL
    )
    """,
    """
    CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5 (
        text, role UNINDEXED, prompt UNINDEXED, child UNINDEXED, tokenize = "unicode61 remove_diacritics 2"
    )
    """,
    f"PRAGMA user_version = {VERSION}",
)
_SAVE_SESSION: Final = """
    INSERT INTO sessions (name, epoch, offset, names) VALUES (?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, offset = excluded.offset, names = excluded.names
    RETURNING id
"""
_SAVE_TEXT: Final = "INSERT OR REPLACE INTO texts (rowid, text, role, prompt, child) VALUES (?, ?, ?, ?, ?)"
_FIND: Final = f"SELECT DISTINCT rowid >> {_ID_BITS} FROM texts WHERE texts MATCH ?"
_MATCHES: Final = f"""
    SELECT rowid, snippet(texts, 0, '{MARK}', '{UNMARK}', '…', {SNIPPET_WORDS}), role, prompt, child
    FROM texts WHERE texts MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?
"""
_NO_TEXT: Final = str.maketrans({"\0": " ", MARK: " ", UNMARK: " "})

_T = TypeVar("_T")


class Text(NamedTuple):
    """A message or a title. A text with the event id of an earlier one replaces it; an empty one removes it."""

    event_id: int
    text: str
    role: str
    prompt_id: PromptId | None = None
    child_id: ChildId | None = None


class Cursor(NamedTuple):
    """The position up to which a session is indexed."""

    key: int
    epoch: Epoch
    offset: int
    names: str


class TextIndex:
    """The texts of all sessions. Every method may raise `sqlite3.Error`; then nothing has changed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._one = CapacityLimiter(1)
        self.cursors = {
            SessionId(name): Cursor(key, Epoch(epoch), offset, names)
            for key, name, epoch, offset, names in connection.execute("SELECT * FROM sessions")
        }

    @classmethod
    async def open(cls, path: Path | None) -> TextIndex | None:
        """Open the index at a path, or one in memory. None if SQLite has no FTS5 or the file cannot be written."""
        return await to_thread.run_sync(_open, path)

    async def aclose(self) -> None:
        await self._run(self._connection.close)

    async def save(
        self, session_id: SessionId, epoch: Epoch, offset: int, names: str, texts: Sequence[Text]
    ) -> None:
        """Store texts and move the session's cursor, in one transaction."""
        row = (_clean(session_id), epoch, offset, _clean(names))
        key = await self._run(lambda: self._save(row, texts))
        self.cursors[session_id] = Cursor(key, epoch, offset, names)

    async def forget(self, session_id: SessionId) -> None:
        """Remove a session with all its texts."""
        known = self.cursors.get(session_id)
        if known is not None:
            await self._run(lambda: self._forget(known.key))
            self.cursors.pop(session_id, None)

    async def find(self, words: Sequence[str]) -> set[SessionId]:
        """Return the sessions with a text that matches."""
        query = _query(words)
        rows = await self._run(lambda: self._connection.execute(_FIND, (query,)).fetchall())
        keys = {key for (key,) in rows}
        return {name for name, each in self.cursors.items() if each.key in keys}

    async def matches(self, words: Sequence[str], session_id: SessionId, limit: int) -> list[Text]:
        """Return the newest matching texts of a session as snippets with marks."""
        known = self.cursors.get(session_id)
        if known is None:
            return []
        given = (_query(words), *_rows(known.key), limit)
        rows = await self._run(lambda: self._connection.execute(_MATCHES, given).fetchall())
        return [Text(rowid & (1 << _ID_BITS) - 1, *rest) for rowid, *rest in rows]

    async def _run(self, function: Callable[[], _T]) -> _T:
        return await to_thread.run_sync(function, limiter=self._one)

    # Called in worker threads.

    def _save(self, row: tuple[str, Epoch, int, str], texts: Iterable[Text]) -> int:
        self._connection.execute("BEGIN")
        with self._connection:
            key: int = self._connection.execute(_SAVE_SESSION, row).fetchone()[0]
            for each in texts:
                rowid = key << _ID_BITS | each.event_id
                text = _clean(each.text[:MAX_CHARACTERS])
                if text:
                    values = (rowid, text, each.role, each.prompt_id, each.child_id)
                    self._connection.execute(_SAVE_TEXT, values)
                else:
                    self._connection.execute("DELETE FROM texts WHERE rowid = ?", (rowid,))
        return key

    def _forget(self, key: int) -> None:
        self._connection.execute("BEGIN")
        with self._connection:
            self._connection.execute("DELETE FROM texts WHERE rowid BETWEEN ? AND ?", _rows(key))
            self._connection.execute("DELETE FROM sessions WHERE id = ?", (key,))


def _rows(key: int) -> tuple[int, int]:
    """Return the first and the last row id of a session."""
    return key << _ID_BITS, (key + 1 << _ID_BITS) - 1


def _query(words: Sequence[str]) -> str:
    """Return an FTS5 query: each word quoted, so that nothing in it is syntax; the last one as a prefix."""
    quoted = " ".join(f'"{_clean(each).replace(chr(34), chr(34) * 2)}"' for each in words)
    return f"{quoted}*" if quoted else '""'


def _clean(text: str) -> str:
    """Return the text as SQLite stores it: without NUL, which would end it, marks and half surrogate pairs."""
    return text.translate(_NO_TEXT).encode("utf-8", "replace").decode()


# -- opening -------------------------------------------------------------------------------------------------


def _open(path: Path | None) -> TextIndex | None:
    extra = {"event": "text_index"}
    try:
        _check_fts5()
    except sqlite3.Error:
        logger.warning("this SQLite has no FTS5: search finds titles and directories only", extra=extra)
        return None
    for _ in range(2):
        try:
            return TextIndex(_connect(path))
        except (sqlite3.Error, OSError) as error:
            logger.info("the text index is created again", extra={**extra, "reason": type(error).__name__})
            remove(path)
    logger.warning("the text index cannot be written: search finds titles and directories only", extra=extra)
    return None


def _check_fts5() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE probe USING fts5 (text)")


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        # SQLite gives the files next to it the mode of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may lose the newest texts: their cursor is lost with them, so they are indexed again.
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA user_version").fetchone()[0] not in (0, VERSION):
            raise sqlite3.DatabaseError("the file has another format")
        for each in _TABLES:
            connection.execute(each)
        # The first read finds a file that is damaged.
        connection.execute("SELECT count(*) FROM texts WHERE texts MATCH 'a'").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def remove(path: Path | None) -> None:
    """Remove the file of an index that is not open."""
    if path is not None:
        for end in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.remove(f"{path}{end}")
