"""Access control in front of every route and every upgrade.

It rejects, in this order: headers that are too large, a secret in the URL, a host that is not ours, a page of an
origin that is not allowed, a missing or wrong credential, and too many requests. A request that passes has an
`Identity` in its scope. A stream costs nothing here: `send` is wrapped only for allowed pages of other origins.

Browsers send a request wherever a page directs them. So `Host` is checked against rebinding, `Origin` and
`Sec-Fetch-Site` against foreign pages, and a cookie alone changes nothing unless the browser states that our own
page, or an allowed one, sent the request. No header replaces another: a header that may occur only once is rejected
if it occurs twice.

Requests are limited per caller: a credential, or an address without one. Callers with wrong credentials are slowed
by their address; callers with a valid one never are, wherever they come from: strangers at the same address, or
behind the same proxy, lock no one out.
"""

from __future__ import annotations

import logging
import math
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwire.clock import Clock
from turnwire.errors import BadRequest, Forbidden, HeadersTooLarge, TooManyRequests, TurnwireError, Unauthenticated
from turnwire.ids import SessionId
from turnwire.runtime.node import mark_asyncio
from turnwire.server.access.login import KEY_PROTOCOL, PAGE_KEY, cookie_name
from turnwire.server.access.origins import (
    BrowserPolicy,
    Host,
    Proxies,
    network_of,
    origin_of,
    parse_host,
    parse_origin,
)
from turnwire.server.access.tokens import ANYBODY, IDENTITY, READING, Identity, Role, Tokens
from turnwire.server.refusals import answer_entry, raw_headers, refuse_entry

# -- rates ---------------------------------------------------------------------------------------------------

MOST_KEYS = 10_000
"""Maximum number of callers remembered, some hundred bytes each."""
MINUTE_S = 60.0
LINES_A_MINUTE = 60.0

logger = logging.getLogger("turnwire.audit")


class _Bucket(NamedTuple):
    left: float
    at: float


class Buckets:
    """A token bucket per key: `per_s` requests a second on average, with bursts of up to `burst`.

    Memory is bounded: the keys that were idle for the longest are forgotten first.
    """

    def __init__(self, clock: Clock, *, per_s: float, burst: float, keys: int = MOST_KEYS) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = burst
        self._keys = keys
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str) -> float:
        """Consume one token and return 0, or consume nothing and return the seconds until one is free."""
        now = self._clock.monotonic()
        left = self._left(key, now)
        if left < 1:
            return (1 - left) / self._per_s
        self._buckets[key] = _Bucket(left - 1, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        return 0.0

    def _left(self, key: str, now: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return self._burst
        return min(self._burst, bucket.left + (now - bucket.at) * self._per_s)


def caller_of(who: Identity, address: str | None) -> str:
    """Return the key of a caller: its credential, or its network if it has none."""
    return who.token_id or f"@{network_of(address or '')}"


def request_buckets(clock: Clock, per_s: float) -> Buckets:
    """Return buckets that allow a second's worth of requests at once."""
    return Buckets(clock, per_s=per_s, burst=max(1.0, per_s))


class Failures:
    """Counter of wrong credentials by source address. A minute's worth may come at once."""

    def __init__(self, clock: Clock, per_minute: int) -> None:
        self._buckets = Buckets(clock, per_s=per_minute / MINUTE_S, burst=float(per_minute))

    def count(self, address: str | None, method: str) -> None:
        """Count one wrong credential. Raises `TooManyRequests` beyond the limit; these are not logged."""
        wait = self._buckets.take(network_of(address or ""))
        if wait:
            raise TooManyRequests(
                "too many wrong credentials came from this address; wait a moment", retry_after=math.ceil(wait)
            )
        extra = {"event": "credential_refused", "address": address, "method": method}
        logger.warning("a credential was refused", extra=extra)


class LogLimit:
    """Rate limit for log lines that a stranger can cause: up to `LINES_A_MINUTE`."""

    def __init__(self, clock: Clock) -> None:
        self._buckets = Buckets(clock, per_s=LINES_A_MINUTE / MINUTE_S, burst=LINES_A_MINUTE)
        self._skipped = 0

    def admit(self) -> int | None:
        """Return the number of lines skipped before this one, or None if this one is to be skipped too."""
        if self._buckets.take(""):
            self._skipped += 1
            return None
        skipped, self._skipped = self._skipped, 0
        return skipped


# -- the middleware ------------------------------------------------------------------------------------------

STRANGER = Identity("stranger", Role.OBSERVER, SessionId(""))
"""The identity of a caller of a public route, which may access no session."""

OWN_SITES = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` for our own page and for an address that a person typed."""

_PREFLIGHT: dict[str, str] = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PATCH, PUT, DELETE",
    "Access-Control-Allow-Headers": "Acp-Connection-Id, Acp-Protocol-Version, Acp-Session-Id, Authorization,"
    " Content-Type, Idempotency-Key, Last-Event-ID, Prefer, Turnwire-Client-Id, Turnwire-Epoch, Turnwire-Page-Key,"
    " X-Qwen-Client-Id, X-Qwen-Event-Epoch",
    "Access-Control-Max-Age": "600",
}

_KEY = PAGE_KEY.lower().encode()
_PROTOCOLS = b"sec-websocket-protocol"

_ONCE = frozenset(
    {
        *(b"host", b"origin", b"authorization", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"),
        *(b"access-control-request-method", _KEY, _PROTOCOLS),
    }
)
_SECRET_NAMES = frozenset({"token", "access_token", "auth_token", "turnwire_token", "authorization", "bearer"})
_SECRET_VALUE = re.compile(r"tw_[0-9a-f]{12}_.{16,}")
_HEADER_EXTRA = 4
"""Bytes for the colon, space and line end of each header."""


class PublicRoute(NamedTuple):
    """A route that needs no credential."""

    method: str
    path: str
    logs_in: bool = False
    """True if the route accepts a credential."""


class AccessMiddleware:
    """The ASGI middleware that controls access to an application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Tokens,
        policy: BrowserPolicy,
        proxies: Proxies,
        public: Iterable[PublicRoute],
        requests: Buckets,
        failures: Failures,
        header_bytes: int,
    ) -> None:
        """`public` lists the routes that need no credential; all others do."""
        self._app = app
        self._tokens = tokens
        self._policy = policy
        self._proxies = proxies
        self._public = [(compile_path(each.path)[0], each) for each in public]
        self._header_bytes = header_bytes
        self._requests = requests
        self._failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        # Where the application is mounted, its host server runs each request as a task, on its own loop.
        mark_asyncio()
        shared: Mapping[str, str] = {}
        try:
            asked = read_asked(scope, self._header_bytes, self._proxies)
            if scope.get("client") and asked.address != scope["client"][0]:
                # For the audit and other readers of the scope.
                scope["client"] = (asked.address, 0)
            shared = self._check_origin(asked)
            if shared and asked.preflight is not None and asked.method == "OPTIONS":
                await answer_entry(scope, receive, send, 204, shared | _PREFLIGHT, b"")
                return
            scope[IDENTITY] = await self._identify(asked)
        except TurnwireError as error:
            await refuse_entry(scope, receive, send, error, shared)
            return
        if scope["type"] == "websocket" and (key := _key_in(asked.protocols)):
            send = _accepting(send, key)
        await self._app(scope, receive, _sharing(send, shared) if shared else send)

    def _check_origin(self, asked: RequestOrigin) -> dict[str, str]:
        """Reject requests of foreign pages. Return the headers that let an allowed page read the response."""
        if not self._policy.knows(asked.host):
            raise Forbidden(
                "this host name is not the daemon's; use its address, or start it with --allow-host for it"
            )
        if asked.origin is None:
            if asked.site not in (None, *OWN_SITES) and not self._is_opened(asked):
                raise Forbidden("a page of another site sent this; allow its origin with --allow-origin")
            return {}
        origin = parse_origin(asked.origin)
        if origin in self._policy.origins:
            return {
                "Access-Control-Allow-Origin": asked.origin,
                "Access-Control-Allow-Credentials": "true",
                "Access-Control-Expose-Headers": "Acp-Connection-Id, Turnwire-Epoch, Turnwire-Page-Key,"
                " X-Qwen-Event-Epoch, Location, Retry-After",
                "Vary": "Origin",
            }
        if origin != origin_of(asked.scheme, asked.host) or asked.site not in (None, *OWN_SITES):
            raise Forbidden("a page of another origin sent this; allow it with --allow-origin")
        return {}

    def _public_route(self, asked: RequestOrigin) -> PublicRoute | None:
        method = "GET" if asked.method == "HEAD" else asked.method
        found = (each for path, each in self._public if each.method == method and path.match(asked.path))
        return next(found, None)

    def _is_opened(self, asked: RequestOrigin) -> bool:
        """Return whether a link on another site was followed to a public page of ours, such as the login."""
        return asked.is_navigation and asked.method in READING and self._public_route(asked) is not None

    async def _identify(self, asked: RequestOrigin) -> Identity:
        public = self._public_route(asked)
        if self._policy.no_auth:
            who = ANYBODY
        elif public is not None:
            who = STRANGER
        else:
            who = await self._authenticate(asked)
        if public is not None and public.logs_in:
            # Others at this address must not use up the rate of a caller with a valid code; wrong codes are
            # counted.
            return who
        wait = self._requests.take(caller_of(who, asked.address))
        if wait:
            raise TooManyRequests("too many requests; ask less often", retry_after=math.ceil(wait))
        return who

    async def _authenticate(self, asked: RequestOrigin) -> Identity:
        if asked.authorization is not None:
            scheme, _, secret = asked.authorization.partition(" ")
            if scheme.lower() != "bearer":
                self._failures.count(asked.address, asked.method)
                raise Unauthenticated("a credential of another scheme is not taken; send `Authorization: Bearer …`")
            found = await self._tokens.check(secret.strip())
        else:
            cookie = cookie_of(asked.cookies, cookie_name(asked.host))
            if cookie is None:
                raise Unauthenticated("this needs a credential; send `Authorization: Bearer …`")
            if not asked.page_key:
                # Other servers of this host get the cookie too, so it proves nothing alone.
                raise Unauthenticated("a login needs its page key too; send `Turnwire-Page-Key`, or log in again")
            found = await self._tokens.check(cookie + asked.page_key, "login", "share")
            if found is not None:
                _check_own_page(asked)
        if found is None:
            self._failures.count(asked.address, asked.method)
            raise Unauthenticated("this credential is not valid; it was mistyped, was revoked, or has expired")
        return found


def _check_own_page(asked: RequestOrigin) -> None:
    """Reject a change without a known origin, because a browser adds the cookie to every request it sends."""
    if asked.method not in READING and asked.origin is None and asked.site != "same-origin":
        raise Forbidden("a cookie alone changes nothing; send it from the page, or use a token")


def _accepting(send: Send, key: str) -> Send:
    """Accept with the subprotocol that carried the page key: a browser insists on one that it offered."""
    accepted = _PROTOCOLS, f"{KEY_PROTOCOL}{key}".encode()

    async def sending(message: Message) -> None:
        if message["type"] == "websocket.accept":
            message = {**message, "headers": [*message.get("headers", ()), accepted]}
        await send(message)

    return sending


def _sharing(send: Send, shared: Mapping[str, str]) -> Send:
    extra = raw_headers(shared)

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sending


# -- parsing requests ----------------------------------------------------------------------------------------


class RequestOrigin(NamedTuple):
    """The source and sender of a request, as its headers state them."""

    method: str
    path: str
    scheme: str
    host: Host
    origin: str | None
    site: str | None
    """`Sec-Fetch-Site`: the browser's relation of the requesting page to us."""
    is_navigation: bool
    """True if a person opens it as a page, not embedded in another."""
    preflight: str | None
    """The method that a page of another origin wants to use."""
    authorization: str | None
    cookies: str
    page_key: str
    """The half of a login that is not in the cookie; empty if there is none."""
    protocols: str
    """`Sec-WebSocket-Protocol`: the subprotocols that a client of a WebSocket offers."""
    address: str
    """The client's address, as reported by trusted proxies if there are any; empty for a local socket."""


def read_asked(scope: Any, most_bytes: int, proxies: Proxies) -> RequestOrigin:
    """Read the headers.

    Raises:
        HeadersTooLarge: The headers and the request target are longer than `most_bytes`.
        BadRequest: No host, a header that may occur only once occurs twice, or a secret in the query.
    """
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    query: bytes = scope.get("query_string", b"")
    once, cookies = _pick(headers, most_bytes - len(query) - len(scope["path"]))
    host = parse_host(once.get(b"host", ""))
    if host is None:
        raise BadRequest("the request names no host; send one Host header with a name or an address")
    if query:
        _refuse_secrets(query)
    client, protocols = scope.get("client"), once.get(_PROTOCOLS, "")
    return RequestOrigin(
        # A socket is opened with GET, but is used for more than reading.
        scope.get("method", "CONNECT"),
        _path_below_mount(scope),
        scope.get("scheme", "http"),
        host,
        once.get(b"origin"),
        once.get(b"sec-fetch-site"),
        (once.get(b"sec-fetch-mode"), once.get(b"sec-fetch-dest")) == ("navigate", "document"),
        once.get(b"access-control-request-method"),
        once.get(b"authorization"),
        cookies,
        once.get(_KEY) or _key_in(protocols),
        protocols,
        proxies.client_of(client[0], headers) if client else "",
    )


def _key_in(protocols: str) -> str:
    """Return the page key among the subprotocols that a script offers; empty if there is none."""
    offered = (each.strip() for each in protocols.split(","))
    return next((each.removeprefix(KEY_PROTOCOL) for each in offered if each.startswith(KEY_PROTOCOL)), "")


def _path_below_mount(scope: Any) -> str:
    """Return the path without the prefix of a mount in another application, as Starlette's router does."""
    path: str = scope["path"]
    below = path.removeprefix(scope.get("root_path", ""))
    return below if not below or below.startswith("/") else path


def cookie_of(cookies: str, name: str) -> str | None:
    """Return the value of one cookie."""
    for each in cookies.split(";"):
        key, found, value = each.strip().partition("=")
        if found and key == name:
            return value
    return None


def _pick(headers: list[tuple[bytes, bytes]], left: int) -> tuple[dict[bytes, str], str]:
    """Return the relevant headers and the cookies. Raises `HeadersTooLarge`, and `BadRequest` on a repeat."""
    once: dict[bytes, str] = {}
    cookies: list[str] = []
    twice = None
    for name, value in headers:
        left -= len(name) + len(value) + _HEADER_EXTRA
        if name in _ONCE:
            twice = name if name in once else twice
            once[name] = value.decode("latin-1").strip()
        elif name == b"cookie":
            cookies.append(value.decode("latin-1"))
    if left < 0:
        raise HeadersTooLarge("the headers are too large; send fewer or shorter ones", limit="header_bytes")
    if twice is not None:
        raise BadRequest(f"the header {twice.decode()} comes more than once; send it once")
    return once, "; ".join(cookies)


def _refuse_secrets(query: bytes) -> None:
    """Reject a secret in the query, because queries end up in logs, histories and `Referer` headers."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    if any(name.lower() in _SECRET_NAMES or _SECRET_VALUE.search(value) for name, value in pairs):
        raise BadRequest(
            "a token does not belong into a URL, where logs and histories keep it; send it as `Authorization:"
            " Bearer …`, and revoke this one if others may have seen it"
        )
