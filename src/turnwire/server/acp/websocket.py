"""ACP over a WebSocket: all sessions of a client on one socket, in one order.

Takes text frames, each a JSON-RPC message, and hands them on one by one, as fast as the rate of requests allows;
writes what the client is sent. Binary frames are ignored. Losing the socket detaches: the connection stays for its
grace time, and a socket that names it (`?connection=…`) goes on with it: where it stood, or (`&attaches=true`) as
its client will say. Pings are the HTTP server's. Never ends a turn.
"""

from __future__ import annotations

import logging
from contextlib import aclosing, suppress
from enum import IntEnum
from typing import Any, cast
from urllib.parse import parse_qs

import anyio
from starlette.types import Receive, Scope, Send

from turnwire.errors import BadRequest, TurnwireError
from turnwire.server.access.identity import ANYBODY, IDENTITY, Identity, audit
from turnwire.server.access.rates import caller_of
from turnwire.server.acp.client_state import AGENT, PATH
from turnwire.server.acp.http import CONNECTION_ID
from turnwire.server.acp.registry import AcpConnections, KeptConnection
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import ABORT, SEND_ALL
from turnwire.server.refusals import problem_of, refuse_entry
from turnwire.server.streams.stream import FAREWELL_S, Pace

METHOD = "CONNECT"
"""What an upgrade is called in the audit."""
SWITCHED = 101

_GONE = (OSError, RuntimeError)
"""How servers refuse to write: the client has left, or they have closed the socket themselves."""

logger = logging.getLogger(__name__)


class Close(IntEnum):
    """Why a socket is closed, as the client reads it."""

    DONE = 1000
    STOPPING = 1001
    REVOKED = 1008
    TOO_LARGE = 1009
    FAILED = 1011
    REPLACED = 4001
    """Another socket of the same client goes on with the connection."""


class Sockets:
    """The endpoint for clients with a socket."""

    def __init__(self, daemon: Daemon, connections: AcpConnections) -> None:
        self._daemon = daemon
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        daemon = self._daemon
        who: Identity = scope.get(IDENTITY, ANYBODY)
        try:
            kept = await self._kept(scope, who)
        except TurnwireError as error:
            _record(scope, daemon, who, problem_of(error)[0])
            await refuse_entry(scope, receive, send, error)
            return
        _record(scope, daemon, who, SWITCHED)
        await receive()
        named = [(CONNECTION_ID.encode(), kept.connection.connection_id.encode())]
        await send({"type": "websocket.accept", "headers": named})
        # Who is let in has nothing more to say in headers, and a socket is open for long.
        scope["headers"] = []
        await _Socket(daemon, kept, scope, receive, send).run()

    async def _kept(self, scope: Scope, who: Identity) -> KeptConnection:
        """The connection that the address names, or a new one."""
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        attaches = query.get("attaches", ["false"])[-1]
        if attaches not in {"true", "false"}:
            raise BadRequest("`attaches` is true or false")
        asked = query.get("connection")
        if not asked:
            return await self._connections.open(who, scope.get("path_params", {}).get(AGENT))
        kept = self._connections.find(asked[-1], who)
        kept.connection.take_up(attaches=attaches == "true")
        return kept


def _record(scope: Scope, daemon: Daemon, who: Identity, status: int) -> None:
    daemon.metrics.request(METHOD, PATH, status)
    audit(who, METHOD, PATH, status, _address(scope), None)


def _address(scope: Scope) -> str | None:
    client = scope.get("client")
    return client[0] if client else None


class _Socket:
    """One open socket."""

    def __init__(self, daemon: Daemon, kept: KeptConnection, scope: Scope, receive: Receive, send: Send) -> None:
        self._daemon = daemon
        self._kept = kept
        self._receive = receive
        self._send = send
        self._address = _address(scope)
        extensions = cast("dict[str, Any]", scope.get("extensions") or {})
        self._abort = extensions.get(ABORT)
        self._send_all = extensions.get(SEND_ALL)
        self._close: Close | None = Close.DONE
        """None if there is nobody left to tell."""
        self._tasks = anyio.create_task_group()

    async def run(self) -> None:
        """Carry the connection until one side has an end."""
        daemon, kept = self._daemon, self._kept
        kept.enter(self)
        daemon.tokens.enter(kept.connection.who, self)
        daemon.stopping.add(self._stop)
        try:
            end = await self._carry()
        finally:
            daemon.stopping.discard(self._stop)
            daemon.tokens.leave(kept.connection.who, self)
            kept.leave(self)
        if end is not None:
            await self._say(end)

    def cancel(self) -> None:
        """The credential has ended."""
        self._over(Close.REVOKED)

    def give_way(self) -> None:
        """Another socket goes on with the connection."""
        self._over(Close.REPLACED)

    def _stop(self) -> None:
        self._over(Close.STOPPING)

    async def _carry(self) -> Close | None:
        try:
            async with self._tasks as tasks:
                tasks.start_soon(self._hear)
                await self._tell()
                tasks.cancel_scope.cancel()
        except Exception:  # whatever it is, the socket must be closed
            logger.exception("a socket failed", extra={"event": "socket_failed"})
            return Close.FAILED
        return self._close

    def _over(self, close: Close | None) -> None:
        if not self._tasks.cancel_scope.cancel_called:
            self._close = close
            self._tasks.cancel_scope.cancel()

    async def _hear(self) -> None:
        most, connection = self._daemon.limits.body_bytes, self._kept.connection
        caller = caller_of(connection.who, self._address)
        while (message := await self._receive())["type"] != "websocket.disconnect":
            # Nothing is lost: who sends too fast is read later.
            while wait := self._daemon.requests.take(caller):
                await self._daemon.clock.sleep(wait)
            text: str | None = message.get("text")
            if text is None:
                continue
            frame = text.encode()
            if len(frame) > most:
                self._over(Close.TOO_LARGE)
            else:
                connection.comes_from(self._address)
                await connection.receive(frame)
        self._over(None)

    async def _tell(self) -> None:
        pace = Pace()
        async with aclosing(self._kept.connection.all_frames()) as frames:
            async for some in frames:
                # Without our own server each is a write of its own, with time of its own.
                for each in [some] if self._send_all is not None else ([frame] for frame in some):
                    if not await self._write(each):
                        return
                    await pace.step(len(each))

    async def _write(self, frames: list[bytes]) -> bool:
        """Write frames; false if there is nobody who takes them."""
        try:
            with anyio.move_on_after(self._daemon.limits.write_timeout_s):
                if self._send_all is not None:
                    await self._send_all["call"](frames)
                else:
                    for each in frames:
                        await self._send({"type": "websocket.send", "text": each.decode()})
                return True
        except _GONE:
            self._over(None)
            return False
        self._daemon.metrics.subscriber_stalled()
        logger.info("a socket took nothing for too long and was let go", extra={"event": "socket_stalled"})
        self._over(None)
        if self._abort is not None:
            self._abort["call"]()
        return False

    async def _say(self, close: Close) -> None:
        with anyio.move_on_after(FAREWELL_S), suppress(*_GONE):
            await self._send({"type": "websocket.close", "code": int(close)})
