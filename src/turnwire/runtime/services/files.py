"""Files for an agent: reading and writing text inside the roots of a session.

Only regular files are opened, and nothing that could block: no pipe, no device. A file is replaced whole or not
at all, by renaming; whoever reads it meanwhile sees the old text or the new. Works in worker threads, a few at a
time, and lets none run on alone: a cancelled call returns when its thread has. No link is followed out of the
roots; see `turnwire.runtime.services.roots`.
"""

from __future__ import annotations

import itertools
import os
import stat
from contextlib import suppress

from anyio import CapacityLimiter, to_thread

from turnwire.limits import Limits
from turnwire.runtime.services import refusals
from turnwire.runtime.services.roots import Place, Roots

_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

NEW_FILE_MODE = 0o666
"""Less what the umask takes away, as every editor does."""

UINT32 = 2**32 - 1
"""What ACP can count in `line` and `limit`."""

_numbers = itertools.count(1)


class Files:
    """The files of one session, as its agent sees them."""

    def __init__(self, roots: Roots, limits: Limits, threads: CapacityLimiter) -> None:
        self._roots = roots
        self._max_bytes = limits.file_bytes
        self._threads = threads

    async def read_text_file(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text, or `limit` lines of it from `line` on, line ends as they are. Past the end there is no text.

        Raises:
            RequestRefused: It is outside, missing, no regular file, too large or no UTF-8 text.
        """
        _check_lines(line, limit)
        return await to_thread.run_sync(self._read, path, line or 1, limit, limiter=self._threads)

    async def write_text_file(self, path: str, text: str) -> None:
        """Create the file, with the directories above it, or replace it. A cancelled call did all or nothing.

        Raises:
            RequestRefused: It is outside, no regular file, too large, or the system does not permit it.
        """
        content = text.encode()
        if len(content) > self._max_bytes:
            raise self._too_large()
        await to_thread.run_sync(self._write, path, content, limiter=self._threads)

    def _read(self, path: str, line: int, limit: int | None) -> str:
        with self._roots.locate(path) as place, os.fdopen(_open_regular(place, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size > self._max_bytes:
                raise self._too_large()
            # The size is no promise: the file may grow, and some of the system's own have none.
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
    """Refuse what counts nothing. ACP counts lines from 1."""
    if line is not None and not 1 <= line <= UINT32:
        raise refusals.invalid("`line` is out of range; lines are counted from 1", "malformed")
    if limit is not None and not 0 <= limit <= UINT32:
        raise refusals.invalid("`limit` is out of range; give a number of lines", "malformed")


def cut_lines(text: str, line: int, limit: int | None) -> str:
    """`limit` lines from `line` on, with their ends. Only a line feed ends a line, as in editors."""
    if line == 1 and limit is None:
        return text
    lines = text.split("\n")
    start = line - 1
    stop = len(lines) if limit is None else min(start + limit, len(lines))
    if start >= stop:
        return ""
    return "\n".join(lines[start:stop]) + ("\n" if stop < len(lines) else "")


def _open_regular(place: Place, flags: int) -> int:
    """Open what is a regular file, and nothing else: opening a pipe or a device can already act on it."""
    found = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        raise refusals.not_a_file()
    fd = os.open(place.name, flags | _OPEN, dir_fd=place.directory)
    # It may have been swapped meanwhile. Nothing that was opened here could block us.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise refusals.not_a_file()
    return fd


def _look_at(place: Place) -> os.stat_result | None:
    """What will be replaced. It is opened for writing, so that a file nobody may write is not replaced either."""
    try:
        fd = _open_regular(place, os.O_WRONLY)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def _create_beside(place: Place) -> tuple[int, str]:
    """A new file in the same directory, so that renaming it replaces the other in one step."""
    while True:
        name = f".turnwire-{os.getpid()}-{next(_numbers)}"
        try:
            return os.open(name, _CREATE, NEW_FILE_MODE, dir_fd=place.directory), name
        except FileExistsError:
            # Left by a daemon that was killed while it wrote.
            continue


def _keep_owner_and_mode(fd: int, replaced: os.stat_result) -> None:
    """As if the file had been written in place; never the bits that run a program as its owner."""
    made, mode = os.fstat(fd), stat.S_IMODE(replaced.st_mode) & 0o777
    if (made.st_uid, made.st_gid) != (replaced.st_uid, replaced.st_gid):
        try:
            os.fchown(fd, replaced.st_uid, replaced.st_gid)
        except OSError:
            # Not ours to give away. What the old group could do is not for the new one.
            mode &= 0o777 if made.st_gid == replaced.st_gid else 0o707
    os.fchmod(fd, mode)
