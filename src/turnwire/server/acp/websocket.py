"""ACP over a WebSocket: all sessions of a client on one socket, in one order.

Each text frame is one JSON-RPC message; messages are processed one by one, as fast as the request rate allows.
Binary frames are ignored. Losing the socket detaches: the connection is retained for its grace period, and a socket
that names it (`?connection=…`) resumes it: where it stopped, or (`&attaches=true`) where its client will say. Pings
are left to the HTTP server. A turn never ends with the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs

import anyio
from anyio.lowlevel import checkpoint
from starlette.types import Receive, Scope, Send

from turnwire.errors import BadRequest, TurnwireError
from turnwire.server.access.middleware import caller_of
from turnwire.server.access.tokens import ANYBODY, IDENTITY, Identity, audit
from turnwire.server.acp.http import CONNECTION_ID
from turnwire.server.acp.registry import AcpConnections, KeptConnection
from turnwire.server.acp.subscription import QueueReader
from turnwire.server.acp_paths import AGENT, PATH
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import ABORT, SEND_ALL
from turnwire.server.readers.event_stream import FAREWELL_S
from turnwire.server.refusals import problem_of, refuse_entry

if TYPE_CHECKING:
    # Imported only on a node of a cluster.
    from turnwire.server.cluster.relay import Relay

METHOD = "CONNECT"
"""The method of an upgrade in the audit."""
SWITCHED = 101

_GONE = (OSError, RuntimeError)
"""Errors that servers raise on writing after the client has left, or after they closed the socket."""

_FAILED = {"event": "socket_failed"}

logger = logging.getLogger(__name__)


class Close(IntEnum):
    """Close codes, as the client reads them."""

    DONE = 1000
    STOPPING = 1001
    REVOKED = 1008
    TOO_LARGE = 1009
    FAILED = 1011
    REPLACED = 4001
    """Another socket of the same client resumed the connection."""


class Sockets:
    """The endpoint for clients with a socket."""

    def __init__(self, daemon: Daemon, connections: AcpConnections, relay: Relay | None) -> None:
        self._daemon = daemon
        self._connections = connections
        self._relay = relay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        daemon = self._daemon
        who: Identity = scope.get(IDENTITY, ANYBODY)
        try:
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            life = None
            if "connection" in query:
                life = self._connections.elsewhere(query["connection"][-1], scope.get("path_params", {}).get(AGENT))
            if life is not None:
                await self._carry_elsewhere(life, who, scope, receive, send)
                return
            kept = self._kept(scope, query, who)
        except TurnwireError as error:
            _record(scope, daemon, who, problem_of(error)[0])
            await refuse_entry(scope, receive, send, error)
            return
        _record(scope, daemon, who, SWITCHED)
        await receive()
        named = [(CONNECTION_ID.encode(), kept.connection.connection_id.encode())]
        await send({"type": "websocket.accept", "headers": named})
        socket = _Socket(daemon, kept, scope, receive, send)
        # The headers are not needed after the handshake, and a socket is open for long.
        scope["headers"] = []
        opened = daemon.open_streams.add(who, socket.drop)
        try:
            await socket.run()
        finally:
            daemon.open_streams.remove(opened)

    async def _carry_elsewhere(self, life: int, who: Identity, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay frames between the client and its connection's node. Raises `TurnwireError` only at the start."""
        from turnwire.server.cluster.relay import NO_CLOSE

        daemon, end, failure = self._daemon, None, None
        with (
            daemon.tokens.closing(who) as credential,
            anyio.CancelScope() as here,
            daemon.stopping.calling(here.cancel),
        ):
            try:
                assert self._relay is not None, "who knows of other nodes has a way to them"
                end = await self._relay.socket(life, scope, who, receive, send)
            except TurnwireError as error:
                failure = error
        if failure is not None:
            raise failure
        if credential.cancelled_caught:
            end = Close.REVOKED
        elif here.cancelled_caught or end == NO_CLOSE:
            end = Close.STOPPING
        if end is not None:
            with anyio.move_on_after(FAREWELL_S), suppress(*_GONE):
                await send({"type": "websocket.close", "code": int(end)})

    def _kept(self, scope: Scope, query: Mapping[str, list[str]], who: Identity) -> KeptConnection:
        """Return the connection that the address names, or a new one."""
        attaches = query.get("attaches", ["false"])[-1]
        if attaches not in {"true", "false"}:
            raise BadRequest("`attaches` is true or false")
        asked = query.get("connection")
        if not asked:
            return self._connections.open(who, scope.get("path_params", {}).get(AGENT))
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
    """One open socket. Implements `Woken`, `tokens.Running` and `registry.CarryingSocket`.

    Its task receives. Frames for the client are written as they come, by a task only while the client accepts none.
    """

    __slots__ = (
        "_abort",
        "_address",
        "_close",
        "_daemon",
        "_is_called",
        "_kept",
        "_reader",
        "_receive",
        "_scope",
        "_send",
        "_send_all",
        "_send_at_once",
        "_writing",
    )

    def __init__(self, daemon: Daemon, kept: KeptConnection, scope: Scope, receive: Receive, send: Send) -> None:
        self._daemon = daemon
        self._kept = kept
        self._receive = receive
        self._send = send
        self._address = _address(scope)
        extensions = cast("dict[str, Any]", scope.get("extensions") or {})
        self._abort: Callable[[], None] | None = extensions.get(ABORT, {}).get("call")
        self._send_all: Callable[[list[bytes]], Awaitable[None]] = self._send_each
        self._send_at_once: Callable[[list[bytes]], bool] = _not_at_once
        if (ours := extensions.get(SEND_ALL)) is not None:
            self._send_all, self._send_at_once = ours["call"], ours["at_once"]
        self._close: Close | None = Close.DONE
        """The code to close with; None if the client is gone."""
        self._scope = anyio.CancelScope()
        self._reader: QueueReader | None = None
        """None while nothing is sent."""
        self._is_called = False
        self._writing: anyio.CancelScope | None = None
        """The task that waits for room, if any."""

    async def run(self) -> None:
        """Carry the connection until either side ends it."""
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
        """Close the socket, because the credential has ended."""
        self._over(Close.REVOKED)

    def drop(self) -> None:
        """Drop the connection to free its descriptor. The client can reconnect to its ACP connection."""
        self._over(None)
        if self._abort is not None:
            self._abort()

    def give_way(self) -> None:
        """Close the socket, because another one resumes the connection."""
        self._over(Close.REPLACED)

    def _stop(self) -> None:
        self._over(Close.STOPPING)

    async def _carry(self) -> Close | None:
        reader = self._reader = self._kept.connection.join_all(self)
        self.set()
        try:
            with self._scope:
                await self._hear()
        except Exception:  # the socket must be closed after any error
            logger.exception("a socket failed", extra=_FAILED)
            return Close.FAILED
        finally:
            self._reader = None
            if self._writing is not None:
                self._writing.cancel()
            self._kept.connection.part(reader)
        return self._close

    def _over(self, close: Close | None) -> None:
        # The first reason is the one that is sent; later reasons follow from it.
        if not self._scope.cancel_called:
            self._close = close
            self._scope.cancel()

    async def _hear(self) -> None:
        most, connection = self._daemon.limits.body_bytes, self._kept.connection
        caller = caller_of(connection.who, self._address)
        while (message := await self._receive())["type"] != "websocket.disconnect":
            # No message is lost: a client that sends too fast is read later.
            while wait := self._daemon.requests.take(caller):
                await self._daemon.clock.sleep(wait)
            text: str | None = message.get("text")
            if text is None:
                # Messages of ACP are text. Other frames are ignored, without closing the socket.
                continue
            frame = text.encode()
            if len(frame) > most:
                self._over(Close.TOO_LARGE)
            else:
                connection.comes_from(self._address)
                await connection.receive(frame)
        self._over(None)

    def set(self) -> None:
        # In the next iteration of the loop, so that all frames of this one go out in one write.
        if not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Write the available frames; if the client accepts none now, start a task that waits for it."""
        self._is_called = False
        # A running task also writes newer frames: two writers would not preserve the order.
        if self._writing is not None or not (frames := self._take()):
            return
        try:
            if self._send_at_once(frames):
                return
        except _GONE:
            self._over(None)
            return
        self._writing = anyio.CancelScope()
        self._daemon.tasks.start_soon(self._write_on, self._writing, frames)

    def _take(self) -> list[bytes]:
        """Return the frames to write next, possibly none."""
        if self._reader is None:
            return []
        frames = self._kept.connection.take(self._reader)
        if frames is None:
            self._over(Close.DONE)
        return frames or []

    async def _write_on(self, scope: anyio.CancelScope, frames: list[bytes]) -> None:
        try:
            with scope:
                while frames and await self._write(frames):
                    await checkpoint()
                    frames = self._take()
        except Exception:  # the socket must be closed after any error
            logger.exception("a socket failed", extra=_FAILED)
            self._over(Close.FAILED)
        finally:
            self._writing = None

    async def _write(self, frames: list[bytes]) -> bool:
        """Write frames; return False if the client is gone."""
        try:
            with anyio.move_on_after(self._daemon.limits.write_timeout_s):
                await self._send_all(frames)
                return True
        except _GONE:
            self._over(None)
            return False
        self._daemon.metrics.subscriber_stalled()
        logger.info("a socket took nothing for too long and was let go", extra={"event": "socket_stalled"})
        self._over(None)
        # Abort, because a close frame would wait behind the unread data.
        if self._abort is not None:
            self._abort()
        return False

    async def _send_each(self, frames: list[bytes]) -> None:
        """Write one frame at a time, for servers other than ours."""
        for each in frames:
            await self._send({"type": "websocket.send", "text": each.decode()})

    async def _say(self, close: Close) -> None:
        with anyio.move_on_after(FAREWELL_S), suppress(*_GONE):
            await self._send({"type": "websocket.close", "code": int(close)})


def _not_at_once(frames: list[bytes]) -> bool:
    """Return False: other servers cannot write without waiting."""
    return False
