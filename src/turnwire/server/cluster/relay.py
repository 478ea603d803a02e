"""Relay of requests for ACP connections of other nodes; the response is returned unchanged.

A connection lives on the node that opened it, which a load balancer does not know. Its id begins with the number of
the node's incarnation. A node that gets a request for another incarnation's connection sends it to that node, at
its row's address, with a proof of the cluster's key (`node_key`) and the identity of the caller, which it has
checked. The request target is built here, never copied from the client. Only incomplete events are buffered: slow
readers hold back the other node.
"""

from __future__ import annotations

import json
import math
import re
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from urllib.parse import quote, unquote

import anyio
import httpx
import msgspec
from anyio.abc import TaskGroup
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from turnwire.clock import Clock
from turnwire.errors import (
    AnswerLost,
    BadRequest,
    LinkBroken,
    NodeUnreachable,
    NotFound,
    TurnwireError,
    Unauthenticated,
)
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.owners import Life, Owners
from turnwire.server.access.login import PAGE_KEY
from turnwire.server.access.node_key import CALLER, PROOF, NodeKey
from turnwire.server.access.tokens import IDENTITY, Identity, Role, Tokens
from turnwire.server.acp_paths import AGENT, PATH
from turnwire.server.refusals import answer_entry, refuse_entry

REACH_S = 2.0
"""Timeout for another node to accept a connection; nodes are close to each other."""
MOST_LIVES = 256
"""Maximum number of cached incarnations."""
KNOWN_S = 1.0
"""Lifetime of a cached incarnation. One that has ended accepts no connection, so nothing is lost."""
MISSED_BEATS = 3
"""Missing heartbeats of a stream after which the other node is considered lost."""
NO_CLOSE = 1005
"""The close code of a socket that was closed without one."""

_NOT_PASSED = frozenset(
    {
        # Hop-by-hop headers.
        *(b"host", b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"te", b"trailer"),
        *(
            b"upgrade",
            b"expect",
            b"http2-settings",
            b"proxy-authorization",
            b"proxy-connection",
            b"date",
            b"server",
        ),
        # Headers that the first node has checked; no other node sees a credential.
        *(b"authorization", b"cookie", b"origin", b"accept-encoding", b"forwarded"),
        *(PROOF, CALLER, PAGE_KEY.lower().encode()),
    }
)
_NOT_PASSED_PREFIXES = (b"sec-", b"x-forwarded-", b"access-control-")

_IN_QUERY = "!$&'()*+,-./:;=?@_~%[]"
"""Characters of a query that are sent unescaped: RFC 3986, and brackets, which clients send."""

RawHeaders = list[tuple[bytes, bytes]]


class RelayedAnswer:
    """The other node's response."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = _passed(response.headers.raw)
        self.is_stream = response.headers.get("content-type", "").startswith("text/event-stream")

    async def read(self) -> bytes:
        """Return the body. Raises `AnswerLost`."""
        try:
            return b"".join([each async for each in self._response.aiter_raw()])
        except httpx.HTTPError:
            raise _lost() from None

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield a stream's body in whole events, so that others fit in between. Raises `LinkBroken`."""
        held = bytearray()
        try:
            async for chunk in self._response.aiter_raw():
                known = max(len(held) - 1, 0)
                held += chunk
                end = held.rfind(b"\n\n", known) + 2
                if end >= 2:
                    yield bytes(held[:end])
                    del held[:end]
        except httpx.HTTPError:
            raise LinkBroken("the connection's node is gone, or does not answer") from None


class Relay:
    """Access to ACP connections of other nodes."""

    def __init__(self, owners: Owners, key: NodeKey, clock: Clock, limits: Limits, tasks: TaskGroup) -> None:
        """`tasks` must outlive every request."""
        self._owners = owners
        self._key = key
        self._clock = clock
        self._limits = limits
        self._tasks = tasks
        self._client: httpx.AsyncClient | None = None
        self._lives: dict[int, tuple[Life | None, float]] = {}
        """Incarnations that were looked up, with the time of the lookup."""
        self.count: Counter[str] = Counter()
        """The number of relayed requests by kind."""

    @asynccontextmanager
    async def asking(self, life: int, scope: Scope, who: Identity, body: bytes) -> AsyncGenerator[RelayedAnswer]:
        """Relay a request.

        Raises `NotFound` if that incarnation is gone, `NodeUnreachable`, `AnswerLost`, `LogError`.
        """
        there = await self._find(life)
        client, url = self._opened(), _url(there, scope)
        asked = client.build_request(
            scope["method"], url, headers=self._headers(there, url, scope, who), content=body
        )
        try:
            response = await client.send(asked, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol):
            raise self._unreachable(life) from None
        except httpx.HTTPError:
            raise _lost() from None
        self.count["request"] += 1
        try:
            yield RelayedAnswer(response)
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def socket(self, life: int, scope: Scope, who: Identity, receive: Receive, send: Send) -> int | None:
        """Relay an upgrade and carry frames in both directions; return the other node's close code.

        None if the client has left, or was rejected. Raises as `asking` does.
        """
        there = await self._find(life)
        url = _url(there, scope)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in self._headers(there, url, scope, who)
        ]
        try:
            connection = await websocket_connect(
                str(url.copy_with(scheme="wss" if url.scheme == "https" else "ws")),
                additional_headers=headers,
                user_agent_header=None,
                proxy=None,
                open_timeout=REACH_S,
                close_timeout=REACH_S,
                ping_interval=self._limits.heartbeat_s,
                ping_timeout=self._limits.heartbeat_s * MISSED_BEATS,
                compression=None,
                max_size=None,
            )
        except InvalidStatus as refusal:
            answer = refusal.response
            shown = {"Content-Type": answer.headers.get("Content-Type", "application/problem+json")}
            await answer_entry(scope, receive, send, answer.status_code, shown, bytes(answer.body or b""))
            return None
        except (OSError, TimeoutError, WebSocketException):
            raise self._unreachable(life) from None
        self.count["socket"] += 1
        try:
            assert connection.response is not None, "it is open"
            named = [(n.lower().encode(), v.encode()) for n, v in connection.response.headers.raw_items()]
            await receive()
            await send({"type": "websocket.accept", "headers": [each for each in named if each[0][:4] == b"acp-"]})
            return await _carry(connection, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    # -- the other node ----------------------------------------------------------------------------------------

    async def _find(self, life: int) -> Life:
        now = self._clock.monotonic()
        there, looked_at = self._lives.get(life, (None, -math.inf))
        if now - looked_at >= KNOWN_S:
            there = await self._owners.living(life)
            if len(self._lives) >= MOST_LIVES:
                # Callers can name incarnations that never existed, so the cache is bounded.
                self._lives.clear()
            self._lives[life] = there, now
        if there is None:
            raise NotFound("there is no such connection; its node is gone; initialize again")
        if not there.url:
            raise NodeUnreachable("the connection is another node's, which others cannot reach; initialize again")
        self._key.check(there)
        return there

    def _headers(self, there: Life, url: httpx.URL, scope: Scope, who: Identity) -> RawHeaders:
        client = scope.get("client")
        # Headers are ASCII, but a name need not be.
        caller = json.dumps([*who, client[0] if client else ""]).encode("ascii")
        own = [
            (PROOF, self._key.prove(there.number, url.raw_path, caller)),
            (CALLER, caller),
            (b"accept-encoding", b"identity"),
        ]
        return [*_passed(scope["headers"]), *own]

    def _unreachable(self, life: int) -> NodeUnreachable:
        # A retry looks up whether the incarnation is gone.
        self._lives.pop(life, None)
        return NodeUnreachable("the connection's node does not answer; try again", life=life)

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(
                    self._limits.heartbeat_s * MISSED_BEATS,
                    connect=REACH_S,
                    # Each stream has its own connection, and the number of readers is not limited here.
                    pool=None,
                ),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=REACH_S),
                # The system's trusted authorities, or those of `SSL_CERT_FILE`, as for sockets: one setting serves
                # both.
                verify=ssl.create_default_context(),
                trust_env=False,
                follow_redirects=False,
            )
            self._tasks.start_soon(self._keep, self._client)
        return self._client

    async def _keep(self, client: httpx.AsyncClient) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await client.aclose()


async def _carry(connection: ClientConnection, receive: Receive, send: Send) -> int | None:
    code: int | None = None
    async with anyio.create_task_group() as tasks:

        async def hear() -> None:
            nonlocal code
            try:
                while True:
                    await send({"type": "websocket.send", "text": await connection.recv(decode=True)})
            except ConnectionClosed as closed:
                code = NO_CLOSE if closed.rcvd is None else closed.rcvd.code
            except (OSError, RuntimeError):
                pass  # the client is gone
            tasks.cancel_scope.cancel()

        tasks.start_soon(hear)
        with suppress(ConnectionClosed):
            while (message := await receive())["type"] != "websocket.disconnect":
                text: str | None = message.get("text")
                if text is not None:
                    await connection.send(text)
            tasks.cancel_scope.cancel()
        # Frames that the other node sent before its close are still being delivered.
    return code


def _url(there: Life, scope: Scope) -> httpx.URL:
    """Return the address of an ACP endpoint at another node, with the query of the client's request."""
    node = httpx.URL(there.url)
    agent: str | None = scope.get("path_params", {}).get(AGENT)
    path = PATH if agent is None else f"{PATH}/{quote(agent, safe='')}"
    query = quote(scope.get("query_string", b""), safe=_IN_QUERY)
    url = node.copy_with(raw_path=(f"{path}?{query}" if query else path).encode("ascii"))
    # A request with a proof must go only to that node, whatever the client has sent.
    if (url.scheme, url.netloc, url.path) != (node.scheme, node.netloc, path if agent is None else unquote(path)):
        raise BadRequest("this address cannot be relayed to the connection's node")
    return url


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    lowered = [(name.lower(), value) for name, value in headers]
    return [each for each in lowered if each[0] not in _NOT_PASSED and not each[0].startswith(_NOT_PASSED_PREFIXES)]


def _lost() -> AnswerLost:
    return AnswerLost("the connection's node was asked and did not answer; it may have done it")


def read_caller(told: bytes) -> tuple[Identity, str] | None:
    """Return the caller at another node, and its address; None if the header cannot be read."""
    try:
        name, role, session_id, token_id, address = msgspec.json.decode(told, type=_Caller)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Identity(name, role, session_id, token_id), address


_Caller = tuple[str, Role, SessionId | None, str | None, str]
_ENDPOINT = re.compile(rf"{PATH}(/[^/]+)?")

# -- the other end -------------------------------------------------------------------------------------------


class Relayed:
    """ASGI middleware for requests that other nodes relay, in the name of their callers.

    `Entrance` has checked the proof and set the identity that the other node names. The credential is looked up
    here too, because work under it ends with it. Only the ACP endpoints are served.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, *, no_auth: bool) -> None:
        """`no_auth`: this node runs without credentials, so callers have none."""
        self._app = app
        self._tokens = tokens
        self._no_auth = no_auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who: Identity = scope[IDENTITY]
        try:
            if _ENDPOINT.fullmatch(scope["path"]) is None:
                raise NotFound("nodes relay requests of ACP connections, and nothing else")
            if who.token_id is None and not self._no_auth:
                raise Unauthenticated("this node asks for credentials, and the relayed caller has none")
            if not await self._tokens.recall(who):
                raise Unauthenticated("this credential is not valid; it was revoked, or has expired")
        except TurnwireError as error:
            await refuse_entry(scope, receive, send, error)
            return
        await self._app(scope, receive, send)
