"""ACP connections of other nodes: what names one is handed to its node as it is, and the answer comes back so.

A connection lives on the node that opened it, and a load balancer knows nothing of that. Its id begins with the
number of the node's life; whoever gets a request for another life's connection asks that node, at the address by
which nodes reach each other, with the secret of that life and in the name of the caller, whom it has checked. The
other one believes that (`Relayed`), because only nodes can read the secret. Nothing is held but the part of an
event that has not come whole: who reads slowly is waited for, at both ends.
"""

from __future__ import annotations

import json
import math
import re
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress

import anyio
import httpx
import msgspec
from anyio.abc import TaskGroup
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from turnwire.errors import (
    AnswerLost,
    LinkBroken,
    NodeUnreachable,
    NotFound,
    TurnwireError,
    Unauthenticated,
)
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.owners import Life, Owners
from turnwire.runtime.clock import Clock
from turnwire.server.access.identity import IDENTITY, Identity, Role
from turnwire.server.access.tokens import Tokens
from turnwire.server.refusals import answer_entry, refuse_entry

SECRET = "Turnwire-Node-Secret"
"""The header with the secret of the life that is asked."""
DIALLER = "Turnwire-Node"
"""The header with the number of the life that asks."""
CALLER = "Turnwire-Caller"
"""The header with who asks, as the node knows them that met them: the members of `Identity`, and the address."""
REACH_S = 2.0
"""What another node gets to take a connection; it is near."""
MOST_LIVES = 256
"""That are known at a time."""
KNOWN_S = 1.0
"""How long it is believed that a life goes on. One that has ended takes no connection, so nothing is lost."""
MISSED_BEATS = 3
"""Heartbeats of a stream that may be missing before the other node is given up."""
NO_CLOSE = 1005
"""How a socket ends that was closed without a code."""

_NOT_PASSED = frozenset(
    {
        # What is between two neighbours.
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
        # What the first node has judged; no other sees a credential.
        *(b"authorization", b"cookie", b"origin", b"accept-encoding", b"forwarded"),
        *(each.lower().encode() for each in (SECRET, DIALLER, CALLER)),
    }
)
_NOT_PASSED_PREFIXES = (b"sec-", b"x-forwarded-", b"access-control-")

RawHeaders = list[tuple[bytes, bytes]]


class RelayedAnswer:
    """What the other node answers."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = _passed(response.headers.raw)
        self.is_stream = response.headers.get("content-type", "").startswith("text/event-stream")

    async def read(self) -> bytes:
        """The body. Raises `AnswerLost`."""
        try:
            return b"".join([each async for each in self._response.aiter_raw()])
        except httpx.HTTPError:
            raise _lost() from None

    async def events(self) -> AsyncGenerator[bytes]:
        """The body of a stream, in whole events, so that something can be said in between. Raises `LinkBroken`."""
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
    """The way to connections of other nodes."""

    def __init__(self, owners: Owners, clock: Clock, limits: Limits, tasks: TaskGroup) -> None:
        """`tasks` outlive every request."""
        self._owners = owners
        self._clock = clock
        self._limits = limits
        self._tasks = tasks
        self._client: httpx.AsyncClient | None = None
        self._lives: dict[int, tuple[Life | None, float]] = {}
        """Those that were asked for, and when they were looked up."""
        self.count: Counter[str] = Counter()
        """What was handed on, by kind."""

    @asynccontextmanager
    async def asking(self, life: int, scope: Scope, who: Identity, body: bytes) -> AsyncGenerator[RelayedAnswer]:
        """Hand a request on.

        Raises `NotFound` if that life is gone, `NodeUnreachable`, `AnswerLost`, `LogError`.
        """
        there = await self._find(life)
        client = self._opened()
        asked = client.build_request(
            scope["method"],
            _url(there, scope),
            headers=_headers(there, self._owners.life, scope, who),
            content=body,
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
        """Hand an upgrade on and carry what both sides say; gives the code of the other node's end of it.

        None if the client has left, or was refused. Raises as `asking` does.
        """
        there = await self._find(life)
        url = re.sub("^http", "ws", _url(there, scope))
        # Whoever asks for a socket says nothing more that is for the other node.
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in _headers(there, self._owners.life, scope, who)
        ]
        try:
            connection = await websocket_connect(
                url,
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
                # Anybody may name a life that never was.
                self._lives.clear()
            self._lives[life] = there, now
        if there is None:
            raise NotFound("there is no such connection; its node is gone; initialize again")
        if not there.url:
            raise NodeUnreachable("the connection is another node's, which others cannot reach; initialize again")
        return there

    def _unreachable(self, life: int) -> NodeUnreachable:
        # Whoever tries again hears whether it is gone.
        self._lives.pop(life, None)
        return NodeUnreachable("the connection's node does not answer; try again", life=life)

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(
                    self._limits.heartbeat_s * MISSED_BEATS,
                    connect=REACH_S,
                    # A stream has a connection of its own, and there may be as many as there are readers.
                    pool=None,
                ),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=REACH_S),
                # Whom the system trusts, or `SSL_CERT_FILE` names: as sockets do, so that both ways need one word.
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
        # What the other node said before its end is still being told.
    return code


def _url(there: Life, scope: Scope) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    root: str = scope.get("root_path", "")
    query: bytes = scope.get("query_string", b"")
    own = path.decode("latin-1").partition("?")[0].removeprefix(root)
    return f"{there.url.rstrip('/')}{own}{'?' if query else ''}{query.decode('latin-1')}"


def _headers(there: Life, here: int, scope: Scope, who: Identity) -> RawHeaders:
    client = scope.get("client")
    own = [
        (SECRET.encode(), there.secret.encode()),
        (DIALLER.encode(), str(here).encode()),
        # Headers are ASCII, and a name need not be.
        (CALLER.encode(), json.dumps([*who, client[0] if client else ""]).encode("ascii")),
        (b"accept-encoding", b"identity"),
    ]
    return [*_passed(scope["headers"]), *own]


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    lowered = [(name.lower(), value) for name, value in headers]
    return [each for each in lowered if each[0] not in _NOT_PASSED and not each[0].startswith(_NOT_PASSED_PREFIXES)]


def _lost() -> AnswerLost:
    return AnswerLost("the connection's node was asked and did not answer; it may have done it")


def read_caller(told: bytes) -> tuple[Identity, str] | None:
    """Who asks at another node, and from which address; none if it cannot be read."""
    try:
        name, role, session_id, token_id, address = msgspec.json.decode(told, type=_Caller)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Identity(name, role, session_id, token_id), address


_Caller = tuple[str, Role, SessionId | None, str | None, str]

# -- the other end -------------------------------------------------------------------------------------------


class Relayed:
    """An ASGI application in front of another: requests that other nodes hand on, in the name of their callers.

    Whoever serves it has checked the secret, and set the identity that the other node tells. The credential is
    looked up, so that what runs under it is let in, and ends with it, here as well.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not await self._tokens.recall(scope[IDENTITY]):
                raise Unauthenticated("this credential is not valid; it was revoked, or has expired")
        except TurnwireError as error:
            await refuse_entry(scope, receive, send, error)
            return
        await self._app(scope, receive, send)
