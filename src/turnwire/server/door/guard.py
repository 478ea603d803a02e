"""Who gets in: the one door in front of every route and every upgrade.

Takes an ASGI application and its route table; gives one that refuses, in this order: too large headers, a secret in
the URL, a host that is not ours, a page of an origin that is not allowed, a missing or wrong credential, and too
many requests. What passes has an `Identity` in its scope. Never wraps what is sent, but for pages of other origins
that are allowed: a stream to anybody else costs nothing here.

Browsers send a request wherever a page tells them to. So `Host` is checked against rebinding, `Origin` and
`Sec-Fetch-Site` against pages of others, and a cookie alone changes nothing unless the browser says that our own
page, or an allowed one, asks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwire.errors import Forbidden, TooManyRequests, TurnwireError, Unauthenticated
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.runtime.clock import Clock
from turnwire.server.door.asking import Asked, cookie_of, read_asked
from turnwire.server.door.audit import READING
from turnwire.server.door.identity import ANYBODY, Identity, Role
from turnwire.server.door.login import cookie_name
from turnwire.server.door.origins import Policy, origin_of, parse_origin
from turnwire.server.door.rates import failure_buckets, network_of, request_buckets
from turnwire.server.door.tokens import GIVEN_ID, Tokens
from turnwire.server.endpoint import IDENTITY, Endpoint
from turnwire.server.refusals import problem_of
from turnwire.server.settings.declared import Settings

STRANGER = Identity("stranger", Role.OBSERVER, SessionId(""))
"""Who calls a public route: somebody who may touch no session."""

OWN_SITES = frozenset({"same-origin", "none"})
"""What `Sec-Fetch-Site` says of our own page and of an address that a person typed."""

POLICY_VIOLATION = 1008
"""The code that closes a socket which was never opened."""

_PREFLIGHT: dict[str, str] = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PATCH, PUT, DELETE",
    "Access-Control-Allow-Headers": "Acp-Connection-Id, Acp-Protocol-Version, Acp-Session-Id, Authorization,"
    " Content-Type, Idempotency-Key, Last-Event-ID, Prefer, Turnwire-Client-Id, Turnwire-Epoch, X-Qwen-Client-Id,"
    " X-Qwen-Event-Epoch",
    "Access-Control-Max-Age": "600",
}

logger = logging.getLogger("turnwire.audit")


class Guarded(Protocol):
    """What the guard needs of a daemon."""

    @property
    def tokens(self) -> Tokens: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def clock(self) -> Clock: ...


class Guard:
    """The door."""

    def __init__(self, app: ASGIApp, parts: Guarded, endpoints: Iterable[Endpoint]) -> None:
        """Routes of `endpoints` without a role need no credential; whatever else there is does.

        Raises:
            ConfigError: A host or an origin of the settings is none.
        """
        settings, limits = parts.settings, parts.limits
        self._app = app
        self._policy = Policy.of(
            settings.host, hosts=settings.allow_host, origins=settings.allow_origin, no_auth=settings.no_auth
        )
        self._tokens = parts.tokens
        self._header_bytes = limits.header_bytes
        self._public = [(each.method, compile_path(each.path)[0]) for each in endpoints if each.role is None]
        self._requests = request_buckets(parts.clock, limits.request_rate)
        self._failures = failure_buckets(parts.clock, limits.failed_logins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        shared: Mapping[str, str] = {}
        try:
            asked = read_asked(scope, self._header_bytes)
            shared = self._check_origin(asked)
            if shared and asked.preflight is not None and asked.method == "OPTIONS":
                await _answer(scope, receive, send, 204, shared | _PREFLIGHT, b"")
                return
            scope[IDENTITY] = self._identify(asked)
        except TurnwireError as error:
            await refuse_entry(scope, receive, send, error, shared)
            return
        await self._app(scope, receive, _sharing(send, shared) if shared else send)

    def _check_origin(self, asked: Asked) -> dict[str, str]:
        """Refuse what another page sent. Gives the headers that let an allowed one read the answer."""
        if not self._policy.knows(asked.host):
            raise Forbidden("this host name is not the daemon's; use its address, or allow the name at its start")
        if asked.origin is None:
            if asked.site not in (None, *OWN_SITES) and not self._is_opened(asked):
                raise Forbidden("a page of another site sent this; allow its origin with --allow-origin")
            return {}
        origin = parse_origin(asked.origin)
        if origin in self._policy.origins:
            return {
                "Access-Control-Allow-Origin": asked.origin,
                "Access-Control-Allow-Credentials": "true",
                "Access-Control-Expose-Headers": "Acp-Connection-Id, Turnwire-Epoch, X-Qwen-Event-Epoch, Location,"
                " Retry-After",
                "Vary": "Origin",
            }
        if origin != origin_of(asked.scheme, asked.host) or asked.site not in (None, *OWN_SITES):
            raise Forbidden("a page of another origin sent this; allow it with --allow-origin")
        return {}

    def _is_public(self, asked: Asked) -> bool:
        method = "GET" if asked.method == "HEAD" else asked.method
        return any(method == each and pattern.match(asked.path) for each, pattern in self._public)

    def _is_opened(self, asked: Asked) -> bool:
        """A link on some page leads to a page of ours that says nothing to strangers: the login, for example."""
        return asked.is_navigation and self._is_public(asked) and asked.method in READING

    def _identify(self, asked: Asked) -> Identity:
        if self._policy.no_auth:
            who = ANYBODY
        elif self._is_public(asked):
            who = STRANGER
        else:
            who = self._authenticate(asked)
        wait = self._requests.take(who.token_id or f"@{network_of(asked.address)}")
        if wait:
            raise TooManyRequests("too many requests; ask less often", retry_after=math.ceil(wait))
        return who

    def _authenticate(self, asked: Asked) -> Identity:
        if asked.authorization is not None:
            scheme, _, secret = asked.authorization.partition(" ")
            found = self._tokens.check(secret.strip()) if scheme.lower() == "bearer" else None
        else:
            secret = cookie_of(asked.cookies, cookie_name(asked.host))
            if secret is None:
                raise Unauthenticated("this needs a credential; send `Authorization: Bearer …`")
            found = self._tokens.check(secret, "login")
            if found is not None:
                _check_own_page(asked)
        if found is None or found.token_id == GIVEN_ID:
            # Only what a person chose can be guessed, so a token of ours works from an address that fails a lot.
            self._count_failure(asked, failed=found is None)
        if found is None:
            raise Unauthenticated("this credential is not valid; it was mistyped, was revoked, or has expired")
        return found

    def _count_failure(self, asked: Asked, *, failed: bool) -> None:
        network = network_of(asked.address)
        wait = self._failures.take(network) if failed else self._failures.wait(network)
        if wait:
            raise TooManyRequests(
                "too many wrong credentials came from this address; wait a moment", retry_after=math.ceil(wait)
            )
        if failed:
            extra = {"event": "credential_refused", "address": asked.address, "method": asked.method}
            logger.warning("a credential was refused", extra=extra)


def _check_own_page(asked: Asked) -> None:
    """A browser adds the cookie to whatever it sends; a change must come from a page with a known origin."""
    if asked.method not in READING and asked.origin is None and asked.site != "same-origin":
        raise Forbidden("a cookie alone changes nothing; send it from the page, or use a token")


def _sharing(send: Send, shared: Mapping[str, str]) -> Send:
    extra = _raw(shared)

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sending


async def refuse_entry(
    scope: Scope, receive: Receive, send: Send, error: TurnwireError, shared: Mapping[str, str] = {}
) -> None:
    """Answer a request, or an upgrade that nobody has taken, with a refusal."""
    status, headers, body = problem_of(error)
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    headers |= {"Content-Type": "application/problem+json", **shared}
    await _answer(scope, receive, send, status, headers, msgspec.json.encode(body))


async def _answer(
    scope: Scope, receive: Receive, send: Send, status: int, headers: Mapping[str, str], body: bytes
) -> None:
    raw = [*_raw(headers), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    if status != 204:
        raw.append((b"content-length", str(len(body)).encode()))
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()
        kind = "websocket.http.response"
        if kind not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
    await send({"type": f"{kind}.start", "status": status, "headers": raw})
    await send({"type": f"{kind}.body", "body": body})


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
