"""The daemons that run on this machine for this user. Each writes a record, by which commands and programs find it.

A record is a file for the user alone, in the runtime folder of the user or else in our state folder. Its daemon
holds a lock on it as long as it lives, so a killed daemon can be recognized without contacting it, even if another
process has its process id now. A token is read only from a file that no other user may read: otherwise it is not a
secret any more. This module never connects to a daemon.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from turnwire.errors import ConfigError

URL_VARIABLE = "TURNWIRE_URL"
"""The variable with the daemon's URL, for commands and programs."""
TOKEN_FILE = "cli-token"
"""The file in a daemon's data folder with the token for local commands."""
_SUFFIX = ".json"
_OTHERS = 0o077
"""The permission bits of everyone except the owner of a file."""


class LocalDaemon(Struct, frozen=True, omit_defaults=True):
    """A daemon that runs on this machine."""

    url: str
    pid: int
    data: str | None = None
    """Its data folder; `None` if it stores nothing."""
    token: str | None = None
    """The token, if it has no folder for one."""
    started: int = 0
    """Time of its start in nanoseconds. After `turnwire restart` it is another one, with the same process id."""
    editors: str | None = None
    """A hash of its agents and settings, if `turnwire stdio` started it for editors."""

    def key(self) -> str | None:
        """Return the token for this daemon; `None` if it needs none, or has none for local programs.

        Raises:
            ConfigError: The file that holds it is invalid.
        """
        return self.token if self.data is None else read_token(Path(self.data) / TOKEN_FILE)


def folder_of(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the records; `None` for a user without one."""
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute():
        return runtime / "turnwire"
    state = Path(environ.get("XDG_STATE_HOME", ""))
    if state.is_absolute():
        return state / "turnwire" / "run"
    home = environ.get("HOME")
    return Path(home) / ".local/state/turnwire/run" if home else None


@contextmanager
def recorded(daemon: LocalDaemon, environ: Mapping[str, str]) -> Generator[None]:
    """Record the daemon while the context is open, so that others find it. An unwritable folder is not an error."""
    folder = folder_of(environ)
    record = None if folder is None else _open_record(folder / f"{daemon.pid}{_SUFFIX}")
    if record is None:
        yield
        return
    with record:
        fcntl.flock(record, fcntl.LOCK_EX)
        record.write(msgspec.json.encode(daemon))
        record.flush()
        try:
            yield
        finally:
            # Before it is closed: after that, another process could remove it.
            Path(record.name).unlink(missing_ok=True)


def _open_record(file: Path) -> BinaryIO | None:
    """Open a file for the user alone; return `None` if that fails."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A stale file of a daemon with the same process id has no owner.
        file.unlink(missing_ok=True)
        return open(file, "xb", opener=_private)
    except OSError:
        return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def running(environ: Mapping[str, str]) -> list[LocalDaemon]:
    """Return the running daemons of this user, the newest first."""
    folder = folder_of(environ)
    if folder is None or not folder.is_dir():
        return []
    found: list[tuple[float, LocalDaemon]] = []
    for file in folder.glob(f"*{_SUFFIX}"):
        with suppress(OSError, msgspec.DecodeError), file.open("rb") as record:
            if _is_held(record.fileno()):
                started = os.fstat(record.fileno()).st_mtime
                found.append((started, msgspec.json.decode(record.read(), type=LocalDaemon)))
            else:
                file.unlink(missing_ok=True)
    return [daemon for _, daemon in sorted(found, key=lambda each: -each[0])]


def _is_held(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def at_url(url: str, found: list[LocalDaemon]) -> LocalDaemon | None:
    """Return the daemon at this address, if it is one of them."""
    return next((each for each in found if each.url == url.rstrip("/")), None)


def only_one(found: list[LocalDaemon], data: Path | None = None) -> LocalDaemon | None:
    """Return the daemon with this data folder, else the only one; `None` if no daemon runs.

    Daemons that were started for editors are found by their folder only.

    Raises:
        ConfigError: Several run.
    """
    wanted = [each for each in found if data is not None and each.data == str(data)]
    others = [each for each in found if each.editors is None]
    if wanted or len(others) < 2:
        return next(iter(wanted or others), None)
    urls = ", ".join(each.url for each in others)
    raise ConfigError(f"several daemons of yours run: {urls}; say which with --url or {URL_VARIABLE}")


def read_token(path: Path) -> str | None:
    """Return the token in a file; `None` if there is no file.

    Raises:
        ConfigError: Other users may read it, it cannot be read, or it holds no token.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS:
                raise ConfigError(
                    f"others may read {path}, which holds a token; close it to them: chmod 600 {path}"
                )
            content = file.read(4096)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise ConfigError(
            f"{path.parent} is no folder, so {path.name} is not in it; give the right folder"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({type(error).__name__}); check its permissions") from None
    token = content.decode("ascii", "replace").strip()
    if not token or not all("!" <= each <= "~" for each in token):
        raise ConfigError(f"{path} holds no token; write one into it, and nothing else")
    return token
