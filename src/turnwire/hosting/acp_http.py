"""The client side of Streamable HTTP: requests to one `/acp` endpoint, and the event streams it answers with.

`AcpHttp` uses the credentials and cookies of an HTTP client, and sets the connection's id and version headers once
they are known. It returns answers with a bounded body, never follows a redirect and never interprets a status.

`AcpStream` receives the agent's frames for one scope, the whole connection or one session, over successive HTTP
connections. After a disconnect it resumes at the same event if the agent numbers its events, without duplicates or
gaps. Without a number it reconnects only if its owner expects nothing from it; otherwise the loss is unknown and
the stream ends as lost. Its owner, `turnwire.hosting.streamable`, decides the consequences.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias, cast

import anyio
import httpx

from turnwire.errors import LimitExceeded
from turnwire.hosting.backoff import Sleep
from turnwire.limits import Limits
from turnwire.wire.sse import SseReader

CONNECTION_ID, SESSION_ID, VERSION = "Acp-Connection-Id", "Acp-Session-Id", "Acp-Protocol-Version"

GONE: Final = frozenset({401, 403, 404, 410})
"""Statuses for a connection, or a session of it, that does not exist for this client."""

ACCEPT_S: Final = 60.0
"""Timeout for an agent to accept one frame. An agent accepts at once unless it is full; one that stays full this
long is considered stuck.
"""

HEADERS_S: Final = 10.0
"""Timeout for a stream's headers. A stream begins at once, even if there are no events yet."""

AT_ONCE_S: Final = 0.05

RETRY_S, RETRY_MOST_S = 0.5, 10.0


class AcpAnswer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes
    connection_id: str | None

    @property
    def is_accepted(self) -> bool:
        return 200 <= self.status < 300


class AcpHttp:
    """Requests to one endpoint, on one connection of ACP."""

    def __init__(self, url: str, client: httpx.AsyncClient, max_bytes: int) -> None:
        self.url = url
        self.connection_id: str | None = None
        self.version: int | None = None
        self._client = client
        self._max_bytes = max_bytes

    async def post(self, frame: bytes, session_id: str | None, answer_s: float = ACCEPT_S) -> AcpAnswer:
        """Send one frame. Raises `httpx.HTTPError`."""
        headers = self._headers(session_id) | {"Content-Type": "application/json", "Accept": "application/json"}
        timeout = httpx.Timeout(ACCEPT_S, read=answer_s)
        return await self._ask(
            self._client.build_request("POST", self.url, content=frame, headers=headers, timeout=timeout)
        )

    async def delete(self) -> None:
        """End the connection. Raises `httpx.HTTPError`."""
        await self._ask(self._client.build_request("DELETE", self.url, headers=self._headers(None)))

    async def stream(self, session_id: str | None, last_event_id: str | None) -> httpx.Response:
        """Open an event stream; the caller closes it. Raises `httpx.HTTPError`."""
        headers = self._headers(session_id) | {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        # No read timeout: agents need not send heartbeats. The system's TCP keep-alive detects dead peers.
        timeout = httpx.Timeout(ACCEPT_S, read=None)
        request = self._client.build_request("GET", self.url, headers=headers, timeout=timeout)
        return await self._client.send(request, stream=True)

    def _headers(self, session_id: str | None) -> dict[str, str]:
        headers = {
            CONNECTION_ID: self.connection_id,
            SESSION_ID: session_id,
            VERSION: None if self.version is None else str(self.version),
        }
        return {name: value for name, value in headers.items() if value is not None}

    async def _ask(self, request: httpx.Request) -> AcpAnswer:
        response = await self._client.send(request, stream=True)
        body = bytearray()
        try:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > self._max_bytes:
                    body.clear()
                    break
        finally:
            await response.aclose()
        return AcpAnswer(response.status_code, bytes(body), response.headers.get(CONNECTION_ID))


def is_header(text: str) -> bool:
    """Return true if the text is a valid header value."""
    return bool(text) and text.isascii() and text.isprintable() and text == text.strip()


Arrived: TypeAlias = Callable[["AcpStream", bytes], Awaitable[None]]

Expecting: TypeAlias = Callable[["AcpStream"], bool]
"""Returns true if a disconnect of an unnumbered stream may have lost a frame."""


class Standing(StrEnum):
    """The state of a stream."""

    OPENING = "opening"
    OPEN = "open"
    ABSENT = "absent"
    """The agent does not have it (yet)."""
    REFUSED = "refused"
    """For this session only: another client reads it, or it must be loaded again."""
    LOST = "lost"


class AcpStream:
    """The frames of one scope."""

    def __init__(
        self,
        session_id: str | None,
        http: AcpHttp,
        limits: Limits,
        arrived: Arrived,
        expecting: Expecting,
        sleep: Sleep,
    ) -> None:
        self.session_id = session_id
        self.standing = Standing.OPENING
        self.settled = anyio.Event()
        """Set once it is known if the stream is available."""
        self._http = http
        self._limits = limits
        self._arrived = arrived
        self._expecting = expecting
        self._sleep = sleep
        self._last_event_id: str | None = None
        self._retry_s = RETRY_S
        self._away_s = 0.0
        """Seconds waited since a connection last succeeded."""
        self._has_brought = False
        self._moved = anyio.Event()
        self._is_hopeless = False
        self._scope = anyio.CancelScope()

    @property
    def is_numbered(self) -> bool:
        """True if it has received a numbered event, and so can resume after it."""
        return self._last_event_id is not None

    async def run(self) -> None:
        """Read until the stream ends for good; `standing` then holds the reason."""
        with self._scope:
            while True:
                was_good = await self._read()
                if self.standing in (Standing.ABSENT, Standing.REFUSED):
                    break
                is_safe = self.is_numbered or (self.settled.is_set() and not self._expecting(self))
                if not is_safe or self._is_hopeless or not await self._come_back(was_good=was_good):
                    self.standing = Standing.LOST
                    break
        if self._scope.cancelled_caught:
            self.standing = Standing.ABSENT
        self.settled.set()
        self._moved.set()

    def end(self) -> None:
        """End the stream: it is not needed any more."""
        self._scope.cancel()

    async def quiet(self, quiet_s: float, most_s: float) -> None:
        """Return once no event has arrived for `quiet_s`, and after `most_s` in any case."""
        with anyio.move_on_after(most_s):
            while True:
                with anyio.move_on_after(quiet_s) as waiting:
                    await self._move()
                if waiting.cancelled_caught or self.standing is not Standing.OPEN:
                    return

    async def reached(self, event_id: int, most_s: float) -> None:
        """Return once everything up to this event has arrived, or the stream is lost; after `most_s` in any
        case.
        """
        with anyio.move_on_after(most_s):
            while self.standing is Standing.OPEN and not _is_behind(self._last_event_id, event_id):
                await self._move()

    async def _move(self) -> None:
        """Wait for the next data or change of state. Several tasks may wait."""
        if self._moved.is_set():
            self._moved = anyio.Event()
        await self._moved.wait()

    async def _come_back(self, *, was_good: bool) -> bool:
        """Wait before the next try. Return false if the time for retries is used up."""
        if was_good:
            self._away_s = 0.0
            wait_s = AT_ONCE_S
        else:
            wait_s = min(RETRY_MOST_S, max(self._retry_s, self._away_s))
        if self._away_s + wait_s > self._limits.reconnect_s:
            return False
        self._away_s += wait_s
        await self._sleep(wait_s)
        return True

    async def _read(self) -> bool:
        """Read one connection to its end. Return true if it was useful: it delivered an event or lasted a while."""
        opened_at = anyio.current_time()
        self._has_brought = False
        response: httpx.Response | None = None
        try:
            with anyio.fail_after(HEADERS_S):
                response = await self._http.stream(self.session_id, self._last_event_id)
            if response.status_code != 200:
                self._refused(response.status_code)
                return False
            self.standing = Standing.OPEN
            self.settled.set()
            await self._follow(response)
        except (httpx.HTTPError, httpx.StreamError, TimeoutError, LimitExceeded):
            pass
        finally:
            if response is not None:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
        lived_s = anyio.current_time() - opened_at
        return self._has_brought or (self.standing is Standing.OPEN and lived_s > self._limits.heartbeat_s)

    async def _follow(self, response: httpx.Response) -> None:
        reader = SseReader(self._limits.frame_bytes)
        async with aclosing(cast("AsyncGenerator[bytes]", response.aiter_bytes())) as pieces:
            async for piece in pieces:
                for event in reader.feed(piece):
                    # Before the cursor moves, so that a frame which was not accepted is requested again.
                    await self._arrived(self, event.data.encode())
                    self._has_brought = True
                    self._last_event_id = event.id or self._last_event_id
                self._last_event_id = reader.last_event_id or self._last_event_id
                if reader.retry is not None:
                    self._retry_s = reader.retry / 1000
                self._moved.set()

    def _refused(self, status: int) -> None:
        if status in GONE:
            self.standing = Standing.ABSENT
        elif status == 409 and self._last_event_id is None:
            self.standing = Standing.REFUSED
        else:
            self._is_hopeless = status < 500 and status not in (409, 429)


def _is_behind(last_event_id: str | None, event_id: int) -> bool:
    """Return true if the cursor is at or after this event."""
    return last_event_id is not None and last_event_id.isdecimal() and int(last_event_id) >= event_id
