"""What is on the disk when: levels of durability, the write-ahead log as a file, and the thread that folds it back.

Durability
----------
At every level a returned append survives the death of this process, also by `kill -9`: a commit hands its pages to
the operating system before it returns. And at every level an append that asked for `durable=True` is on the disk
when it returns. The levels differ in what the death of the machine (power, kernel) may take of the others.

SQLite itself syncs nothing in a commit (`synchronous = NORMAL`) but the header of a write-ahead log (WAL) that
starts again. Whoever needs a commit on the disk syncs the WAL after it (`WalFile.sync`), once for all commits
before. That is what `synchronous = FULL` does inside the commit: it writes the same frames and then syncs the same
file. Between the two only the place differs, so the sync can be another thread's work and one can serve many
commits. A sync covers the commits before it: they lie in front of it in the same file. Those that are no longer in
the file were copied into the database by a checkpoint, which syncs both files before the WAL may be written from
its start again.

Checkpoints
-----------
The checkpointer has a thread and a connection of its own. The writer nudges it after a commit that left the WAL
longer than its limit. It never delays a commit while the WAL is of ordinary length, and never dies of a failing
disk: it tries again.

SQLite appends commits to the WAL. A PASSIVE checkpoint copies them into the database beside
the writer. Once everything is copied and no reader needs the WAL, the next commit starts it again from its
beginning. Under steady load there is always one more commit to copy, so PASSIVE alone lets the WAL grow for
ever. So two lengths: a PASSIVE for every `checkpoint_bytes` that the WAL grew; and beyond `_RESTART_FACTOR`
times that, after a PASSIVE for the bulk and with the writer paused, a RESTART for what came meanwhile.
RESTART and not TRUNCATE: a file that keeps its length need not be grown again, so syncs are cheaper.
The pause waits for readers, but no longer than `PAUSE_S`: ours read one page, and those that come after all is
copied need no WAL. And where commits outrun a checkpoint on a slow disk, the writer waits for its end beyond
`_WAIT_FACTOR` times the limit, so that is about as long as the WAL gets under any load. A reader that stays,
which is a foreign program, keeps the WAL from starting again for as long as it stays; appends go on, and the
next try after it left succeeds.

A sync of a file that grows also writes its new length and where it lies, which costs as much again. So the
checkpointer lengthens the file with zeros ahead of its content, up to `checkpoint_bytes`; `journal_size_limit` cuts
it to that when the WAL starts again after it was longer. To SQLite zeros are no frames: each frame carries the
salts of the header, and reading ends at the first that does not. `WalFile` measures the content by the same salts.

Two things must not overlap, and `WalGate` keeps them apart:

W1  SQLite before 3.51.3 loses pages if a checkpoint begins when everything is copied already and a commit
    restarts the WAL in that moment. So no checkpoint begins before a commit followed the last complete one:
    from then on something is left to copy, and only a checkpoint can change that.
W2  A commit that restarts the WAL syncs the new header, before the frames behind it: without that, frames of the
    old round could be read as valid after the machine died, on top of a newer database. SQLite does so itself; the
    event loop should not wait for it. So the first commit after a checkpoint is the thread's.
W3  Zeros are written behind the end of the file only, and while no transaction runs, so never where a frame is.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
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

_STEP_BYTES = 1024 * 1024
"""How much the file is lengthened at a time: written in less than a millisecond, in which no commit can run."""

_FIRST_BYTES, _AHEAD_FACTOR = 64 * 1024, 4
"""The file is lengthened when its content is so long, and then whenever the content has reached half of its length:
a log that is open for a moment writes no zeros, and one that works has its whole length soon."""

_HEADER_BYTES, _FRAME_HEADER_BYTES, _MAGIC = 32, 24, b"\x37\x7f\x06"
"""Of a WAL, as SQLite's file format says: page size at 8 and salts at 16 of the header, salts at 8 of each
frame."""

_log = logging.getLogger(__name__)


class Durability(StrEnum):
    """What an append without `durable=True` may lose when the machine dies."""

    FULL = "full"
    """Nothing. Every commit is synced to the disk before it returns."""
    NORMAL = "normal"
    """What came after the last sync. A durable append and a checkpoint sync; what is lost is a suffix."""
    MEMORY = "memory"
    """The same: the log itself never asks for a sync that nobody needs to keep a durable append."""


def is_failed_sync(error: Exception) -> bool:
    """Whether a sync failed: what it should have written may be gone although later syncs succeed."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_FSYNC


def sync_file(file: int) -> None:
    """What was written to the file, and whatever is needed to read it back, is on the disk when this returns."""
    # As SQLite does: where there is no `fdatasync`, `fsync`.
    getattr(os, "fdatasync", os.fsync)(file)


class WalFile:
    """The WAL as a file beside SQLite: it is synced and measured.

    The descriptor stays open for as long as the log is: a write that fails in the background is told once to each
    descriptor that was open then. So this one is for the writer's syncs alone.
    """

    def __init__(self, path: str, sync: Callable[[int], None] = sync_file) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._sync = sync

    def sync(self) -> None:
        """Raises `OSError`; from then on nobody knows what of the file is on the disk."""
        self._sync(self._file)

    def is_longer_than(self, size: int) -> bool:
        """Whether a frame begins so far on. Right after a commit, and cheap."""
        header = os.pread(self._file, _HEADER_BYTES, 0)
        return _is_frame(self._file, header, max(0, size - _HEADER_BYTES) // _frame_bytes(header))

    def content_bytes(self) -> int:
        """How long the content is; while a commit runs, about."""
        header = os.pread(self._file, _HEADER_BYTES, 0)
        frame_bytes = _frame_bytes(header)
        # The frames of this round are in front, without a gap, and nothing else has their salts.
        low, high = 0, os.fstat(self._file).st_size // frame_bytes
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if _is_frame(self._file, header, middle) else (low, middle)
        return _HEADER_BYTES + low * frame_bytes if low else 0

    def close(self) -> None:
        os.close(self._file)


def _frame_bytes(header: bytes) -> int:
    return _FRAME_HEADER_BYTES + (int.from_bytes(header[8:12], "big") or 4096)


def _is_frame(file: int, header: bytes, number: int) -> bool:
    place = _HEADER_BYTES + number * _frame_bytes(header)
    return header[:3] == _MAGIC and os.pread(file, 8, place + 8) == header[16:24]


class WalGate:
    """Lets the writer's transactions and the checkpointer's decisions happen one at a time."""

    def __init__(self) -> None:
        # The writer holds `_next` only until it is inside. So a pause gets `_next` during any transaction and
        # is inside before the writer is again, however fast that comes back.
        self._next = threading.Lock()
        self._inside = threading.Lock()
        self.commits = 0
        self._complete_at = 0
        self.may_restart = True
        """W2, for whoever is inside. A file just opened may be complete, so it starts true."""
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
        """Held by the writer's thread from before BEGIN until after COMMIT."""
        with self._next:
            self._inside.acquire()
        try:
            yield
        finally:
            self._inside.release()

    def enter(self) -> bool:
        """The same for the event loop, which waits for nobody: false if it is not inside now. Ended by `leave`."""
        if not self._next.acquire(blocking=False):
            return False
        is_inside = self._inside.acquire(blocking=False)
        self._next.release()
        return is_inside

    def leave(self) -> None:
        """After COMMIT, by who is inside."""
        self._inside.release()

    @contextmanager
    def pause(self) -> Generator[None]:
        """Held while no transaction may run."""
        with self._next, self._inside:
            yield

    def committed(self) -> None:
        """Called by the writer inside its transaction, after COMMIT."""
        self.commits += 1
        self.may_restart = False

    def begin(self) -> bool:
        """Called in a pause before a checkpoint; false when W1 forbids one."""
        return self.commits != self._complete_at

    def end(self, *, complete: bool) -> None:
        """Called in a pause after a checkpoint."""
        self.may_restart = True
        if complete:
            self._complete_at = self.commits


class Checkpointer:
    """The thread that checkpoints. `nudge` is called by the writer, `close` by the owner after the writer."""

    def __init__(self, connection: sqlite3.Connection, wal: WalFile, gate: WalGate, limit_bytes: int) -> None:
        self._connection = connection
        self._wal = wal
        self._gate = gate
        self._limit_bytes = limit_bytes
        self._next_bytes = _FIRST_BYTES
        self.is_far_behind = False
        """Whoever may wait for the disk should, before the next commit."""
        self._wake = threading.Event()
        self._resting = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="turnwire-log-checkpoint", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Wake the thread if the WAL is too long. Waits for nobody."""
        is_long = self._wal.is_longer_than(self._next_bytes)
        self.is_far_behind = is_long and self._wal.is_longer_than(_WAIT_FACTOR * self._limit_bytes)
        if is_long:
            self._wake.set()

    @property
    def is_resting(self) -> bool:
        """Whether nothing of it keeps the disk busy."""
        return self._resting.is_set()

    def wait_if_far_behind(self) -> None:
        """Wait for the thread if the WAL is far too long."""
        if self.is_far_behind:
            self._resting.wait()

    def close(self) -> None:
        """Copy what is left, cut the WAL to nothing and end the thread. The writer has ended."""
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
                size = self._wal.content_bytes()
                length = self._lengthen(size)
                retry = size > self._limit_bytes and not self._round(connection)
                self._next_bytes = self._limit_bytes + size if retry else min(self._limit_bytes, length // 2)
            self._resting.set()
            # Nothing can restart the WAL beside this one: the writer is gone.
            self._checkpoint(connection, "TRUNCATE")

    def _lengthen(self, size: int) -> int:
        """Let the file be ahead of its content, the more the more there is; returns its length, or the limit."""
        try:
            file = os.open(self._wal.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError:
            return self._limit_bytes
        try:
            length = os.fstat(file).st_size
            if length >= min(self._limit_bytes, max(_FIRST_BYTES, 2 * size)):
                return length
            upto = min(self._limit_bytes, max(_STEP_BYTES, _AHEAD_FACTOR * size))
            while not self._is_closing and os.fstat(file).st_size < upto and self._add_zeros(file, upto):
                sync_file(file)
            return upto
        except OSError as error:
            # Frames that wait for the writer's sync lie in the same file.
            self._gate.sync_failed = True
            _log.warning("sync failed", extra={"event": "sync_failed", "errno": error.errno})
            return self._limit_bytes
        finally:
            os.close(file)

    def _add_zeros(self, file: int, upto: int) -> bool:
        """W3. False if nothing is missing, or there is no room: whether there is some for events, appends find
        out."""
        with self._gate.pause(), suppress(OSError):
            missing = upto - os.fstat(file).st_size
            return missing > 0 and os.write(file, bytes(min(missing, _STEP_BYTES))) > 0
        return False

    def _round(self, connection: sqlite3.Connection) -> bool:
        """Whether everything is copied, so that the next commit can start the WAL again."""
        with self._gate.pause():
            if not self._gate.begin():
                return True
        complete = self._checkpoint(connection, "PASSIVE")
        with self._gate.pause():
            self._gate.end(complete=complete)
            if self._wal.is_longer_than(_RESTART_FACTOR * self._limit_bytes):
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
