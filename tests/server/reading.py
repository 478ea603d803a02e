"""Readers of event streams for tests: over any HTTP version, and over a bare socket that can be cut anywhere.

They read a running daemon's events as they arrive. Every wait is bounded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import httpx
import msgspec
from msgspec import Raw
from tests.support.daemons import Running

from turnwire.ids import PromptId, SessionId
from turnwire.limits import MiB
from turnwire.session.inputs import Prompt
from turnwire.wire.sse import SseEvent, SseReader
from turnwire_testing.patience import WAIT_S

ENDS = frozenset({"turn_complete", "turn_error"})
MARKERS = frozenset({"replay_complete", "state_resync_required", "session_snapshot"})
"""Frames that are made for one stream and have no id."""


class Seen(NamedTuple):
    """An event of a stream."""

    id: str | None
    type: str
    envelope: dict[str, Any]

    @property
    def offset(self) -> int:
        return self.envelope["id"]

    @property
    def data(self) -> dict[str, Any]:
        return self.envelope["data"]


def seen(event: SseEvent) -> Seen:
    envelope = json.loads(event.data)
    assert envelope["v"] == 1
    assert envelope["type"] == event.event
    return Seen(event.id, event.event, envelope)


class Reader:
    """One open stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.bytes = b""
        """All that has come, as it came. Cheap in tests only."""
        self.sse = SseReader(64 * MiB)
        self._chunks = response.aiter_raw()
        self._ready: list[Seen] = []

    async def next(self) -> Seen:
        """The next event. Raises `StopAsyncIteration` when the stream has ended."""
        with anyio.fail_after(WAIT_S):
            while not self._ready:
                await self._more()
        return self._ready.pop(0)

    async def until(self, found: Callable[[Seen], bool]) -> list[Seen]:
        """Events up to the first one that is looked for."""
        events = [await self.next()]
        while not found(events[-1]):
            events.append(await self.next())
        return events

    async def until_bytes(self, part: bytes) -> None:
        with anyio.fail_after(WAIT_S):
            while part not in self.bytes:
                await self._more()

    async def to_the_end(self) -> list[Seen]:
        """Return the rest of the events until the stream ends by itself."""
        with anyio.fail_after(WAIT_S):
            async for chunk in self._chunks:
                self._take(chunk)
        events, self._ready = self._ready, []
        return events

    async def _more(self) -> None:
        self._take(await anext(self._chunks))

    def _take(self, chunk: bytes) -> None:
        self.bytes += chunk
        self._ready += map(seen, self.sse.feed(chunk))


@asynccontextmanager
async def reading(client: httpx.AsyncClient, path: str, **headers: str) -> AsyncGenerator[Reader]:
    """Open a stream that has begun: its first bytes have arrived, so it misses nothing from now on."""
    async with client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        reader = Reader(response)
        # The block with the position, which comes after all that the stream begins with but `replay_complete`.
        await reader.until_bytes(b"\nid: ")
        yield reader


def after(offset: object) -> dict[str, str]:
    return {"Last-Event-ID": str(offset)}


def is_end(event: Seen) -> bool:
    return event.type in ENDS


def offsets(events: list[Seen]) -> list[int]:
    return [each.offset for each in events if each.type not in MARKERS]


def types(events: list[Seen]) -> list[str]:
    return [each.type for each in events]


async def open_session(running: Running, session_id: str | None = None) -> SessionId:
    """Open a session and wait for its agent, so that all later events are the test's."""
    node = running.daemon.node
    with anyio.fail_after(WAIT_S):
        created = await node.create(
            str(running.daemon.roots[0]), session_id=SessionId(session_id) if session_id else None
        )
        session = await node.session(created)
        while session.state.agent is None:
            await session.tail.wait(session.tail.head)
    return created


async def prompt(running: Running, session_id: SessionId, text: str, prompt_id: str = "p1") -> None:
    content = Raw(msgspec.json.encode([{"type": "text", "text": text}]))
    given = Prompt(at=running.daemon.clock.now_ms(), prompt_id=PromptId(prompt_id), content=content)
    with anyio.fail_after(WAIT_S):
        await running.daemon.node.submit(session_id, given)


async def ended(running: Running, session_id: SessionId) -> int:
    """Wait until no turn is open; return the head."""
    session = await running.daemon.node.session(session_id)
    with anyio.fail_after(WAIT_S):
        while session.state.unsettled:
            await session.tail.wait(session.tail.head)
    return session.head


class Wire:
    """A bare HTTP/1.1 connection to a stream: reads a given number of bytes, and can be cut anywhere."""

    def __init__(self, running: Running, path: str, headers: dict[str, str]) -> None:
        self._address = urlsplit(running.url)
        lines = [f"GET {path} HTTP/1.1", f"Host: {self._address.netloc}"]
        lines += [f"{name}: {value}" for name, value in (running.headers | headers).items()]
        self._request = "\r\n".join([*lines, "", ""]).encode()

    async def read(self, most: int) -> AsyncGenerator[bytes]:
        """The body, until `most` bytes of the response have come; then the connection is cut."""
        assert self._address.hostname
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        body = Chunked()
        try:
            writer.write(self._request)
            while most > 0 and (part := await reader.read(min(most, 65_536))):
                most -= len(part)
                yield body.feed(part)
        finally:
            writer.transport.abort()


class Chunked:
    """Decodes the bytes of a chunked response to those of its body."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = -1
        """Bytes of the chunk that are to come; -1 in the head of the response."""

    def feed(self, part: bytes) -> bytes:
        self._rest += part
        if self._left < 0:
            head, found, rest = self._rest.partition(b"\r\n\r\n")
            if not found:
                return b""
            assert head.startswith(b"HTTP/1.1 200"), head
            self._rest, self._left = rest, 0
        body: list[bytes] = []
        while self._rest:
            if self._left == 0:
                size, found, rest = self._rest.removeprefix(b"\r\n").partition(b"\r\n")
                if not found:
                    break
                self._rest, self._left = rest, int(size, 16)
                if self._left == 0:
                    break
            body.append(self._rest[: self._left])
            self._rest = self._rest[self._left :]
            self._left -= len(body[-1])
        return b"".join(body)


async def cut_after(
    running: Running, path: str, headers: dict[str, str], most: int, found: Callable[[Seen], bool]
) -> list[Seen]:
    """Return the complete events in the first `most` bytes of a response, or up to the requested event."""
    reader = SseReader(64 * MiB)
    events: list[Seen] = []
    with anyio.fail_after(WAIT_S):
        async with aclosing(Wire(running, path, headers).read(most)) as parts:
            async for part in parts:
                events += map(seen, reader.feed(part))
                if any(map(found, events)):
                    break
    return events
