"""Somebody who speaks HTTP/2 over a socket of their own, and minds no rules that they do not want to mind."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
import h2.config
import h2.connection
import h2.events
from anyio.abc import SocketStream
from h2.settings import SettingCodes, Settings
from tests.patience import SOON_S

GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Http2Peer:
    """One connection. What comes is taken by whoever waits for something; `came` and `ends` keep all of it."""

    def __init__(self, stream: SocketStream, host: str, settings: dict[SettingCodes, int]) -> None:
        self.stream = stream
        self.host = host
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.local_settings = Settings(client=True, initial_values=settings)
        self.h2.initiate_connection()
        self.came: dict[int, bytes] = {}
        """Bodies of answers, by stream."""
        self.statuses: dict[int, int] = {}
        self.ends: dict[int, int | None] = {}
        """Streams that are over: none for a whole answer, or the error that it was reset with."""
        self.resets: dict[int, int | None] = {}
        """Of them and of others, with the error."""
        self.goodbye: int | None = None
        self.pongs = 0

    async def flush(self) -> None:
        await self.stream.send(self.h2.data_to_send())

    async def ask(
        self, stream_id: int, path: str, *more: tuple[str, str], method: str = "GET", authority: str | None = None
    ) -> None:
        pseudo = [(":method", method), (":scheme", "http"), (":authority", authority or self.host), (":path", path)]
        self.h2.send_headers(stream_id, [*pseudo, *more], end_stream=True)
        await self.flush()

    async def next(self, *, makes_room: bool = True) -> None:
        """Take what comes."""
        for event in self.h2.receive_data(await self.stream.receive()):
            self._take(event, makes_room=makes_room)
        await self.flush()

    def _take(self, event: h2.events.Event, *, makes_room: bool) -> None:
        match event:
            case h2.events.ResponseReceived(stream_id=int(stream_id), headers=headers):
                self.statuses[stream_id] = int(dict(headers or ())[b":status"])
            case h2.events.DataReceived(stream_id=int(stream_id), data=bytes(data), flow_controlled_length=size):
                self.came[stream_id] = self.came.get(stream_id, b"") + data
                if makes_room and size:
                    self.h2.acknowledge_received_data(size, stream_id)
            case h2.events.StreamEnded(stream_id=int(stream_id)):
                self.ends.setdefault(stream_id, None)
            case h2.events.StreamReset(stream_id=int(stream_id), error_code=code):
                self.ends.setdefault(stream_id, code)
                self.resets[stream_id] = code
            case h2.events.ConnectionTerminated(error_code=int(code)):
                self.goodbye = code
            case h2.events.PingAckReceived():
                self.pongs += 1
            case _:
                pass

    async def status(self, stream_id: int) -> int:
        """Of the answer on this stream."""
        with anyio.fail_after(SOON_S):
            while stream_id not in self.statuses:
                await self.next()
        return self.statuses[stream_id]

    async def body(self, stream_id: int) -> bytes:
        """The whole answer on this stream."""
        with anyio.fail_after(SOON_S):
            while stream_id not in self.ends:
                await self.next()
        assert self.ends[stream_id] is None
        return self.came.get(stream_id, b"")

    async def pong(self) -> None:
        """Wait until all that was sent has been read."""
        before = self.pongs
        self.h2.ping(b"12345678")
        await self.flush()
        with anyio.fail_after(SOON_S):
            while self.pongs == before:
                await self.next()

    async def closed(self) -> int | None:
        """Wait until the connection is closed; gives the reason that was told."""
        with anyio.fail_after(SOON_S):
            try:
                while True:
                    for event in self.h2.receive_data(await self.stream.receive()):
                        self._take(event, makes_room=False)
            except GONE:
                return self.goodbye


@asynccontextmanager
async def http2_peer(url: str, settings: dict[SettingCodes, int] | None = None) -> AsyncGenerator[Http2Peer]:
    parts = urlsplit(url)
    async with await anyio.connect_tcp(parts.hostname or "", parts.port or 80) as stream:
        peer = Http2Peer(stream, parts.netloc, settings or {})
        await peer.flush()
        yield peer
