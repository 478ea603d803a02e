"""The requests of Streamable HTTP: what a client asks of one `/acp` endpoint, and under which names.

Takes an HTTP client, whose credentials and cookies it uses; gives answers with a bounded body, and streams. Knows
the connection's id and version once there is one. Never follows a redirect and never judges a status.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import httpx

CONNECTION_ID, SESSION_ID, VERSION = "Acp-Connection-Id", "Acp-Session-Id", "Acp-Protocol-Version"
GONE: Final = frozenset({401, 403, 404, 410})
"""Statuses that say that the connection, or this session of it, is not there for us."""
ACCEPT_S: Final = 60.0
"""An agent accepts a frame at once, unless it is full; one that is full for so long is stuck."""


class Answer(NamedTuple):
    """What came back."""

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

    async def post(self, frame: bytes, session_id: str | None, answer_s: float = ACCEPT_S) -> Answer:
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
        # No limit on silence: agents need not send heartbeats. The system's keep-alive finds out who is dead.
        timeout = httpx.Timeout(ACCEPT_S, read=None)
        request = self._client.build_request("GET", self.url, headers=headers, timeout=timeout)
        return await self._client.send(request, stream=True)

    def _headers(self, session_id: str | None) -> dict[str, str]:
        given = {
            CONNECTION_ID: self.connection_id,
            SESSION_ID: session_id,
            VERSION: None if self.version is None else str(self.version),
        }
        return {name: value for name, value in given.items() if value is not None}

    async def _ask(self, request: httpx.Request) -> Answer:
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
        return Answer(response.status_code, bytes(body), response.headers.get(CONNECTION_ID))


def is_header(text: str) -> bool:
    """Whether a header can hold this."""
    return bool(text) and text.isascii() and text.isprintable() and text == text.strip()
