"""What is fuzzed of HTTP/2: the bytes of one connection, before anybody knows whose it is, without a socket.

Takes any bytes behind the preface, cut into pieces by the first of them; returns, or raises `AssertionError`. The
application behind it reads bodies and gives long answers, so that both directions of flow control are met.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import h2.config
import h2.connection
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from starlette.types import ASGIApp, Receive, Scope, Send

from turnwire.server.bodies import HeldBytes
from turnwire.server.endpoint import HTTP2_PREFACE
from turnwire.server.http2 import MOST_FRAME, Http2Connection

HEADER_BYTES = 1024
ANSWER = b"x" * 40_000
TURNS_OF_THE_LOOP = 12
"""After the last piece: enough for each answer that waits for nobody, and for the end of those that do."""
LONGEST_S = 5.0


class _Transport(asyncio.Transport):
    """Takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._is_closing, "nothing is written to what is closed"
        self.written += data

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0


class _Around:
    """A server of this one connection. Implements `http2.Around`."""

    header_bytes = HEADER_BYTES
    stall_s = 60.0
    linger_s = 60.0

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self.app: ASGIApp = self._app
        self.default_headers = [(b"date", b"now")]
        self.connections: set[Any] = set()
        self.waiting: set[Any] = set()
        self.running = 0
        self.failures: list[Exception] = []

    def waits(self, connection: object, drop: Callable[[], None]) -> None:
        self.waiting.add(connection)

    def works(self, connection: object) -> None:
        self.waiting.discard(connection)

    def start(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.start_soon(run)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.running += 1
        try:
            while (await receive()).get("more_body"):
                pass
            status = 204 if scope["path"] == "/204" else 200
            await send({"type": "http.response.start", "status": status, "headers": []})
            if status == 200:
                await send({"type": "http.response.body", "body": ANSWER, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except Exception as error:  # noqa: BLE001 the server must not raise here, whatever the client does
            self.failures.append(error)
        finally:
            self.running -= 1


_loops: list[asyncio.AbstractEventLoop] = []


def http2(data: bytes) -> None:
    """Whatever a client sends, nothing fails, no more is held than a head, and all ends with the connection."""
    if not _loops:
        _loops.append(asyncio.new_event_loop())
    _loops[0].run_until_complete(_connection(data))


async def _connection(data: bytes) -> None:
    step = (data[0] if data else 0) % 64 * 8 + 1
    data = HTTP2_PREFACE + data[1:]
    transport, heads = _Transport(), HeldBytes(10**9)
    with anyio.fail_after(LONGEST_S):
        async with anyio.create_task_group() as tasks:
            around = _Around(tasks)
            connection = Http2Connection(around, heads.holder(transport.abort), first_s=60, idle_s=60)
            connection.connection_made(transport)
            for at in range(0, len(data), step):
                if transport.is_closing():
                    break
                connection.data_received(data[at : at + step])
                await checkpoint()
                assert heads.all <= 2 * HEADER_BYTES + MOST_FRAME + 16
            for _ in range(TURNS_OF_THE_LOOP):
                await checkpoint()
            transport.close()
            connection.connection_lost(None)
            for _ in range(TURNS_OF_THE_LOOP):
                await checkpoint()
            assert (around.running, around.failures) == (0, [])
            assert (heads.all, around.connections, around.waiting) == (0, set(), set())
    _check_frames(transport.written)


def _check_frames(written: bytearray) -> None:
    """What the client reads are whole frames."""
    at = 0
    while at < len(written):
        size = int.from_bytes(written[at : at + 3], "big")
        assert size <= MOST_FRAME
        at += 9 + size
    assert at == len(written)


def _said(*, window: int = 65_535, method: str = "GET", bodies: int = 0, resets: bool = False) -> bytes:
    """What a client says."""
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    client.update_settings({4: window})
    for number, path in enumerate(("/", "/204", "/long?x=y")):
        stream_id = 2 * number + 1
        head = [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path), ("x-y", "z" * 20)]
        client.send_headers(stream_id, head, end_stream=not bodies)
        for each in range(bodies):
            client.send_data(stream_id, b"body" * 20, end_stream=each == bodies - 1, pad_length=each or None)
        client.increment_flow_control_window(1000)
        if resets:
            client.reset_stream(stream_id)
    client.ping(b"12345678")
    return client.data_to_send().removeprefix(HTTP2_PREFACE)


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


SETTINGS = _frame(4, 0, 0, b"")
HEAD = b"\x82\x86\x84\x41\x01a"
"""GET, http, / and a name for us, as HPACK writes them."""
HTTP2_SEEDS = tuple(
    bytes((step,)) + said
    for step in (0, 3, 63)
    for said in (
        _said(),
        _said(window=0),
        _said(method="HEAD"),
        _said(method="POST", bodies=3),
        _said(method="POST", bodies=2, resets=True),
        SETTINGS + _frame(1, 0x1, 1, HEAD[:3]) + _frame(9, 0, 1, HEAD[3:4]) + _frame(9, 0x4, 1, HEAD[4:]),
        SETTINGS + _frame(1, 0x4, 1, HEAD) + _frame(1, 0x5, 1, b"\x00\x01t\x01v"),
        SETTINGS + _frame(1, 0x5, 1, HEAD) + _frame(7, 0, 0, b"\x00" * 8) + _frame(1, 0x5, 3, HEAD),
        SETTINGS + _frame(1, 0x5, 1, HEAD) + _frame(8, 0, 1, b"\x7f\xff\x00\x00") + _frame(3, 0, 1, b"\x00" * 4),
        SETTINGS + _frame(2, 0, 1, b"\x00" * 5) + _frame(0, 0, 1, b"early") + _frame(5, 4, 1, b"\x00\x00\x00\x02"),
    )
)
