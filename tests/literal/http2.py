"""One HTTP/2 connection with prior knowledge: a thread reads it for all requests that are open."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from threading import Condition, Lock, Thread

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from tests.patience import SOON_S

READ_BYTES = 65536


class Exchange:
    """One request and what came back so far."""

    def __init__(self, connection: Http2Connection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._arrived = Condition()
        self._headers: dict[str, str] | None = None
        self._body = bytearray()
        self._is_over = False

    def take_headers(self, headers: dict[str, str]) -> None:
        with self._arrived:
            self._headers = headers
            self._arrived.notify_all()

    def take_body(self, piece: bytes) -> None:
        with self._arrived:
            self._body += piece
            self._arrived.notify_all()

    def over(self) -> None:
        with self._arrived:
            self._is_over = True
            self._arrived.notify_all()

    @property
    def headers(self) -> Mapping[str, str]:
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._headers is not None or self._is_over, SOON_S):
                raise AssertionError("no response on HTTP/2")
            assert self._headers is not None, "the stream ended without a response"
            return self._headers

    @property
    def status(self) -> int:
        return int(self.headers[":status"])

    def whole(self) -> bytes:
        """The body, once it is complete."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self._is_over, SOON_S), "the response has no end"
            return bytes(self._body)

    def lines(self) -> Iterator[bytes]:
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: b"\n" in self._body or self._is_over)
                end = self._body.find(b"\n") + 1
                if not end:
                    return
                line = bytes(self._body[:end])
                del self._body[:end]
            yield line

    def close(self) -> None:
        self._connection.reset(self._number)
        self.over()


class Http2Connection:
    """The connection, its writer's lock and its reader."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._address = address
        self._socket = socket.create_connection((host, int(port)), SOON_S)
        self._socket.settimeout(None)
        self._protocol = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._lock = Lock()
        self._open: dict[int, Exchange] = {}
        with self._lock:
            self._protocol.initiate_connection()
            self._flush()
        Thread(target=self._read, daemon=True).start()

    def open(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Exchange:
        """Send a request; its response comes in its own time."""
        fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", self._address)]
        fields += [(name.lower(), value) for name, value in headers.items()]
        with self._lock:
            number = self._protocol.get_next_available_stream_id()
            exchange = self._open[number] = Exchange(self, number)
            self._protocol.send_headers(number, fields, end_stream=body is None)
            if body is not None:
                self._protocol.send_data(number, body, end_stream=True)
            self._flush()
        return exchange

    def reset(self, number: int) -> None:
        with self._lock, suppress(ProtocolError, OSError):
            self._protocol.reset_stream(number)
            self._flush()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _flush(self) -> None:
        self._socket.sendall(self._protocol.data_to_send())

    def _read(self) -> None:
        with suppress(OSError, ProtocolError):
            while received := self._socket.recv(READ_BYTES):
                with self._lock:
                    for event in self._protocol.receive_data(received):
                        self._take(event)
                    self._flush()
        for exchange in list(self._open.values()):
            exchange.over()

    def _take(self, event: Event) -> None:
        match event:
            case ResponseReceived(stream_id=number, headers=headers):
                self._open[number].take_headers({str(name): str(value) for name, value in headers})
            case DataReceived(stream_id=number, data=piece, flow_controlled_length=length):
                self._protocol.acknowledge_received_data(length or 0, number)
                self._open[number].take_body(piece or b"")
            case StreamEnded(stream_id=number) | StreamReset(stream_id=number):
                self._open[number].over()
            case ConnectionTerminated():
                for exchange in self._open.values():
                    exchange.over()
            case _:
                pass
