"""The credentials of a daemon: made, checked, listed and revoked; and `tokens.json`, which keeps them.

A secret is shown once, when it is made; what stays is its SHA-256. The token that the operator gave is not stored,
and nobody is told why a credential is not valid. The end of a credential, revoked or expired, is one event
(`closing`): every request, stream, socket and connection runs under it.

Issuing writes the file first: a token that was shown is valid after a crash. Revoking cuts first, and what is on
disk follows without needing room there: the file is replaced; or overwritten in its place, where a crash leaves a
file that is refused as damaged; or removed, so that a restart knows nobody rather than somebody who was revoked.
What could not be written is told (`CredentialsNotStored`) and tried again until it is (`keep_stored`). A file that
others may read or write is refused, with what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import logging
import math
import os
import secrets
import stat
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, Protocol

import anyio
import msgspec
from msgspec import Meta, Struct

from turnwire.errors import BadRequest, ConfigError, CredentialsNotStored, LimitExceeded, NotFound
from turnwire.ids import SessionId
from turnwire.runtime.clock import Clock
from turnwire.server.access.identity import Identity, Role

PREFIX = "tw"
SECRET_BYTES = 32
OPERATOR_TOKEN_ID = "given"
"""The id of the operator's own token. No other has it: ids that we make are hexadecimal."""
OPERATOR_TOKEN_LENGTH = 16
"""The least length of the operator's own token: shorter ones are guessed."""
MOST_TOKENS = 10_000
"""Each is a line of the file, and the file is written whole; a job that makes one per run is stopped here."""
LONGEST_S = 10 * 365 * 86_400
"""Ten years; for longer, let it not expire."""
RETRY_S = 1.0
"""Between two tries to write what a disk did not take; it is a small file."""

TokenName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[^\x00-\x1f\x7f]+\Z")]
"""The author of what is done with a token, as the log and the page show it."""
Lifetime = Annotated[float, Meta(gt=0, le=LONGEST_S)]
"""In seconds."""

Kind = Literal["token", "login", "share"]
"""A token is sent as a header; a login and a share link live in cookies of browsers. None passes for another."""


VERSION = 1
FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
OTHERS, OTHERS_WRITE = 0o077, 0o022

logger = logging.getLogger(__name__)


class TokenRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One credential. Of its secret only the hash is known."""

    id: str
    name: str
    role: Role
    digest: str
    """SHA-256 of the secret, in hex. 256 random bits need no salt and no slow hash."""
    created_at: int
    """Milliseconds since 1970, as `expires_at`."""
    expires_at: int | None = None
    session_id: SessionId | None = None
    kind: Kind = "token"
    granted_by: str | None = None
    """The credential that asked for this login or share link; it ends with that one."""


class Running(Protocol):
    """What runs under a credential, as a cancel scope does."""

    def cancel(self) -> None:
        """The credential has ended."""
        ...


class _Under:
    """All that runs under one credential, with one timer for its expiry."""

    def __init__(self) -> None:
        self.running: set[Running] = set()
        self._timer: asyncio.TimerHandle | None = None

    def end_at(self, moment: float) -> None:
        """Cancel all of it then, on the event loop's clock, or when that was to happen before; `inf` is never."""
        if self._timer is not None:
            if self._timer.when() <= moment < math.inf:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if moment == math.inf else loop.call_at(moment, self.cancel)

    def cancel(self, spare: Running | None = None) -> None:
        """Cancel all of it now, but for `spare`."""
        for each in [each for each in self.running if each is not spare]:
            each.cancel()


class Tokens:
    """All credentials. `Tokens.open` makes it."""

    def __init__(
        self, path: Path | None, clock: Clock, own_token: str | None, records: Iterable[TokenRecord]
    ) -> None:
        self._path = path
        self._clock = clock
        self._operator_digest = None if own_token is None else _digest(own_token)
        self._records = {each.id: each for each in records}
        self._under: dict[str, _Under] = {}
        self._unstored: set[str] = set()
        """Credentials that have ended, and the disk has not taken it."""
        self._trouble = anyio.Event()
        """What is on disk is not what holds."""
        # What an unknown id is compared with: no secret has this digest, and finding that out takes as long.
        self._nothing = secrets.token_hex(SECRET_BYTES)

    @classmethod
    def open(cls, path: Path | None, clock: Clock, own_token: str | None = None) -> tuple[Tokens, str | None]:
        """The credentials of `path`, or of memory without one.

        Without an owner's token among them or `own_token`, one is made; its secret is the second value, this once.

        Raises:
            ConfigError: The file is open to others or damaged, or `own_token` is too weak.
        """
        if own_token is not None:
            _check_own_token(own_token)
        tokens = cls(path, clock, own_token, read_records(path) if path is not None else ())
        if own_token is not None or any(each.role is Role.OWNER and each.kind == "token" for each in tokens.list()):
            return tokens, None
        try:
            _, secret = tokens.issue("owner", Role.OWNER)
        except CredentialsNotStored as error:
            raise ConfigError(
                f"cannot write {path} ({error.context['why']}); make its directory writable, or use another --data"
            ) from None
        return tokens, secret

    def issue(
        self,
        name: str,
        role: Role,
        session_id: SessionId | None = None,
        expires_in_s: float | None = None,
        *,
        kind: Kind = "token",
        granted_by: str | None = None,
    ) -> tuple[TokenRecord, str]:
        """A new credential and its secret, which nobody can ask for again. It is on disk when this returns.

        Raises:
            BadRequest: The name or the lifetime is not as documented, or an owner is bound to one session.
            LimitExceeded: There are too many; revoke some.
            CredentialsNotStored: The disk did not take it, so there is no such credential.
        """
        _check_shape(name, role, session_id, expires_in_s)
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(SECRET_BYTES)
        now = self._clock.now_ms()
        record = TokenRecord(
            id=token_id,
            name=name,
            role=role,
            digest=_digest(secret),
            created_at=now,
            expires_at=None if expires_in_s is None else now + round(expires_in_s * 1000),
            session_id=session_id,
            kind=kind,
            granted_by=granted_by,
        )
        kept = {each.id: each for each in self.list()} | {token_id: record}
        if len(kept) > MOST_TOKENS:
            raise LimitExceeded("there are too many tokens; revoke some first", limit="tokens", value=MOST_TOKENS)
        try:
            self._write(kept.values())
        except OSError as error:
            _log_trouble(error)
            raise _not_stored(
                error, "the credential was not made: the disk did not take it; make room, then try again"
            ) from None
        self._records = kept
        return record, f"{PREFIX}_{token_id}_{secret}"

    def revoke(self, token_id: str, spare: Running | None = None) -> None:
        """End a credential and all that it granted, and whatever runs under them, but for `spare`.

        Raises:
            NotFound: There is no such token.
            CredentialsNotStored: It has ended, and the disk has not taken that yet. It is tried again by itself.
        """
        gone = self._with_granted(token_id)
        if not gone and token_id not in self._unstored:
            raise NotFound("there is no such token; it was revoked, has expired, or was never made here")
        self._records = {each.id: each for each in self._records.values() if each.id not in gone}
        self._unstored |= gone
        for under in [self._under[each] for each in gone if each in self._under]:
            under.cancel(spare)
        self._store()

    def _with_granted(self, token_id: str) -> set[str]:
        """The ids of a credential and of those that it granted, also by others that it granted."""
        found = {token_id} & self._records.keys()
        while more := {each.id for each in self._records.values() if each.granted_by in found} - found:
            found |= more
        return found

    async def keep_stored(self) -> None:
        """Try again what the disk did not take, for ever."""
        while True:
            await self._trouble.wait()
            await self._clock.sleep(RETRY_S)
            with contextlib.suppress(CredentialsNotStored):
                self._store()

    def is_valid(self, identity: Identity) -> bool:
        """Whether the credential that `identity` came from still is one."""
        token_id = identity.token_id
        return token_id is None or token_id == OPERATOR_TOKEN_ID or self.find(token_id) is not None

    def list(self) -> tuple[TokenRecord, ...]:
        """Every credential that is valid now, oldest first, but for the operator's own."""
        now = self._clock.now_ms()
        return tuple(each for each in self._records.values() if not _has_expired(each, now))

    def find(self, token_id: str) -> TokenRecord | None:
        """One of `list`."""
        record = self._records.get(token_id)
        return None if record is None or _has_expired(record, self._clock.now_ms()) else record

    def check(self, secret: str, kind: Kind = "token") -> Identity | None:
        """Who presents `secret`, if it is valid. Takes as long for an unknown id as for a wrong secret."""
        is_operator = (
            hmac.compare_digest(_digest(secret), self._operator_digest or self._nothing) and kind == "token"
        )
        token_id, own = _split(secret)
        record = self._records.get(token_id)
        is_known = hmac.compare_digest(_digest(own), self._nothing if record is None else record.digest)
        if is_operator:
            return Identity("owner", Role.OWNER, None, OPERATOR_TOKEN_ID)
        if not is_known or record is None or record.kind != kind or self.find(token_id) is None:
            return None
        return Identity(record.name, record.role, record.session_id, record.id)

    @contextmanager
    def closing(self, identity: Identity) -> Generator[anyio.CancelScope]:
        """Run something under its credential: the scope is cancelled when that is revoked or expires.

        `scope.cancelled_caught` tells afterwards that this is why it ended.
        """
        with anyio.CancelScope() as scope:
            self.enter(identity, scope)
            try:
                yield scope
            finally:
                self.leave(identity, scope)

    def enter(self, identity: Identity, running: Running) -> None:
        """From now on something runs under its credential: it is cancelled when that ends, at once if it has."""
        token_id = identity.token_id
        if token_id is None or token_id == OPERATOR_TOKEN_ID:
            return
        under = self._under.setdefault(token_id, _Under())
        under.running.add(running)
        record = self.find(token_id)
        if record is None:
            running.cancel()
        elif record.expires_at is not None:
            under.end_at(anyio.current_time() + (record.expires_at - self._clock.now_ms()) / 1000)

    def leave(self, identity: Identity, running: Running) -> None:
        """It runs no more."""
        under = self._under.get(identity.token_id or "")
        if under is not None:
            under.running.discard(running)
            if not under.running:
                under.end_at(math.inf)
                del self._under[identity.token_id or ""]

    def _store(self) -> None:
        """Bring what holds to the disk. Raises `CredentialsNotStored`; then it is tried again."""
        try:
            try:
                self._write(self.list())
            except OSError as error:
                self._forget(error)
        except OSError as error:
            if not self._trouble.is_set():
                _log_trouble(error)
            self._trouble.set()
            raise _not_stored(
                error,
                "the credential has ended; the disk does not take it yet, and it is tried again until it does",
            ) from None
        self._unstored.clear()
        if self._trouble.is_set():
            logger.info("credentials are written again", extra={"event": "credentials_stored"})
            self._trouble = anyio.Event()

    def _forget(self, error: OSError) -> None:
        """Take from the disk what has ended, with no room there. Raises `error` if the rest went with it."""
        assert self._path is not None, "without a file no write fails"
        try:
            overwrite_records(self._path, self.list())
        except OSError:
            # Who knows whether a part of it was written; and a restart must not find who was revoked.
            self._path.unlink(missing_ok=True)
            raise error from None

    def _write(self, records: Iterable[TokenRecord]) -> None:
        if self._path is not None:
            write_records(self._path, records)


def _not_stored(error: OSError, message: str) -> CredentialsNotStored:
    return CredentialsNotStored(message, why=_why(error))


def _log_trouble(error: OSError) -> None:
    extra = {"event": "credentials_not_stored", "why": _why(error)}
    logger.error("credentials were not written: %s", _why(error), extra=extra)


def _why(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _split(secret: str) -> tuple[str, str]:
    """The id and the secret proper of `tw_<id>_<secret>`; of anything else, an id that nobody has."""
    prefix, _, rest = secret.partition("_")
    token_id, _, own = rest.partition("_")
    return (token_id, own) if prefix == PREFIX else ("", secret)


def _has_expired(record: TokenRecord, now_ms: int) -> bool:
    return record.expires_at is not None and record.expires_at <= now_ms


def _check_own_token(own_token: str) -> None:
    if len(own_token) < OPERATOR_TOKEN_LENGTH:
        raise ConfigError(
            f"the token is too short; give at least {OPERATOR_TOKEN_LENGTH} characters that nobody guesses"
        )
    if not all("!" <= each <= "~" for each in own_token):
        raise ConfigError("the token does not fit into a header; use letters, digits and signs, without spaces")


def _check_shape(name: str, role: Role, session_id: SessionId | None, expires_in_s: float | None) -> None:
    try:
        msgspec.convert(name, TokenName)
    except msgspec.ValidationError:
        raise BadRequest("a token's name is 1 to 64 characters, none of them a control character") from None
    if expires_in_s is not None and not 0 < expires_in_s <= LONGEST_S:
        raise BadRequest(f"a token's lifetime is more than 0 and at most {LONGEST_S} seconds")
    if role is Role.OWNER and session_id is not None:
        # An owner makes tokens for every session, so this one would be bound to nothing.
        raise BadRequest("an owner is not bound to a session; choose the role controller or observer")


# -- the file ------------------------------------------------------------------------------------------------


class _Stored(Struct):
    version: int
    tokens: list[TokenRecord]


def read_records(path: Path) -> list[TokenRecord]:
    """What is stored; nothing when there is no file yet.

    Raises:
        ConfigError: The file or its directory is open to others, is not ours, or cannot be read.
    """
    try:
        _check_directory(path.parent)
        with path.open("rb") as file:
            _check_file(path, os.fstat(file.fileno()))
            content = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({type(error).__name__}); check its permissions") from None
    return _decode(path, content)


def write_records(path: Path, records: Iterable[TokenRecord]) -> None:
    """Replace the file. Once this returns, the records outlive a crash; if it raises, the old file is there."""
    write_private(path, msgspec.json.format(msgspec.json.encode(_Stored(VERSION, list(records))), indent=2))


def overwrite_records(path: Path, records: Iterable[TokenRecord]) -> None:
    """Write the records over what is in the file, which must be no shorter. Takes no room from the disk."""
    content = msgspec.json.encode(_Stored(VERSION, list(records)))
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if len(content) > size:
            raise OSError(errno.ENOSPC, "the file is too short")
        file.write(content.ljust(size))
        file.flush()
        os.fsync(file.fileno())


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that only its owner may read; a reader finds the old content or the new one, never a part."""
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(number, "wb") as file:
            os.fchmod(number, FILE_MODE)
            file.write(content)
            file.flush()
            os.fsync(number)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _check_directory(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & OTHERS_WRITE and not mode & stat.S_ISVTX:
        raise ConfigError(
            f"others may write in {path}, where the tokens are kept; close it to them: chmod 700 {path}"
        )


def _check_file(path: Path, found: os.stat_result) -> None:
    if found.st_mode & OTHERS:
        raise ConfigError(f"others may read {path}, which holds the tokens; close it to them: chmod 600 {path}")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to another user; start as that user, or use another data directory")


def _decode(path: Path, content: bytes) -> list[TokenRecord]:
    try:
        stored = msgspec.json.decode(content, type=_Stored)
    except (msgspec.DecodeError, RecursionError):
        raise ConfigError(
            f"{path} is damaged; restore it from a backup, or remove it to start with a new owner token"
        ) from None
    if stored.version > VERSION:
        raise ConfigError(f"{path} was written by a newer turnwire; use that one, or another data directory")
    return stored.tokens
