"""Transports to a server at an address: WebSocket, and Streamable HTTP, which has a stream for each session.

Routing is by headers, as the draft of the transports defines. Over HTTP, frames of different streams have no order:
a frame's channel names its stream, and cases that depend on such an order are not checked there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx
from anyio.abc import TaskGroup
from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from turnwire.errors import LinkBroken
from turnwire_check.tape import Tape, at, read
from turnwire_check.transport import Opener, Transport

OPENING_S = 10.0
CONNECTION, SESSION = "Acp-Connection-Id", "Acp-Session-Id"
LARGEST = 64 * 1024 * 1024


def unreachable(url: str) -> LinkBroken:
    return LinkBroken(f"no ACP server answers at {url}; look at the address and the headers")


# -- WebSocket -------------------------------------------------------------------------------------------------


class SocketTransport:
    """One WebSocket: a text frame is a message."""

    def __init__(self, socket: Connection) -> None:
        self.tape = Tape()
        self._socket = socket

    async def send(self, raw: bytes) -> None:
        with suppress(ConnectionClosed):
            for line in filter(None, raw.split(b"\n")):
                await self._socket.send(line.decode(errors="replace"))

    async def more(self, length: int) -> bool:
        await self.tape.longer_than(length)
        return len(self.tape.frames) > length

    async def read(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                message = await self._socket.recv()
                if isinstance(message, str):
                    self.tape.add(message.encode(), is_ours=False)
        self.tape.end("it closed the connection")


def socket_opener(url: str, headers: Mapping[str, str]) -> Opener:
    """Return an opener whose connections are separate WebSockets."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Transport]:
        try:
            socket = await connect(
                url, additional_headers=headers, max_size=LARGEST, open_timeout=OPENING_S, proxy=None
            )
        except (OSError, InvalidHandshake, TimeoutError):
            raise unreachable(url) from None
        transport = SocketTransport(socket)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(transport.read)
                yield transport
                await socket.close()
        finally:
            with anyio.CancelScope(shield=True):
                await socket.close()

    return opened


# -- Streamable HTTP -------------------------------------------------------------------------------------------


class StreamableTransport:
    """One connection over HTTP: our messages are POSTs, the peer's arrive on streams."""

    def __init__(self, http: httpx.AsyncClient, url: str, tasks: TaskGroup) -> None:
        self.tape = Tape()
        self._http = http
        self._url = url
        self._tasks = tasks
        self._connection: str | None = None
        self._streams: dict[str, anyio.Event] = {}
        self._asked: dict[str, str] = {}
        """The stream of each request of the agent."""

    async def send(self, raw: bytes) -> None:
        for line in filter(None, raw.split(b"\n")):
            try:
                await self._post(line)
            except httpx.HTTPError:
                self.tape.end("it does not answer over HTTP")

    async def _post(self, line: bytes) -> None:
        try:
            message: object = json.loads(line)
        except ValueError:
            message = None
        session = self._session_of(message)
        if session is not None and self._connection is not None:
            await self._listen(session)
        headers = {CONNECTION: self._connection} if self._connection is not None else {}
        if session is not None:
            headers[SESSION] = session
        answer = await self._http.post(
            self._url, content=line, headers={"Content-Type": "application/json", **headers}
        )
        if answer.status_code == 200 and answer.content:
            self._connection = answer.headers.get(CONNECTION, self._connection)
            self.tape.add(answer.content.strip(), is_ours=False, channel="POST")
            if self._connection is not None:
                await self._listen("")
        elif answer.is_error and at(read(answer.content)[0], "jsonrpc") is not None:
            # A JSON-RPC error in addition to the status.
            self.tape.add(answer.content.strip(), is_ours=False, channel="POST")
        elif answer.is_error and self._connection is None:
            self.tape.end(f"it answered HTTP {answer.status_code}")

    def _session_of(self, message: object) -> str | None:
        named = at(message, "params", "sessionId")
        if at(message, "method") is None:
            named = self._asked.get(json.dumps(at(message, "id")))
        return named if isinstance(named, str) and named else None

    async def _listen(self, session: str) -> None:
        """Open the stream of a session, or of the connection; return when its headers are there."""
        if session not in self._streams:
            self._streams[session] = anyio.Event()
            self._tasks.start_soon(self._read, session)
        with anyio.move_on_after(OPENING_S):
            await self._streams[session].wait()

    async def _read(self, session: str) -> None:
        headers = {"Accept": "text/event-stream", CONNECTION: self._connection or ""}
        if session:
            headers[SESSION] = session
        with suppress(httpx.HTTPError):
            async with self._http.stream("GET", self._url, headers=headers) as stream:
                if stream.status_code == 200:
                    self._streams[session].set()
                    await self._events(stream, session)
        self._streams[session].set()
        if not session:
            self.tape.end("it closed the stream of the connection")

    async def _events(self, stream: httpx.Response, session: str) -> None:
        lines: list[str] = []
        async for line in stream.aiter_lines():
            if line.startswith("data:"):
                lines.append(line[5:].removeprefix(" "))
            elif not line and lines:
                await self._take("\n".join(lines).encode(), session)
                lines.clear()

    async def _take(self, raw: bytes, session: str) -> None:
        frame = self.tape.add(raw, is_ours=False, channel=session or "connection")
        if frame.is_request:
            self._asked[json.dumps(frame.id)] = session
        opened: Any = at(frame.result, "sessionId")
        if not session and isinstance(opened, str) and opened not in self._streams:
            self._streams[opened] = anyio.Event()
            self._tasks.start_soon(self._read, opened)

    async def more(self, length: int) -> bool:
        await self.tape.longer_than(length)
        return len(self.tape.frames) > length

    async def leave(self) -> None:
        if self._connection is not None:
            with suppress(httpx.HTTPError):
                await self._http.delete(self._url, headers={CONNECTION: self._connection})


def streamable_opener(url: str, headers: Mapping[str, str]) -> Opener:
    """Each connection is one over Streamable HTTP."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Transport]:
        timeout = httpx.Timeout(OPENING_S, read=None)
        async with (
            httpx.AsyncClient(headers=dict(headers), timeout=timeout, trust_env=False) as http,
            anyio.create_task_group() as tasks,
        ):
            transport = StreamableTransport(http, url, tasks)
            yield transport
            await transport.leave()
            tasks.cancel_scope.cancel()

    return opened


def url_opener(url: str, headers: Mapping[str, str]) -> Opener:
    """By the scheme of the address."""
    return socket_opener(url, headers) if url.startswith(("ws:", "wss:")) else streamable_opener(url, headers)
