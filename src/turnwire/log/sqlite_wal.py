"""What is on the disk when: levels of durability, and the thread that folds the write-ahead log into the database.

Durability
----------
At every level a returned append survives the death of this process, also by `kill -9`: a commit hands its pages to
the operating system before it returns. And at every level an append that asked for `durable=True` is on the disk
when it returns. The levels differ in what the death of the machine (power, kernel) may take of the others.

Checkpoints
-----------
The checkpointer has a thread and a connection of its own. The writer nudges it after a commit that left the
write-ahead log longer than its limit. It never delays a commit while the write-ahead log is of ordinary length, and
never dies of a failing disk: it tries again.

SQLite appends commits to the write-ahead log (WAL). A PASSIVE checkpoint copies them into the database beside
the writer. Once everything is copied and no reader needs the WAL, the next commit starts it again from its
beginning. Under steady load there is always one more commit to copy, so PASSIVE alone lets the WAL grow for
ever. So two lengths: a PASSIVE for every `checkpoint_bytes` that the WAL grew; and beyond `_RESTART_FACTOR`
times that, after a PASSIVE for the bulk and with the writer paused, a RESTART for what came meanwhile.
RESTART and not TRUNCATE: a file that keeps its length need not be grown again, so synced commits are cheaper.
The pause waits for readers, but no longer than `PAUSE_S`: ours read one page, and those that come after all is
copied need no WAL. And where commits outrun a checkpoint on a slow disk, the writer waits for its end beyond
`_WAIT_FACTOR` times the limit, so that is about as long as the WAL gets under any load. A reader that stays,
which is a foreign program, keeps the WAL from starting again for as long as it stays; appends go on, and the
next try after it left succeeds.

The length of the file is the length of what is in it only because `journal_size_limit` cuts the file to
`checkpoint_bytes` when the WAL starts again: it is longer than that exactly when its content is.

Two things must not overlap, and `WalGate` keeps them apart:

W1  SQLite before 3.51.3 loses pages if a checkpoint begins when everything is copied already and a commit
    restarts the WAL in that moment. So no checkpoint begins before a commit followed the last complete one:
    from then on something is left to copy, and only a checkpoint can change that.
W2  A commit that may restart the WAL must sync the new header (`sync_for`). It may if a
    checkpoint ran since the last commit that synced and began after that checkpoint had ended.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from enum import StrEnum

from turnwire.errors import LogUnavailable

_RESTART_FACTOR = 4
"""A RESTART pauses the writer for some milliseconds; with this factor it is rare even under full load."""

_WAIT_FACTOR = 8
"""Reached only where the disk is slower than the load; then appends go at the speed of the disk."""

PAUSE_S = 0.05
"""The busy timeout of the checkpointer's connection: many times what one page takes to read."""

_RETRY_S = 1.0
"""How soon a checkpoint that could not finish is tried again without a nudge: often enough that the disk
does not fill behind a reader that left, seldom enough to cost nothing."""

_log = logging.getLogger(__name__)


class Durability(StrEnum):
    """What an append without `durable=True` may lose when the machine dies."""

    FULL = "full"
    """Nothing. Every commit is synced to the disk before it returns."""
    NORMAL = "normal"
    """What came after the last sync. A durable append and a checkpoint sync; what is lost is a suffix."""
    MEMORY = "memory"
    """The same, and the log itself never asks for a sync that nobody needs to keep a durable append."""


SYNC_FULL = "FULL"
SYNC_NORMAL = "NORMAL"
SYNC_OFF = "OFF"


def sync_for(level: Durability, *, durable: bool, may_restart: bool) -> str:
    """The `PRAGMA synchronous` of one commit.

    A synced commit covers the unsynced ones before it: they lie in front of it in the same write-ahead log,
    and one sync of that file writes them all. Those that are no longer in the file were copied into the
    database by a checkpoint, which syncs both files before the write-ahead log may be written from its
    start again.

    The first commit that does so (`may_restart`) is never OFF: NORMAL syncs the new header before the frames
    behind it. Without that, frames of the old round could be read as valid after the machine died, on top of
    a newer database, and a durable event would be gone.
    """
    if durable or level is Durability.FULL:
        return SYNC_FULL
    if level is Durability.NORMAL or may_restart:
        return SYNC_NORMAL
    return SYNC_OFF


def is_failed_sync(error: Exception) -> bool:
    """Whether a sync failed: what it should have written may be gone although later syncs succeed."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_FSYNC


class WalGate:
    """Lets the writer's transactions and the checkpointer's decisions happen one at a time."""

    def __init__(self) -> None:
        # The writer holds `_next` only until it is inside. So a pause gets `_next` during any transaction and
        # is inside before the writer is again, however fast that comes back.
        self._next = threading.Lock()
        self._inside = threading.Lock()
        self.commits = 0
        self._complete_at = 0
        self._is_checkpointing = False
        self.may_restart = True
        """W2, for the writer inside a transaction. A file just opened may be complete, so it starts true."""
        self.sync_failed = False

    def check_syncs(self) -> None:
        """Refuse to write after a failed sync.

        The system may have dropped the pages it could not write, and later syncs succeed without them. So
        nothing behind them could be called durable. Opening the file again copies all of it to new places.
        """
        if self.sync_failed:
            raise LogUnavailable("the disk failed to sync the event log; check it, then start again")

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Held by the writer from before BEGIN until after COMMIT."""
        with self._next:
            self._inside.acquire()
        try:
            yield
        finally:
            self._inside.release()

    @contextmanager
    def pause(self) -> Generator[None]:
        """Held while no transaction may run."""
        with self._next, self._inside:
            yield

    def committed(self, *, synced: bool) -> None:
        """Called by the writer inside its transaction, after COMMIT."""
        self.commits += 1
        if synced and not self._is_checkpointing:
            self.may_restart = False

    def begin(self) -> bool:
        """Called in a pause before a checkpoint; false when W1 forbids one."""
        if self.commits == self._complete_at:
            return False
        self._is_checkpointing = self.may_restart = True
        return True

    def end(self, *, complete: bool) -> None:
        """Called in a pause after a checkpoint."""
        self._is_checkpointing = False
        if complete:
            self._complete_at = self.commits


class Checkpointer:
    """The thread that checkpoints. `nudge` is called by the writer, `close` by the owner after the writer."""

    def __init__(self, connection: sqlite3.Connection, wal_path: str, gate: WalGate, limit_bytes: int) -> None:
        self._connection = connection
        self._wal_path = wal_path
        self._gate = gate
        self._limit_bytes = limit_bytes
        self._next_bytes = limit_bytes
        self._wake = threading.Event()
        self._resting = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="turnwire-log-checkpoint", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Wake the thread if the write-ahead log is too long; wait for it if it is far too long."""
        size = self._wal_bytes()
        if size > self._next_bytes:
            self._wake.set()
        if size > _WAIT_FACTOR * self._limit_bytes:
            self._resting.wait()

    def close(self) -> None:
        """Copy what is left, cut the write-ahead log to nothing and end the thread. The writer has ended."""
        self._is_closing = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(self._connection) as connection:
            retry = False
            while not self._is_closing:
                self._resting.set()
                self._wake.wait(_RETRY_S if retry else None)
                self._resting.clear()
                self._wake.clear()
                size = self._wal_bytes()
                retry = size > self._limit_bytes and not self._round(connection)
                self._next_bytes = self._limit_bytes + (size if retry else 0)
            self._resting.set()
            # Nothing can restart the WAL beside this one: the writer is gone.
            self._checkpoint(connection, "TRUNCATE")

    def _round(self, connection: sqlite3.Connection) -> bool:
        """Whether everything is copied, so that the next commit can start the WAL again."""
        with self._gate.pause():
            if not self._gate.begin():
                return True
        complete = self._checkpoint(connection, "PASSIVE")
        with self._gate.pause():
            self._gate.end(complete=complete)
            if self._wal_bytes() > _RESTART_FACTOR * self._limit_bytes:
                # W1 holds also right after a complete one: in a pause no commit can restart the WAL.
                complete = self._checkpoint(connection, "RESTART")
                self._gate.end(complete=complete)
        return complete

    def _checkpoint(self, connection: sqlite3.Connection, mode: str) -> bool:
        """Whether everything is, or may be, copied; a reader may still keep the WAL from starting again."""
        try:
            _, frames, copied = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        except sqlite3.Error as error:
            # The events are safe in the WAL; a full or failing disk shows itself to appends by itself.
            self._gate.sync_failed |= is_failed_sync(error)
            code = getattr(error, "sqlite_errorcode", None)
            _log.warning("checkpoint failed", extra={"event": "checkpoint_failed", "sqlite_code": code})
            return True
        return frames == copied

    def _wal_bytes(self) -> int:
        try:
            return os.stat(self._wal_path).st_size
        except FileNotFoundError:
            return 0
