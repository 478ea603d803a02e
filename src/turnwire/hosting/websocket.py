"""Frames as text messages of a WebSocket.

The link owns an open WebSocket, of either side. Binary messages are skipped and counted. A message beyond
`frame_bytes` ends the connection, as the standard requires. Redirects are not followed: the credential goes only to
the configured address.

A silent peer is pinged each `heartbeat_s`, and is considered gone when it has not answered two pings. A peer that
we hold back ourselves, because no caller receives, is not pinged: its answers would wait after its frames.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import anyio
from websockets.asyncio.client import connect as websocket_connect
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException
from websockets.http11 import Response

from turnwire.errors import AgentLaunchFailed
from turnwire.hosting.address import is_loopback, shown
from turnwire.hosting.network import NetworkLink
from turnwire.limits import Limits

BINARY = "binary"
"""The reason under which a skipped message is counted."""

MISSED_PONGS = 2


class WebSocketLink(NetworkLink):
    """Frames over an open WebSocket. See `open_websocket`."""

    def __init__(self, connection: Connection, limits: Limits | None = None, peer: str = "the agent") -> None:
        super().__init__(limits or Limits(), peer)
        self._connection = connection
        self.breaches: Counter[str] = Counter()
        """Number of skipped messages, by reason."""

    @property
    def answer(self) -> Response | None:
        """The HTTP response to the upgrade, on the client's side: it may set cookies."""
        return self._connection.response

    async def _carry(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read)
            tasks.start_soon(self._watch)
            await self._write()
            tasks.cancel_scope.cancel()

    async def _read(self) -> None:
        try:
            while True:
                message = await self._connection.recv()
                if isinstance(message, str):
                    self._inbound.put(message.encode())
                    await self._inbound.room()
                else:
                    self.breaches[BINARY] += 1
        except ConnectionClosed as closed:
            self._lose(_why(closed, self._peer))

    async def _write(self) -> None:
        try:
            while (frame := await self._outbound.next()) is not None:
                await self._connection.send(frame, text=True)
                self._outbound.carried()
        except ConnectionClosed:
            # The peer's earlier messages are still being read; the reader reports when that is over.
            await anyio.sleep_forever()

    async def _watch(self) -> None:
        missed = 0
        with suppress(ConnectionClosed):
            while missed < MISSED_PONGS:
                answered = anyio.Event()
                pong = asyncio.ensure_future(await self._connection.ping())
                pong.add_done_callback(partial(_heard, answered))
                await anyio.sleep(self._limits.heartbeat_s)
                missed = 0 if answered.is_set() or self._inbound.is_full else missed + 1
            self._lose(f"{self._peer}'s WebSocket is silent: it does not answer pings")

    async def _part(self) -> None:
        await self._connection.close()


def _heard(answered: anyio.Event, pong: asyncio.Future[float]) -> None:
    answered.set()


def _why(closed: ConnectionClosed, peer: str) -> str:
    code = closed.rcvd.code if closed.rcvd is not None else None
    if code is None and closed.sent is not None and closed.rcvd_then_sent is None:
        return f"{peer}'s WebSocket was closed here with code {closed.sent.code}: it broke the protocol or a limit"
    if code is None:
        return f"the connection to {peer}'s WebSocket was cut"
    return f"{peer} closed its WebSocket with code {code}"


class _NoRedirects(websocket_connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def open_websocket(
    url: str,
    headers: Mapping[str, str],
    limits: Limits | None = None,
    *,
    peer: str = "the agent",
    most_bytes: int | None = None,
) -> WebSocketLink:
    """Open a WebSocket to an agent, or to `peer`. Raises `AgentLaunchFailed`.

    `most_bytes`: the maximum message size, if not `frame_bytes`.
    """
    limits = limits or Limits()
    try:
        connection = await _NoRedirects(
            url,
            additional_headers={name: value for name, value in headers.items() if name.lower() != "user-agent"},
            user_agent_header=headers.get("User-Agent"),
            proxy=None if is_loopback(url) else True,
            open_timeout=limits.launch_s,
            close_timeout=limits.stop_eof_s,
            ping_interval=None,
            # Frames are small and many: compressing costs more time than it saves, and enables compression bombs.
            compression=None,
            max_size=most_bytes or limits.frame_bytes,
        )
    except InvalidStatus as refusal:
        raise refused(url, refusal.response.status_code) from None
    except InvalidHandshake:
        raise AgentLaunchFailed(f"{shown(url)} is no WebSocket; check the URL", definite=True) from None
    except (OSError, TimeoutError, WebSocketException) as error:
        raise unreachable(url, error) from None
    return WebSocketLink(connection, limits, peer)


def refused(url: str, status: int) -> AgentLaunchFailed:
    """Return the error for a server that answered and rejected the connection."""
    if status in (401, 403):
        return AgentLaunchFailed(
            f"the agent at {shown(url)} refuses the credential (HTTP {status}); check the token",
            definite=True,
            status=status,
        )
    return AgentLaunchFailed(
        f"there is no agent at {shown(url)} (HTTP {status}); check the URL", definite=status < 500, status=status
    )


def unreachable(url: str, error: Exception) -> AgentLaunchFailed:
    """Return the error for an address without an answer. The text of a foreign exception is not included."""
    return AgentLaunchFailed(
        f"no agent answers at {shown(url)}; start it, or check the URL", definite=False, reason=type(error).__name__
    )
