"""The credentials of a daemon: made, checked, listed and revoked, and what runs under each of them.

A secret is shown once, when it is made; what stays is its SHA-256. The token that the operator gave is not stored,
and nobody is told why a credential is not valid. The end of a credential, revoked or expired, is one event
(`closing`): every request, stream, socket and connection runs under it.

Issuing stores first: a token that was shown is valid after a crash. Revoking cuts first, and what is stored
follows; what could not be is told (`CredentialsNotStored`) and tried again until it is. Where they are kept is the
store's: `turnwire.server.access.token_file` for one daemon, `token_table` for all nodes of a database.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Literal, Protocol

import anyio
import msgspec
from msgspec import Meta, Struct

from turnwire.errors import BadRequest, ConfigError, LimitExceeded, NotFound
from turnwire.ids import SessionId
from turnwire.log.rules import is_session_id
from turnwire.runtime.clock import Clock
from turnwire.server.access.identity import Identity, Role

PREFIX = "tw"
ID_BYTES, SECRET_BYTES = 6, 32
OPERATOR_TOKEN_ID = "given"
"""The id of the operator's own token. No other has it: ids that we make are hexadecimal."""
OPERATOR_TOKEN_LENGTH = 16
"""The least length of the operator's own token: shorter ones are guessed."""
MOST_TOKENS = 10_000
"""Each is a line of a file that is written whole, or a row; a job that makes one per run is stopped here."""
LONGEST_S = 10 * 365 * 86_400
"""Ten years; for longer, let it not expire."""

TokenName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[^\x00-\x1f\x7f]+\Z")]
"""The author of what is done with a token, as the log and the page show it."""
Lifetime = Annotated[float, Meta(gt=0, le=LONGEST_S)]
"""In seconds."""

Kind = Literal["token", "login", "share"]
"""A token is sent as a header; a login and a share link live in cookies of browsers. None passes for another."""


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


class TokenStore(Protocol):
    """Where credentials are kept. Expired ones may still be there."""

    def known(self, token_id: str) -> TokenRecord | None:
        """A credential that was found or kept here and has not ended since, as far as is known here."""
        ...

    async def find(self, token_id: str) -> TokenRecord | None:
        """A credential, wherever it is kept. Raises `LogError` if that cannot be told."""
        ...

    async def all(self) -> Sequence[TokenRecord]:
        """Every one, oldest first. Raises `LogError`."""
        ...

    async def add(self, record: TokenRecord, most: int) -> bool:
        """Keep one more, unless there are `most`. Raises `CredentialsNotStored`; then nobody gets in by it."""
        ...

    async def add_first(self, record: TokenRecord) -> bool:
        """Keep an owner's token if there is none; whether it was kept. Raises `ConfigError`, `LogError`."""
        ...

    def forget(self, token_id: str) -> set[str]:
        """End one, and what it granted, as far as they are known here. Gives their ids."""
        ...

    async def remove(self, token_id: str) -> set[str]:
        """Bring its end, and that of what it granted, to where they are kept. Gives the ids of those that were.

        Raises `CredentialsNotStored`; then it is tried again until it is done.
        """
        ...

    async def run(self, ended: Callable[[Collection[str]], None]) -> None:
        """Bring what is owed to where it is kept, and tell what has ended elsewhere; for ever."""
        ...


class Tokens:
    """All credentials. `Tokens.open` makes it; `run` has to run."""

    def __init__(self, store: TokenStore, clock: Clock, own_token: str | None) -> None:
        """Raises `ConfigError` if `own_token` is too weak."""
        if own_token is not None:
            _check_own_token(own_token)
        self._store = store
        self._clock = clock
        self._operator_digest = None if own_token is None else _digest(own_token)
        self._under: dict[str, _Under] = {}
        # What an unknown id is compared with: no secret has this digest, and finding that out takes as long.
        self._nothing = secrets.token_hex(SECRET_BYTES)

    @classmethod
    async def open(cls, store: TokenStore, clock: Clock, own_token: str | None = None) -> tuple[Tokens, str | None]:
        """The credentials of a store.

        Without an owner's token among them or `own_token`, one is made; its secret is the second value, this once.

        Raises:
            ConfigError: `own_token` is too weak, or the first token cannot be kept.
            LogError: The database is away.
        """
        tokens = cls(store, clock, own_token)
        if own_token is not None:
            return tokens, None
        record, secret = tokens._make("owner", Role.OWNER)
        return tokens, secret if await store.add_first(record) else None

    async def run(self) -> None:
        """Keep what is stored and what runs true to each other, for ever."""
        await self._store.run(self._cut)

    async def issue(
        self,
        name: str,
        role: Role,
        session_id: SessionId | None = None,
        expires_in_s: float | None = None,
        *,
        kind: Kind = "token",
        granted_by: str | None = None,
    ) -> tuple[TokenRecord, str]:
        """A new credential and its secret, which nobody can ask for again. It is stored when this returns.

        Raises:
            BadRequest: The name or the lifetime is not as documented, or an owner is bound to one session.
            LimitExceeded: There are too many; revoke some.
            CredentialsNotStored: It could not be stored, so there is no such credential.
        """
        _check_shape(name, role, session_id, expires_in_s)
        record, secret = self._make(name, role, session_id, expires_in_s, kind, granted_by)
        if not await self._store.add(record, MOST_TOKENS):
            raise LimitExceeded("there are too many tokens; revoke some first", limit="tokens", value=MOST_TOKENS)
        return record, secret

    def _make(
        self,
        name: str,
        role: Role,
        session_id: SessionId | None = None,
        expires_in_s: float | None = None,
        kind: Kind = "token",
        granted_by: str | None = None,
    ) -> tuple[TokenRecord, str]:
        token_id, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
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
        return record, f"{PREFIX}_{token_id}_{secret}"

    async def revoke(self, token_id: str, spare: Running | None = None) -> None:
        """End a credential and all that it granted, and whatever runs under them, but for `spare`.

        Raises:
            NotFound: There is no such token.
            CredentialsNotStored: It has ended, and that is not stored yet. It is tried again by itself.
        """
        here = self._store.forget(token_id)
        self._cut(here, spare)
        there = await self._store.remove(token_id)
        self._cut(there - here, spare)
        if not here | there:
            raise NotFound("there is no such token; it was revoked, has expired, or was never made here")

    def _cut(self, ended: Collection[str], spare: Running | None = None) -> None:
        for under in [self._under[each] for each in ended if each in self._under]:
            under.cancel(spare)

    def is_valid(self, identity: Identity) -> bool:
        """Whether the credential that `identity` came from still is one, as far as is known here."""
        token_id = identity.token_id
        return token_id is None or token_id == OPERATOR_TOKEN_ID or self._known(token_id) is not None

    async def recall(self, identity: Identity) -> bool:
        """The same of an identity that another node has met. From now on its credential is known here too.

        Raises `LogError`.
        """
        if identity.token_id is not None and identity.token_id != OPERATOR_TOKEN_ID:
            await self._store.find(identity.token_id)
        return self.is_valid(identity)

    async def list(self) -> tuple[TokenRecord, ...]:
        """Every credential that is valid now, oldest first, but for the operator's own. Raises `LogError`."""
        now = self._clock.now_ms()
        return tuple(each for each in await self._store.all() if not has_expired(each, now))

    async def find(self, token_id: str) -> TokenRecord | None:
        """One of `list`. Raises `LogError`."""
        return self._unexpired(await self._store.find(token_id))

    async def check(self, secret: str, *kinds: Kind) -> Identity | None:
        """Who presents `secret`, if it is valid and one of `kinds`: a token, if nothing is said.

        What is known here is compared in the same time, whether its id is unknown or its secret wrong; an id is no
        secret. Raises `LogError` if a credential is not known here and cannot be looked up.
        """
        kinds = kinds or ("token",)
        is_operator = hmac.compare_digest(_digest(secret), self._operator_digest or self._nothing)
        if is_operator and "token" in kinds:
            return Identity("owner", Role.OWNER, None, OPERATOR_TOKEN_ID)
        token_id, own = _split(secret)
        record = await self._store.find(token_id)
        is_known = hmac.compare_digest(_digest(own), self._nothing if record is None else record.digest)
        if not is_known or record is None or record.kind not in kinds or self._unexpired(record) is None:
            return None
        return Identity(record.name, record.role, record.session_id, record.id)

    def _known(self, token_id: str) -> TokenRecord | None:
        return self._unexpired(self._store.known(token_id))

    def _unexpired(self, record: TokenRecord | None) -> TokenRecord | None:
        return None if record is None or has_expired(record, self._clock.now_ms()) else record

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
        record = self._known(token_id)
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


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _split(secret: str) -> tuple[str, str]:
    """The id and the secret proper of `tw_<id>_<secret>`; of anything else, an id that nobody has."""
    prefix, _, rest = secret.partition("_")
    token_id, _, own = rest.partition("_")
    return (token_id, own) if prefix == PREFIX else ("", secret)


def has_expired(record: TokenRecord, now_ms: int) -> bool:
    """Whether its time is over."""
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
    if session_id is not None and not is_session_id(session_id):
        raise BadRequest("the session id is none: it is empty, or has a NUL or half a character in it")
