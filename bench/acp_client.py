"""One turn over `/acp`, and how long it took: the client of the measurement, for Streamable HTTP and WebSocket.

Takes a port, a path and a credential; opens a connection and a session as any ACP client does, then counts what a
long turn sends. It counts the updates by their method's name in the bytes that arrive, whatever frames them, so it
costs little and costs every server the same. Knows only what the measured servers send.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from bench.daemon_http import HOST, WAIT_S, Connection, request

UPDATE = b'"session/update"'
END = b'"stopReason"'
KEPT_BYTES = max(len(UPDATE), len(END)) - 1
TEXT_FRAME = 0x81
MASKED = 0x80
SHORT, MEDIUM = 125, 126
ACCEPTED = (200, 202)


class Server(NamedTuple):
    """Where to talk to."""

    port: int
    path: str
    headers: dict[str, str]
    cwd: str


class Turn(NamedTuple):
    """What came of one."""

    updates: int
    seconds: float


class Counter(asyncio.Protocol):
    """One stream of any kind: counts updates, knows when the turn's answer is here, keeps the beginning."""

    def __init__(self, opening: bytes) -> None:
        self._opening = opening
        self._tail = b""
        self._waiting: asyncio.Future[None] | None = None
        self._until: Callable[[], bool] = bool
        self.first = b""
        """All that came before the turn."""
        self.counts = False
        self.updates = 0
        self.ended_at = 0.0

    @classmethod
    async def open(cls, port: int, opening: bytes) -> Counter:
        """Returns when the server has begun to answer."""
        _, counter = await asyncio.get_running_loop().create_connection(lambda: cls(opening), HOST, port)
        await counter.until(lambda: b"\r\n\r\n" in counter.first)
        return counter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._opening)

    def write(self, sent: bytes) -> None:
        self._transport.write(sent)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self.counts:
            # A word that was cut in two is found with what came before it; none is found twice.
            joined = self._tail + data
            self.updates += joined.count(UPDATE) - self._tail.count(UPDATE)
            if END in joined:
                self.ended_at = time.perf_counter()
            self._tail = joined[-KEPT_BYTES:]
        else:
            self.first += data
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionError(f"the server closed the stream: {self.first[-500:]}"))

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait for something that is looked at whenever bytes arrive."""
        self._until = met
        self._waiting = asyncio.get_running_loop().create_future()
        self._look()
        await asyncio.wait_for(self._waiting, WAIT_S)

    def _look(self) -> None:
        if self._waiting is not None and not self._waiting.done() and self._until():
            self._waiting.set_result(None)


def message(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def initialize() -> dict[str, Any]:
    return message(1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})


def new_session(server: Server) -> dict[str, Any]:
    return message(2, "session/new", {"cwd": server.cwd, "mcpServers": []})


def prompt(number: int, session_id: str, chunks: int) -> dict[str, Any]:
    text = {"type": "text", "text": f"burst {chunks}"}
    return message(number, "session/prompt", {"sessionId": session_id, "prompt": [text]})


def session_id_in(came: bytes) -> str:
    """The id in the answer to `session/new`."""
    return came.partition(b'"sessionId"')[2].split(b'"')[1].decode()


async def turn(stream: Counter, say: Callable[[], Coroutine[Any, Any, None]]) -> Turn:
    stream.counts = True
    stream.updates, stream.ended_at = 0, 0.0
    begun = time.perf_counter()
    await say()
    await stream.until(lambda: stream.ended_at > 0)
    stream.counts = False
    return Turn(stream.updates, stream.ended_at - begun)


async def over_http(server: Server, chunks: int) -> Turn:
    """A short turn to warm up, then the long one."""
    posts = await Connection.open(server.port)

    async def post(body: dict[str, Any], extra: dict[str, str]) -> bytes:
        reply = await posts.ask(request("POST", server.path, server.headers | extra, body))
        assert reply.status in ACCEPTED, f"HTTP {reply.status}: {reply.body!r}"
        return reply.head

    head = await post(initialize(), {"Accept": "application/json, text/event-stream"})
    named = {"Acp-Connection-Id": header(head, b"acp-connection-id")}
    events = {**server.headers, **named, "Accept": "text/event-stream"}
    everything = await Counter.open(server.port, request("GET", server.path, events))
    await post(new_session(server), named)
    await everything.until(lambda: b'"sessionId"' in everything.first)
    session_id = session_id_in(everything.first)
    named["Acp-Session-Id"] = session_id
    stream = await Counter.open(server.port, request("GET", server.path, events | named))
    for number, count in ((3, 10), (4, chunks)):
        found = await turn(stream, lambda n=number, c=count: _post(post, prompt(n, session_id, c), named))
    for each in (posts, stream, everything):
        each.close()
    return found
