"""The lock of a data folder's owner: an `flock` on `<path>.lock`.

The lock ends with its process, so it is never stale. The file stays: if it were removed, two owners could lock two
files of the same name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnwire.errors import ConfigError, LogLocked, LogUnavailable


@contextmanager
def usable(path: Path) -> Generator[None]:
    """Raise `ConfigError` for an `OSError` inside."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the event log cannot be at {str(path)!r} ({os.strerror(error.errno or 0)});"
            " give a file in a directory that can be written"
        ) from error


def lock_file(path: Path) -> int:
    """Lock the log at `path` for this process; return the descriptor of the lock. Raises `LogLocked`."""
    with usable(path):
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(lock, 32).decode(errors="replace").strip()
        os.close(lock)
        if not isinstance(error, BlockingIOError):
            raise LogUnavailable("the event log cannot be locked; put it on a local disk") from error
        raise LogLocked(
            f"process {owner or 'unknown'} owns the event log; stop it, or give another path",
            owner=int(owner) if owner.isdecimal() else None,
        ) from None
    # The pid is for people. On a full disk the log opens without it.
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    return lock
