"""The daemons that run on this machine for this user: each leaves a record, by which commands and programs find it.

A record is a file for the user alone, in the runtime folder of the user or else in our state folder. Its daemon
holds a lock on it for as long as it lives, so one that was killed is told from one that runs without asking it, and
whatever has its process number by now. A token is read from a file that nobody else may read: what others could
is not a secret any more. Never talks to a daemon.
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
"""Names the daemon, for commands and programs alike."""
TOKEN_FILE = "cli-token"
"""In a daemon's data folder: the token of commands on its own machine."""
_SUFFIX = ".json"
_OTHERS = 0o077
"""The rights of everybody but the owner of a file."""


class LocalDaemon(Struct, frozen=True, omit_defaults=True):
    """A daemon that runs here."""

    url: str
    pid: int
    data: str | None = None
    """Its data folder; none if it keeps nothing."""
    token: str | None = None
    """How to get in, if it has no folder for that."""

    def key(self) -> str | None:
        """The token to come in with; none if it asks for none, or has none for programs of this machine.

        Raises:
            ConfigError: The file that holds it is not as it must be.
        """
        return self.token if self.data is None else read_token(Path(self.data) / TOKEN_FILE)


def folder_of(environ: Mapping[str, str]) -> Path | None:
    """Where records are; none for a user without a place for them."""
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
    """Meanwhile others find the daemon. A folder that cannot be written is no reason not to run."""
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
            # Before it is closed: then it would be anybody's to take away.
            Path(record.name).unlink(missing_ok=True)


def _open_record(file: Path) -> BinaryIO | None:
    """A file for the user alone; none if it cannot be had."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # What a daemon of the same number left behind is nobody's.
        file.unlink(missing_ok=True)
        return open(file, "xb", opener=_private)
    except OSError:
        return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def running(environ: Mapping[str, str]) -> list[LocalDaemon]:
    """The daemons of this user that run now, the newest first."""
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
    """The one of them at this address; none if it is none of them."""
    return next((each for each in found if each.url == url.rstrip("/")), None)


def only_one(found: list[LocalDaemon], data: Path | None = None) -> LocalDaemon | None:
    """The daemon that is meant: the one with this data folder, else the only one; none if none runs.

    Raises:
        ConfigError: Several run.
    """
    wanted = [each for each in found if data is not None and each.data == str(data)]
    if wanted or len(found) < 2:
        return next(iter(wanted or found), None)
    urls = ", ".join(each.url for each in found)
    raise ConfigError(f"several daemons of yours run: {urls}; say which with --url or {URL_VARIABLE}")


def read_token(path: Path) -> str | None:
    """The token in a file; none if there is no file.

    Raises:
        ConfigError: Others may read it, it cannot be read, or it holds no token.
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
