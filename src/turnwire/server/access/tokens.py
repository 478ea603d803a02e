"""The credentials of a daemon: issuing, checking, listing and revoking them, and ending work under them.

A secret is shown once, when it is issued; only its SHA-256 is stored. The operator's token is not stored, and
callers never learn why a credential is invalid. The end of a credential, whether revoked or expired, is one event
(`closing`): every request, stream, socket and connection runs under it.

Issuing stores first: a token that was shown is valid after a crash. Revoking ends the work first, and storing
follows; a failure to store is reported (`CredentialsNotStored`) and retried until it succeeds. Storage belongs to
the store: `turnwire.server.access.token_file` for one daemon, `token_table` for all nodes of a database.

An `Identity` is what a credential states: a name, a role, and possibly one session. Routes check it before they
act, and the log records it as the author. It never comes from a body or a query: the access middleware sets it from
the credential alone. A request or a message that may change something is recorded with it (`audit`), without a
body, a query or a secret: the record has the route's template and the credential's id.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import secrets
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, Protocol

import anyio
import msgspec
from msgspec import Meta, Struct

from turnwire.clock import Clock, KnownTime
from turnwire.errors import BadRequest, ConfigError, LimitExceeded, NotFound
from turnwire.ids import SessionId
from turnwire.log.rules import is_session_id

logger = logging.getLogger("turnwire.audit")


# -- identities ----------------------------------------------------------------------------------------------

READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
NAME_LENGTH = 64
"""Maximum length of a method in a record, since a client may send any name."""
IDENTITY = "turnwire.identity"
"""The key in the ASGI scope where the access middleware stores the caller's identity."""


class Role(StrEnum):
    """The permissions of a credential. Each role includes those before it."""

    OBSERVER = "observer"
    """May read."""
    CONTROLLER = "controller"
    """May prompt, answer, cancel, settle, and change the queue and the agent's settings."""
    OWNER = "owner"
    """May create and revoke credentials; the role of the token of the first start."""

    def covers(self, needed: Role) -> bool:
        """Return whether this role includes the permissions of `needed`."""
        return _RANK[self] >= _RANK[needed]


_RANK = {Role.OBSERVER: 0, Role.CONTROLLER: 1, Role.OWNER: 2}


class Identity(NamedTuple):
    """The holder of a credential."""

    name: str
    """The author of the holder's actions, as recorded in the log."""
    role: Role
    session_id: SessionId | None = None
    """The only session that the holder may access; None for all."""
    token_id: str | None = None
    """The credential's id; None when the daemon runs without credentials."""

    def may_touch(self, session_id: SessionId) -> bool:
        return self.session_id is None or self.session_id == session_id


ANYBODY = Identity("anybody", Role.OWNER)
"""The identity of every caller when the daemon runs without credentials."""


def audit(
    identity: Identity,
    method: str,
    path: str,
    status: int,
    address: str | None,
    session_id: SessionId | None = None,
    skipped: int = 0,
) -> None:
    """Record one request, and the number of similar requests that were `skipped` before.

    `path` is the route's template, such as `/session/{session_id}/prompt`. A message of ACP is recorded with its
    own method, such as `session/prompt`, and the status that its response would have over HTTP.
    """
    if method in READING:
        return
    method = method[:NAME_LENGTH]
    logger.info(
        "%s %s %d",
        method,
        path,
        status,
        extra={
            "event": "audit",
            "who": identity.name,
            "role": identity.role.value,
            "token_id": identity.token_id,
            "method": method,
            "route": path,
            "session_id": session_id,
            "status": status,
            "address": address,
            **({"skipped": skipped} if skipped else {}),
        },
    )


# -- credentials ---------------------------------------------------------------------------------------------

PREFIX = "tw"
ID_BYTES, SECRET_BYTES = 6, 32
OPERATOR_TOKEN_ID = "given"
"""The id of the operator's token. No other token has it, because generated ids are hexadecimal."""
OPERATOR_TOKEN_LENGTH = 16
"""The minimum length of the operator's token: shorter ones can be guessed."""
MOST_TOKENS = 10_000
"""Maximum number of tokens. Each is a line of a file that is written as a whole, or a row; the limit stops a job
that creates one per run.
"""
LONGEST_S = 10 * 365 * 86_400
"""Ten years; for longer, use a token that does not expire."""

TokenName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[^\x00-\x1f\x7f]+\Z")]
"""The author of a token's actions, as the log and the page show it."""
Lifetime = Annotated[float, Meta(gt=0, le=LONGEST_S)]
"""In seconds."""

Kind = Literal["token", "login", "share"]
"""The kind of a credential. A token is sent in a header; a login and a share link are stored in cookies of
browsers. One kind is never accepted as another.
"""


class TokenRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A credential. Only the hash of its secret is stored."""

    id: str
    name: str
    role: Role
    digest: str
    """SHA-256 of the secret, in hex. 256 random bits need no salt and no slow hash."""
    created_at: int
    """Milliseconds since 1970, like `expires_at`."""
    expires_at: int | None = None
    session_id: SessionId | None = None
    kind: Kind = "token"
    granted_by: str | None = None
    """The credential that requested this login or share link; it ends with that one."""


class Running(Protocol):
    """Work that runs under a credential, such as a cancel scope."""

    def cancel(self) -> None:
        """Stop the work, because the credential has ended."""
        ...


class _Under:
    """All work under one credential, with one timer for its expiry."""

    def __init__(self) -> None:
        self.running: set[Running] = set()
        self._timer: asyncio.TimerHandle | None = None

    def end_at(self, moment: float) -> None:
        """Cancel all work at this time of the loop's clock, or earlier if already scheduled; `inf`: never."""
        if self._timer is not None:
            if self._timer.when() <= moment < math.inf:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if moment == math.inf else loop.call_at(moment, self.cancel)

    def cancel(self, spare: Running | None = None) -> None:
        """Cancel all work now, except `spare`."""
        for each in [each for each in self.running if each is not spare]:
            each.cancel()


class TokenStore(Protocol):
    """Storage of credentials. May still contain expired ones."""

    def known(self, token_id: str) -> TokenRecord | None:
        """Return a credential found or stored on this node that, as far as it knows, has not ended."""
        ...

    async def find(self, token_id: str) -> TokenRecord | None:
        """Return a credential, wherever it is stored. Raises `LogError` if the lookup fails."""
        ...

    async def all(self) -> Sequence[TokenRecord]:
        """Return all credentials, oldest first. Raises `LogError`."""
        ...

    async def add(self, record: TokenRecord, most: int) -> bool:
        """Store a credential, unless there are `most`.

        Raises `CredentialsNotStored`; the credential is then not valid.
        """
        ...

    async def add_first(self, record: TokenRecord) -> bool:
        """Store an owner's token if there is none; return whether stored. Raises `ConfigError`, `LogError`."""
        ...

    def forget(self, token_id: str) -> set[str]:
        """End a credential and those that it granted, as far as they are known on this node. Return their ids."""
        ...

    async def remove(self, token_id: str) -> set[str]:
        """Store the end of a credential and of those that it granted. Return the ids of those that existed.

        Raises `CredentialsNotStored`; storing is then retried until it succeeds.
        """
        ...

    async def run(self, ended: Callable[[Collection[str]], None]) -> None:
        """Store pending changes, and report credentials that ended elsewhere. Runs until cancelled."""
        ...


class Tokens:
    """All credentials. Created by `Tokens.open`; `run` must be running."""

    def __init__(self, store: TokenStore, clock: Clock, own_token: str | None) -> None:
        """Raises `ConfigError` if `own_token` is too weak."""
        if own_token is not None:
            _check_own_token(own_token)
        self._store = store
        self._time = KnownTime(clock)
        self._operator_digest = None if own_token is None else _digest(own_token)
        self._under: dict[str, _Under] = {}
        # Compared with the secret of an unknown id: no secret has this digest, and the comparison needs the same
        # time.
        self._nothing = secrets.token_hex(SECRET_BYTES)

    @classmethod
    async def open(cls, store: TokenStore, clock: Clock, own_token: str | None = None) -> tuple[Tokens, str | None]:
        """Open the credentials of a store.

        Without an owner's token in the store or `own_token`, one is created; only this call returns its secret, as
        the second value.

        Raises:
            ConfigError: `own_token` is too weak, or the first token cannot be stored.
            LogError: The database is unavailable.
        """
        tokens = cls(store, clock, own_token)
        if own_token is not None:
            return tokens, None
        record, secret = tokens._make("owner", Role.OWNER)
        return tokens, secret if await store.add_first(record) else None

    def now_ms(self) -> int:
        """Return the time by which credentials expire. It never runs backwards."""
        return self._time.now_ms()

    async def run(self) -> None:
        """Synchronize the store and the running work. Runs until cancelled."""
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
        """Create and store a credential; return it with its secret, which cannot be retrieved again.

        Raises:
            BadRequest: The name or the lifetime is not as documented, or an owner is bound to one session.
            LimitExceeded: There are too many credentials; revoke some.
            CredentialsNotStored: It could not be stored, so the credential does not exist.
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
        now = self._time.now_ms()
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
        """End a credential, all that it granted, and all work under them except `spare`.

        Raises:
            NotFound: The token does not exist.
            CredentialsNotStored: It has ended, but that is not stored yet. Storing is retried automatically.
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
        """Return whether the credential of `identity` is still valid, as far as this node knows."""
        token_id = identity.token_id
        return token_id is None or token_id == OPERATOR_TOKEN_ID or self._known(token_id) is not None

    async def recall(self, identity: Identity) -> bool:
        """Return whether an identity checked by another node is valid; its credential is then known here.

        Raises `LogError`.
        """
        if identity.token_id is not None and identity.token_id != OPERATOR_TOKEN_ID:
            await self._store.find(identity.token_id)
        return self.is_valid(identity)

    async def list(self) -> tuple[TokenRecord, ...]:
        """Return all valid credentials, oldest first, except the operator's. Raises `LogError`."""
        now = self._time.now_ms()
        return tuple(each for each in await self._store.all() if not has_expired(each, now))

    async def find(self, token_id: str) -> TokenRecord | None:
        """Return one credential of `list`. Raises `LogError`."""
        return self._unexpired(await self._store.find(token_id))

    async def check(self, secret: str, *kinds: Kind) -> Identity | None:
        """Return the identity for `secret` if it is valid and one of `kinds`, by default a token.

        For credentials known on this node, an unknown id and a wrong secret take the same time; an id is not a
        secret. Raises `LogError` if a credential is not known on this node and cannot be looked up.
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
        return None if record is None or has_expired(record, self._time.now_ms()) else record

    @contextmanager
    def closing(self, identity: Identity) -> Generator[anyio.CancelScope]:
        """Run the body under its credential: the scope is cancelled when the credential is revoked or expires.

        Afterwards `scope.cancelled_caught` is true if it ended for this reason.
        """
        with anyio.CancelScope() as scope:
            self.enter(identity, scope)
            try:
                yield scope
            finally:
                self.leave(identity, scope)

    def enter(self, identity: Identity, running: Running) -> None:
        """Register work under its credential: it is cancelled when that ends, at once if it has ended."""
        token_id = identity.token_id
        if token_id is None or token_id == OPERATOR_TOKEN_ID:
            return
        under = self._under.setdefault(token_id, _Under())
        under.running.add(running)
        record = self._known(token_id)
        if record is None:
            running.cancel()
        elif record.expires_at is not None:
            under.end_at(anyio.current_time() + (record.expires_at - self._time.now_ms()) / 1000)

    @property
    def are_in_use(self) -> bool:
        """True if a client is connected: a stream, socket or ACP connection is open under a stored token."""
        return bool(self._under)

    def leave(self, identity: Identity, running: Running) -> None:
        """Unregister the work."""
        under = self._under.get(identity.token_id or "")
        if under is not None:
            under.running.discard(running)
            if not under.running:
                under.end_at(math.inf)
                del self._under[identity.token_id or ""]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _split(secret: str) -> tuple[str, str]:
    """Return the id and the secret part of `tw_<id>_<secret>`; for anything else, an id that does not exist."""
    prefix, _, rest = secret.partition("_")
    token_id, _, own = rest.partition("_")
    return (token_id, own) if prefix == PREFIX else ("", secret)


def has_expired(record: TokenRecord, now_ms: int) -> bool:
    """Return whether the credential has expired."""
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
        # An owner can issue tokens for every session, so the binding would have no effect.
        raise BadRequest("an owner is not bound to a session; choose the role controller or observer")
    if session_id is not None and not is_session_id(session_id):
        raise BadRequest("the session id is none: it is empty, or has a NUL or half a character in it")
