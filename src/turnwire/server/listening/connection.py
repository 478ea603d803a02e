"""One HTTP/1.1 connection, as uvicorn reads it, with the bounds that it lacks.

Takes bytes of a client; gives requests to the application. Refuses a head that is too long before it is whole, and
closes a connection whose head takes too long to come. Offers the application to drop the connection (`ABORT`), and
to learn that the client has closed it after a last reply (`LINGERS`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turnwire.limits import Limits
from turnwire.server.endpoint import LINGERS
from turnwire.server.streams.stream import ABORT

HEAD_S = 30.0
"""What a client gets to send the head of a request; slow lines need a second or two."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with bounds on the head of a request."""

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self._most = limits.header_bytes
        self._head_bytes = 0
        self._in_head = True
        self._too_late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._too_late = self.loop.call_later(HEAD_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._most and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        if self._too_late is None:
            self._too_late = self.loop.call_later(HEAD_S, self.transport.abort)
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}, LINGERS: {}}

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_time()
        super().on_headers_complete()

    def _in_time(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None
