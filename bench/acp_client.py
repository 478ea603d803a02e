"""One turn over `/acp`, and how long it took: the client of the measurement, for Streamable HTTP and WebSocket.

Takes where a server is; opens a connection and a session as any ACP client does, then counts what a long turn
sends. It finds chunks by the name of their kind in the bytes that arrive, whatever frames them, so it costs little,
and the same with every server. Knows only what the measured servers send.
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import msgspec

from bench.daemon_http import HOST, WAIT_S, request

CHUNK = b'"agent_message_chunk"'
END = b'"result"'
KEPT_BYTES = max(len(CHUNK), len(END)) - 1
HEAD_END = b"\r\n\r\n"
WARM_UP = 10
"""Chunks of the turn before the one that counts."""
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "bm90IGEgc2VjcmV0ISEhIQ==",
}
TEXT_FRAME = 0x81
MASKED = 0x80
LONG = 126


class Server(NamedTuple):
    """Where to talk to."""

    port: int
    path: str
    headers: dict[str, str]
    cwd: str


class Turn(NamedTuple):
    """What came of one."""

    chunks: int
    seconds: float


class Stream(asyncio.Protocol):
    """What a server sends on one connection. Keeps it, or counts the chunks in it."""

    def __init__(self, opening: bytes) -> None:
        self._opening = opening
        self._tail = b""
        self._waiting: asyncio.Future[None] | None = None
        self._until: Callable[[], bool] = bool
        self.kept = b""
        """All that came before the first turn."""
        self.counts = False
        self.chunks = 0
        self.ended_at = 0.0

    @classmethod
    async def open(cls, port: int, opening: bytes) -> Stream:
        """Returns when the server has begun to answer. Raises `ConnectionError` if it refuses."""
        _, stream = await asyncio.get_running_loop().create_connection(lambda: cls(opening), HOST, port)
        await stream.until(lambda: HEAD_END in stream.kept)
        status = int(stream.kept[9:12])
        if status not in (101, 200, 202):
            raise ConnectionError(f"the server answers {stream.kept[-1000:]!r}")
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._opening)

    def write(self, sent: bytes) -> None:
        self._transport.write(sent)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self.counts:
            # A word may be cut in two. What is kept is too short for a whole one, so none is found twice.
            joined = self._tail + data
            self.chunks += joined.count(CHUNK)
            if END in joined:
                self.ended_at = time.perf_counter()
            self._tail = joined[-KEPT_BYTES:]
        else:
            self.kept += data
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionError("the server closed the connection"))

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait for something that is looked at whenever bytes arrive."""
        self._until = met
        self._waiting = asyncio.get_running_loop().create_future()
        self._look()
        await asyncio.wait_for(self._waiting, WAIT_S)

    def begin(self) -> float:
        """From now on, count."""
        self.counts, self.chunks, self.ended_at, self._tail = True, 0, 0.0, b""
        return time.perf_counter()

    async def turn(self, begun: float) -> Turn:
        """Wait for the answer to the prompt."""
        await self.until(lambda: self.ended_at > 0)
        return Turn(self.chunks, self.ended_at - begun)

    def _look(self) -> None:
        if self._waiting is not None and not self._waiting.done() and self._until():
            self._waiting.set_result(None)


# -- what is said --------------------------------------------------------------------------------------------


def message(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


INITIALIZE = message(1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})


def new_session(server: Server) -> dict[str, Any]:
    return message(2, "session/new", {"cwd": server.cwd, "mcpServers": []})


def prompt(number: int, session_id: str, chunks: int) -> dict[str, Any]:
    text = {"type": "text", "text": f"burst {chunks}"}
    return message(number, "session/prompt", {"sessionId": session_id, "prompt": [text]})


async def session_id_on(stream: Stream) -> str:
    """The id in the answer to `session/new`, which is the first message that has one."""
    await stream.until(lambda: stream.kept.partition(b'"sessionId"')[2].count(b'"') > 1)
    return stream.kept.partition(b'"sessionId"')[2].split(b'"')[1].decode()


# -- Streamable HTTP -----------------------------------------------------------------------------------------


async def over_http(server: Server, chunks: int) -> Turn:
    """A short turn to warm up, then the one that counts."""
    headers = server.headers | {"Accept": "application/json, text/event-stream"}

    async def post(body: dict[str, Any]) -> Stream:
        return await Stream.open(server.port, request("POST", server.path, headers | {"Connection": "close"}, body))

    async def get() -> Stream:
        return await Stream.open(server.port, request("GET", server.path, headers))

    found = re.search(rb"\r\nacp-connection-id: *(\S+)", (await post(INITIALIZE)).kept, re.IGNORECASE)
    assert found is not None, "the answer to `initialize` names no connection"
    headers["Acp-Connection-Id"] = found[1].decode()
    everything = await get()
    await post(new_session(server))
    headers["Acp-Session-Id"] = session_id = await session_id_on(everything)
    stream = await get()
    turn = Turn(0, 0.0)
    for number, count in ((3, WARM_UP), (4, chunks)):
        begun = stream.begin()
        await post(prompt(number, session_id, count))
        turn = await stream.turn(begun)
    stream.close()
    everything.close()
    return turn


# -- WebSocket -----------------------------------------------------------------------------------------------


async def over_websocket(server: Server, chunks: int) -> Turn:
    """A short turn to warm up, then the one that counts."""
    stream = await Stream.open(server.port, request("GET", server.path, server.headers | UPGRADE))
    stream.write(text_frame(INITIALIZE))
    await stream.until(lambda: b'"protocolVersion"' in stream.kept)
    stream.write(text_frame(new_session(server)))
    session_id = await session_id_on(stream)
    turn = Turn(0, 0.0)
    for number, count in ((3, WARM_UP), (4, chunks)):
        begun = stream.begin()
        stream.write(text_frame(prompt(number, session_id, count)))
        turn = await stream.turn(begun)
    stream.close()
    return turn


def text_frame(body: dict[str, Any]) -> bytes:
    """A message as a client sends it: masked, here with zeros, which change nothing."""
    sent = msgspec.json.encode(body)
    size = bytes([MASKED | len(sent)]) if len(sent) < LONG else struct.pack("!BH", MASKED | LONG, len(sent))
    return bytes([TEXT_FRAME]) + size + bytes(4) + sent
