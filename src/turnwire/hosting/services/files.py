"""Files for an agent: reading and writing text inside the roots of a session.

Only regular files are opened, and nothing that could block: no pipe, no device. A file is replaced whole or not at
all, by renaming; a concurrent reader sees the old text or the new. The work runs in worker threads, a few at a
time, and no thread is abandoned: a cancelled call returns when its thread has ended. No link is followed out of the
roots; see `turnwire.hosting.services.roots`.
"""

from __future__ import annotations

import itertools
import os
import stat
from contextlib import suppress

from anyio import CapacityLimiter, to_thread

from turnwire.hosting.services import refusals
from turnwire.hosting.services.roots import Place, Roots
from turnwire.limits import Limits

FILE_THREADS = 4
"""Concurrent file operations per session: four saturate one disk, and an agent cannot use every thread."""

_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

NEW_FILE_MODE = 0o666
"""Mode of a new file before the umask is applied, as in every editor."""

UINT32 = 2**32 - 1
"""The largest value of `line` and `limit` in ACP."""

_numbers = itertools.count(1)


class Files:
    """The files of one session for its agent."""

    def __init__(self, roots: Roots, limits: Limits, threads: CapacityLimiter) -> None:
        self._roots = roots
        self._max_bytes = limits.file_bytes
        self._threads = threads

    async def read_text_file(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """Return the text, or `limit` lines of it from `line` on, with unchanged line ends. Past the end it is
        empty.

        Raises:
            RequestRefused: It is outside, missing, not a regular file, too large or not UTF-8 text.
        """
        _check_lines(line, limit)
        return await to_thread.run_sync(self._read, path, line or 1, limit, limiter=self._threads)

    async def write_text_file(self, path: str, text: str) -> None:
        """Create the file, with the directories above it, or replace it. A cancelled call did all or nothing.

        Raises:
            RequestRefused: It is outside, not a regular file, too large, or the system does not permit it.
        """
        content = text.encode()
        if len(content) > self._max_bytes:
            raise self._too_large()
        await to_thread.run_sync(self._write, path, content, limiter=self._threads)

    def _read(self, path: str, line: int, limit: int | None) -> str:
        with self._roots.locate(path) as place, os.fdopen(_open_regular(place, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size > self._max_bytes:
                raise self._too_large()
            # The size is not reliable: the file may grow, and some system files report none.
            content = file.read(self._max_bytes + 1)
        if len(content) > self._max_bytes:
            raise self._too_large()
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise refusals.invalid("the file is not UTF-8 text; use a terminal to look into it", "not_text")
        return cut_lines(text, line, limit)

    def _write(self, path: str, content: bytes) -> None:
        with self._roots.locate(path, make_parents=True) as place:
            replaced = _look_at(place)
            fd, name = _create_beside(place)
            try:
                with os.fdopen(fd, "wb") as file:
                    if replaced:
                        _keep_owner_and_mode(fd, replaced)
                    file.write(content)
                os.rename(name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name, dir_fd=place.directory)
                raise

    def _too_large(self) -> Exception:
        return refusals.invalid(
            f"the file is larger than {self._max_bytes} bytes; use a terminal to read or write parts of it",
            "too_large",
        )


def _check_lines(line: int | None, limit: int | None) -> None:
    """Reject invalid line numbers. ACP counts lines from 1."""
    if line is not None and not 1 <= line <= UINT32:
        raise refusals.invalid("`line` is out of range; lines are counted from 1", "malformed")
    if limit is not None and not 0 <= limit <= UINT32:
        raise refusals.invalid("`limit` is out of range; give a number of lines", "malformed")


def cut_lines(text: str, line: int, limit: int | None) -> str:
    """Return `limit` lines from `line` on, with their ends. Only a line feed ends a line, as in editors."""
    if line == 1 and limit is None:
        return text
    lines = text.split("\n")
    start = line - 1
    stop = len(lines) if limit is None else min(start + limit, len(lines))
    if start >= stop:
        return ""
    return "\n".join(lines[start:stop]) + ("\n" if stop < len(lines) else "")


def _open_regular(place: Place, flags: int) -> int:
    """Open a regular file and nothing else: opening a pipe or a device can already have an effect."""
    found = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        raise refusals.not_a_file()
    fd = os.open(place.name, flags | _OPEN, dir_fd=place.directory)
    # It may have been replaced meanwhile. Nothing opened here could have blocked.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise refusals.not_a_file()
    return fd


def _look_at(place: Place) -> os.stat_result | None:
    """Inspect the file to be replaced. It is opened for writing, so that a read-only file is not replaced
    either.
    """
    try:
        fd = _open_regular(place, os.O_WRONLY)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def _create_beside(place: Place) -> tuple[int, str]:
    """Create a file in the same directory, so that renaming it replaces the other in one step."""
    while True:
        name = f".turnwire-{os.getpid()}-{next(_numbers)}"
        try:
            return os.open(name, _CREATE, NEW_FILE_MODE, dir_fd=place.directory), name
        except FileExistsError:
            # A stale file of a daemon that was killed while writing.
            continue


def _keep_owner_and_mode(fd: int, replaced: os.stat_result) -> None:
    """Copy owner and mode, as if the file had been written in place; never the bits that run a program as its
    owner.
    """
    made, mode = os.fstat(fd), stat.S_IMODE(replaced.st_mode) & 0o777
    if (made.st_uid, made.st_gid) != (replaced.st_uid, replaced.st_gid):
        try:
            os.fchown(fd, replaced.st_uid, replaced.st_gid)
        except OSError:
            # The daemon cannot change the group. The old group's permissions must not apply to the new one.
            mode &= 0o777 if made.st_gid == replaced.st_gid else 0o707
    os.fchmod(fd, mode)
