"""The text index: what was said in sessions, by its words, in a file of its own beside the log.

Takes the texts of a session with how far its log is read; gives the sessions and the texts that have given words.
It is derived: a file that is damaged, of another form or not ours is removed and filled again from the log. A log
in memory has an index in memory. All of SQLite happens in worker threads, one call at a time.

    cursors  one row per session: id, name (as clients know it), epoch and offset up to which it is read, and the
             names by which lists find it (its title and directory)
    texts    FTS5; the row id is the session's id and the text's place in it: `id << 32 | place`

    T1  A text and the cursor behind it are written together or not at all; what is written again replaces.
    T2  A word is letters and digits, in large or small letters, with or without accents. A text has given words if
        it has each of them, the last one at least as a beginning. Other characters mean nothing, and part words: of
        what is given with such inside, the parts are found side by side.
    T3  What is forgotten is not found any more.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import anyio
from anyio import to_thread

from turnwire.core.view import VIEW_VERSION
from turnwire.ids import ChildId, Epoch, PromptId, SessionId

logger = logging.getLogger(__name__)

FORM: Final = 100 + VIEW_VERSION
"""Of the file. Texts come from views: another view may have others."""
MOST_CHARACTERS: Final = 1 << 20
"""Of one text. What is behind them is not found."""
AT_ONCE: Final = 256
"""Texts of one transaction: some ten milliseconds, in which a search waits."""
_PLACES: Final = 32
"""Bits of a place in a row id."""
_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS cursors (
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
    f"PRAGMA user_version = {FORM}",
)
_LOAD: Final = "SELECT id, name, epoch, offset, names FROM cursors"
_MOVE: Final = """
    INSERT INTO cursors (name, epoch, offset, names) VALUES (?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, offset = excluded.offset, names = excluded.names
    RETURNING id
"""
_WRITE: Final = "INSERT OR REPLACE INTO texts (rowid, text, role, prompt, child) VALUES (?, ?, ?, ?, ?)"
_FIND: Final = "SELECT DISTINCT rowid >> 32 FROM texts WHERE texts MATCH ?"
_FIND_IN: Final = """
    SELECT rowid FROM texts WHERE texts MATCH ? AND rowid BETWEEN ? AND ? AND rowid >> 32 IN ({keys})
    ORDER BY rowid DESC
"""
_READ: Final = "SELECT text, role, prompt, child FROM texts WHERE rowid = ?"

_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_T = TypeVar("_T")


class Text(NamedTuple):
    """Something that was said in a session."""

    place: int
    """Where; a text at the same place replaces it. Later ones are newer."""
    text: str
    """One that is empty is removed."""
    role: str
    prompt_id: PromptId | None = None
    child_id: ChildId | None = None


class Cursor(NamedTuple):
    """How far a session is read."""

    key: int
    epoch: Epoch
    offset: int
    names: str


class TextIndex:
    """The texts of all sessions. Every method may raise `sqlite3.Error`; then nothing has changed."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self._connection = connection
        self._path = path
        self._lock = anyio.Lock()
        self.is_damaged = False
        """It must be made anew."""
        self.cursors = {
            SessionId(name): Cursor(key, Epoch(epoch), offset, names)
            for key, name, epoch, offset, names in connection.execute(_LOAD)
        }
        """What is read, as of the last write."""
        self._names = {cursor.key: session_id for session_id, cursor in self.cursors.items()}

    @classmethod
    async def open(cls, path: Path | None) -> TextIndex | None:
        """The index at a path, or in memory. None if this Python has no FTS5, or no file can be there."""
        return await to_thread.run_sync(_open, path)

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._run(self._connection.close)

    async def renew(self) -> None:
        """Begin anew, empty."""
        await self._run(self._renew)
        self.cursors.clear()
        self._names.clear()
        self.is_damaged = False

    async def write(
        self, session_id: SessionId, epoch: Epoch, offset: int, names: str, texts: Sequence[Text]
    ) -> None:
        """Keep what was said in a session, whose log is read up to an offset. Another epoch is another session."""
        known = self.cursors.get(session_id)
        if known is not None and known.epoch != epoch:
            await self.forget(session_id)
            known = None
        before = 0 if known is None else known.offset
        parts = [texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE)] or [()]
        for number, part in enumerate(parts, 1):
            # The last one moves the cursor: after a crash in between, all of them come again.
            reached = Cursor(0, epoch, offset if number == len(parts) else before, names)
            key = await self._run(partial(self._write, session_id, reached, part))
            self.cursors[session_id] = reached._replace(key=key)
            self._names[key] = session_id

    async def forget(self, session_id: SessionId) -> None:
        """Remove a session with all its texts."""
        known = self.cursors.get(session_id)
        if known is None:
            return
        await self._run(lambda: self._forget(known.key))
        self.cursors.pop(session_id, None)
        self._names.pop(known.key, None)

    async def find(self, words: Sequence[str]) -> set[SessionId]:
        """The sessions with a text that has all of the words."""
        asked = _query(words)
        rows = await self._run(lambda: self._connection.execute(_FIND, (asked,)).fetchall())
        return {self._names[key] for (key,) in rows if key in self._names}

    async def texts(
        self, words: Sequence[str], among: Collection[SessionId], most: int
    ) -> dict[SessionId, list[Text]]:
        """The newest texts of each of these sessions that have all of the words, `most` of each."""
        keys = sorted(self.cursors[each].key for each in among if each in self.cursors)
        if not keys:
            return {}
        found = await self._run(lambda: self._texts(_query(words), keys, most))
        return {self._names[key]: texts for key, texts in found.items() if key in self._names}

    async def _run(self, function: Callable[[], _T]) -> _T:
        async with self._lock:
            try:
                return await to_thread.run_sync(function)
            except sqlite3.DatabaseError as error:
                code: int = getattr(error, "sqlite_errorcode", 0)
                self.is_damaged = self.is_damaged or code & 0xFF in _DAMAGED
                raise

    # What follows runs in worker threads.

    def _renew(self) -> None:
        self._connection.close()
        _remove(self._path)
        self._connection = _connect(self._path)

    def _write(self, session_id: SessionId, reached: Cursor, texts: Iterable[Text]) -> int:
        with self._transaction():
            row = (_sound(session_id), reached.epoch, reached.offset, _sound(reached.names))
            key: int = self._connection.execute(_MOVE, row).fetchone()[0]
            for each in texts:
                rowid = key << _PLACES | each.place
                if each.text:
                    text = _sound(each.text[:MOST_CHARACTERS])
                    self._connection.execute(_WRITE, (rowid, text, each.role, each.prompt_id, each.child_id))
                else:
                    self._connection.execute("DELETE FROM texts WHERE rowid = ?", (rowid,))
            return key

    def _forget(self, key: int) -> None:
        with self._transaction():
            self._connection.execute("DELETE FROM texts WHERE rowid BETWEEN ? AND ?", _rows(key, key))
            self._connection.execute("DELETE FROM cursors WHERE id = ?", (key,))

    def _texts(self, asked: str, keys: Sequence[int], most: int) -> dict[int, list[Text]]:
        find = _FIND_IN.format(keys=", ".join(map(str, keys)))
        places: dict[int, list[int]] = {}
        for (rowid,) in self._connection.execute(find, (asked, *_rows(keys[0], keys[-1]))):
            known = places.setdefault(rowid >> _PLACES, [])
            if len(known) < most:
                known.append(rowid)
        return {key: [self._text(each) for each in rows] for key, rows in places.items()}

    def _text(self, rowid: int) -> Text:
        text, role, prompt_id, child_id = self._connection.execute(_READ, (rowid,)).fetchone()
        return Text(rowid & (1 << _PLACES) - 1, text, role, prompt_id, child_id)

    def _transaction(self) -> sqlite3.Connection:
        self._connection.execute("BEGIN")
        return self._connection  # as a context it commits, or rolls back


def _rows(first: int, last: int) -> tuple[int, int]:
    """The first and the last row id of these sessions and those between them."""
    return first << _PLACES, (last + 1 << _PLACES) - 1


def _query(words: Sequence[str]) -> str:
    """What FTS5 is asked for: each word quoted, so that nothing in it is syntax; the last one as a beginning."""
    quoted = " ".join(f'"{_sound(each).replace(chr(34), chr(34) * 2)}"' for each in words)
    return f"{quoted}*" if quoted else '""'


def _sound(text: str) -> str:
    """Text as SQLite takes it: it ends at a null character, and half of a pair is no character."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode()


# -- opening -------------------------------------------------------------------------------------------------


def _open(path: Path | None) -> TextIndex | None:
    extra = {"event": "text_index"}
    try:
        _check_fts5()
    except sqlite3.Error:
        logger.warning("this SQLite has no FTS5: sessions are found by title and directory only", extra=extra)
        return None
    for _ in range(2):
        try:
            return TextIndex(_connect(path), path)
        except (sqlite3.Error, OSError) as error:
            logger.info("the text index is made anew", extra={**extra, "reason": type(error).__name__})
            _remove(path)
    logger.warning("no text index can be kept: sessions are found by title and directory only", extra=extra)
    return None


def _check_fts5() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE probe USING fts5 (text)")


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        # SQLite gives the files beside it the mode of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may take the newest texts: the cursor says so, and the log has them.
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA user_version").fetchone()[0] not in (0, FORM):
            raise sqlite3.DatabaseError("the file is of another form")
        for each in _TABLES:
            connection.execute(each)
        # Reading finds out whether it is one at all.
        connection.execute("SELECT count(*) FROM texts WHERE texts MATCH 'a'").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _remove(path: Path | None) -> None:
    if path is not None:
        for end in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.remove(f"{path}{end}")
