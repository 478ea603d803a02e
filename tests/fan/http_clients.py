"""HTTP for a bare client, in both versions: POST a message, read a stream.

HTTP/1.1 is httpx. HTTP/2 is a connection of our own over `h2`, with prior knowledge: one task reads it for all of
its streams, because with httpx what has come for one stream may wait until something comes for another.
"""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import anyio
import httpx
from anyio.abc import SocketStream
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from tests.fan.programs import TOKEN
from tests.support.heard import WAIT_S

PATH = "/acp"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
_TLS = ssl.create_default_context()
"""Making one takes longer than a test does; none of them uses it."""


class Posted(NamedTuple):
    """The answer to a POST."""

    status: int
    headers: dict[str, str]
    body: bytes


class Web(Protocol):
    """HTTP of one version to one daemon."""

    async def post(self, message: Any, headers: dict[str, str]) -> Posted: ...

    def stream(self, headers: dict[str, str]) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A stream that has begun; leaving the block drops it."""
        ...


def http_client(url: str) -> httpx.AsyncClient:
    """HTTP/1.1 with the owner's token."""
    timeout = httpx.Timeout(WAIT_S, read=None)
    return httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=timeout, verify=_TLS, trust_env=False)


class OldWeb:
    """HTTP/1.1."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def post(self, message: Any, headers: dict[str, str]) -> Posted:
        answer = await self._client.post(PATH, json=message, headers=headers)
        assert answer.http_version == "HTTP/1.1"
        return Posted(answer.status_code, dict(answer.headers), answer.content)

    @asynccontextmanager
    async def stream(self, headers: dict[str, str]) -> AsyncGenerator[AsyncIterator[bytes]]:
        async with self._client.stream("GET", PATH, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield response.aiter_raw()


class _Stream:
    """One request of an HTTP/2 connection, and what has come of it."""

    def __init__(self) -> None:
        self.head: dict[str, str] = {}
        self.begun = anyio.Event()
        self.is_over = False
        self.put, self.body = anyio.create_memory_object_stream[bytes](math.inf)

    def take(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):
            self.head = {_text(name): _text(value) for name, value in event.headers}
            self.begun.set()
        elif isinstance(event, DataReceived):
            self.put.send_nowait(event.data)
        elif isinstance(event, StreamEnded | StreamReset):
            self.is_over = True
            self.put.close()


class NewWeb:
    """HTTP/2."""

    def __init__(self, wire: SocketStream, authority: str) -> None:
        self._wire = wire
        self._authority = authority
        self._state = H2Connection(H2Configuration(client_side=True))
        self._streams: dict[int, _Stream] = {}
        self._sending = anyio.Lock()

    async def run(self) -> None:
        """Read for all streams, until the connection ends."""
        async for chunk in self._wire:
            for event in self._state.receive_data(chunk):
                stream_id = getattr(event, "stream_id", None)
                if isinstance(event, DataReceived):
                    self._state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if stream_id in self._streams:
                    self._streams[stream_id].take(event)
            await self._flush()

    async def start(self) -> None:
        self._state.initiate_connection()
        await self._flush()

    async def post(self, message: Any, headers: dict[str, str]) -> Posted:
        body = json.dumps(message).encode()
        async with self._asked("POST", {"content-type": "application/json", **headers}, body) as asked:
            pieces = [each async for each in asked.body]
            return Posted(int(asked.head[":status"]), asked.head, b"".join(pieces))

    @asynccontextmanager
    async def stream(self, headers: dict[str, str]) -> AsyncGenerator[AsyncIterator[bytes]]:
        async with self._asked("GET", headers) as asked:
            assert asked.head[":status"] == "200", asked.head
            yield asked.body

    @asynccontextmanager
    async def _asked(self, method: str, headers: dict[str, str], body: bytes = b"") -> AsyncGenerator[_Stream]:
        stream_id = self._state.get_next_available_stream_id()
        asked = self._streams[stream_id] = _Stream()
        named = {":method": method, ":scheme": "http", ":authority": self._authority, ":path": PATH}
        given = {name.lower(): value for name, value in (HEADERS | headers).items()}
        self._state.send_headers(stream_id, list({**named, **given}.items()), end_stream=not body)
        if body:
            self._state.send_data(stream_id, body, end_stream=True)
        try:
            await self._flush()
            with anyio.fail_after(WAIT_S):
                await asked.begun.wait()
            yield asked
        finally:
            asked.put.close()
            asked.body.close()
            del self._streams[stream_id]
            if not asked.is_over:
                self._state.reset_stream(stream_id)
                with anyio.CancelScope(shield=True), anyio.move_on_after(WAIT_S):
                    await self._flush()

    async def _flush(self) -> None:
        async with self._sending:
            await self._wire.send(self._state.data_to_send())


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


@asynccontextmanager
async def open_web(url: str, *, http2: bool) -> AsyncGenerator[Web]:
    """HTTP to a daemon; everything is dropped at the end of the block."""
    if not http2:
        async with http_client(url) as client:
            yield OldWeb(client)
        return
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    async with (
        await anyio.connect_tcp(address.hostname, address.port) as wire,
        anyio.create_task_group() as tasks,
    ):
        web = NewWeb(wire, address.netloc)
        await web.start()
        tasks.start_soon(web.run)
        yield web
        tasks.cancel_scope.cancel()
