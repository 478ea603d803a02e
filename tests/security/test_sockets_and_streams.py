"""A credential's open streams and unfinished WebSocket messages are bounded; a flooding client is disconnected."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from tests.patience import SOON_S
from tests.process.starting import needs_linux
from tests.security.intruding import attacked, bearer, issue, open_session
from tests.security.slow_request import GONE, connect
from tests.security.test_connections import FILES, frugal_daemon
from tests.support.daemons import TOKEN, Running

from turnwire.ids import SessionId
from turnwire.limits import KiB, Limits
from turnwire.server import open_streams, websocket_connection
from turnwire.server.access.tokens import Identity, Role
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

TEXT, CONTINUATION, PING, PONG = 1, 0, 9, 10


def frame(opcode: int, size: int = 0, *, is_last: bool = True, declared: int | None = None) -> bytes:
    """Return a masked frame of zeros, or the beginning of one of `declared` bytes."""
    length = size if declared is None else declared
    head = bytes((opcode | (0x80 if is_last else 0), 0x80 | (length if length < 126 else 127)))
    return head + (length.to_bytes(8, "big") if length >= 126 else b"") + bytes(4) + b"\0" * size


class RawSocket:
    """A WebSocket of a client that writes arbitrary bytes."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._came = b""

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def opened(self) -> None:
        with anyio.fail_after(WAIT_S):
            while b"\r\n\r\n" not in self._came:
                self._came += await self._stream.receive()
        head, _, self._came = self._came.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")

    async def until(self, what: bytes) -> None:
        with anyio.fail_after(WAIT_S):
            while what not in self._came:
                self._came += await self._stream.receive()

    async def close_code(self) -> int:
        """Read until the end and return the code of the close frame, skipping pings and pongs."""
        with anyio.fail_after(SOON_S):
            try:
                while True:
                    self._came += await self._stream.receive()
            except GONE:
                pass
        rest = self._came
        while rest and rest[0] != 0x88:
            rest = rest[2 + rest[1] :]
        return int.from_bytes(rest[2:4], "big")


@asynccontextmanager
async def raw_socket(daemon: Running, secret: str) -> AsyncGenerator[RawSocket]:
    lines = {
        "Host": urlsplit(daemon.url).netloc,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        **bearer(secret),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    async with await connect(daemon) as stream:
        await stream.send(f"GET /acp HTTP/1.1\r\n{head}\r\n".encode())
        socket = RawSocket(stream)
        await socket.opened()
        yield socket


# -- WebSocket messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unfinished", "rest"),
    [
        (frame(TEXT, 40 * KiB, is_last=False), frame(CONTINUATION)),
        (frame(TEXT, 40 * KiB, declared=50 * KiB), bytes(10 * KiB)),
    ],
    ids=["fragment", "half a frame"],
)
async def test_unfinished_messages_of_a_credential_are_bounded_together(
    tmp_path: Path, unfinished: bytes, rest: bytes
) -> None:
    limits = Limits(credential_body_bytes=64 * KiB)
    async with attacked(tmp_path, limits=limits) as daemon, AsyncExitStack() as stack:
        _, secret = await issue(daemon, Role.CONTROLLER)
        first, second = [await stack.enter_async_context(raw_socket(daemon, secret)) for _ in range(2)]
        other = await stack.enter_async_context(raw_socket(daemon, daemon.token))
        for socket in (first, other, second):
            await socket.send(unfinished)
            await quiet()
        assert await second.close_code() == 1013
        for socket in (first, other):
            await socket.send(rest + frame(PING))
            await socket.until(b"\x8a\x00")


async def test_an_observers_message_is_small(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon:
        _, secret = await issue(daemon, Role.OBSERVER)
        async with raw_socket(daemon, secret) as socket:
            await socket.send(frame(TEXT, declared=100 * KiB))
            assert await socket.close_code() == 1009


async def test_a_message_has_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_connection, "MESSAGE_S", 0.2)
    limits = Limits(heartbeat_s=0.1)
    async with attacked(tmp_path, limits=limits) as daemon, raw_socket(daemon, daemon.token) as socket:
        await socket.send(frame(TEXT, 2000, is_last=False))
        assert await socket.close_code() == 1008


@pytest.mark.parametrize(
    "flood",
    [
        frame(PONG) * 2000,
        frame(PING) * 2000,
        frame(TEXT, is_last=False) + frame(CONTINUATION, is_last=False) * 2000,
    ],
    ids=["pongs", "pings", "empty fragments"],
)
async def test_a_flood_of_frames_that_are_no_messages_closes_its_socket(tmp_path: Path, flood: bytes) -> None:
    async with attacked(tmp_path) as daemon, raw_socket(daemon, daemon.token) as socket:
        await socket.send(flood)
        assert await socket.close_code() == 1008


# -- event streams -------------------------------------------------------------------------------------------


async def open_stream(host: str, stack: AsyncExitStack, path: str, secret: str, stream: SocketStream) -> bytes:
    """Ask for a stream and return the first bytes of the answer."""
    await stack.enter_async_context(stream)
    await stream.send(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {secret}\r\n\r\n".encode())
    with anyio.fail_after(WAIT_S):
        return await stream.receive()


@pytest.mark.parametrize("path", ["/session/{}/events", "/events?session={}"])
async def test_a_credential_has_a_number_of_event_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(open_streams, "SESSION_CREDENTIAL_STREAMS", 3)
    async with attacked(tmp_path) as daemon, daemon.client() as owner, AsyncExitStack() as stack:
        session_id = await open_session(owner, tmp_path)
        _, secret = await issue(daemon, Role.OBSERVER, session_id=session_id)
        host, path = urlsplit(daemon.url).netloc, path.format(session_id)
        async with AsyncExitStack() as guests:
            for _ in range(3):
                answer = await open_stream(host, guests, path, secret, await connect(daemon))
                assert answer.startswith(b"HTTP/1.1 200 ")
            refused = await owner.get(path, headers=bearer(secret))
            assert (refused.status_code, refused.json()["limit"]) == (429, "credential_streams")
            answer = await open_stream(host, stack, path, daemon.token, await connect(daemon))
            assert answer.startswith(b"HTTP/1.1 200 ")
        with anyio.fail_after(SOON_S):
            while len(daemon.daemon.metrics.subscribers) > 1:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        answer = await open_stream(host, stack, path, secret, await connect(daemon))
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_credential_has_a_number_of_exports(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        token_id, secret = await issue(daemon, Role.OBSERVER, session_id=session_id)
        who = Identity("guest", Role.OBSERVER, SessionId(session_id), token_id)
        path, streams = f"/session/{session_id}/export", daemon.daemon.open_streams
        with ExitStack() as running:
            for _ in range(open_streams.CREDENTIAL_EXPORTS):
                running.enter_context(streams.export(who))
            refused = await owner.get(path, headers=bearer(secret))
            assert (refused.status_code, refused.json()["limit"]) == (429, "credential_exports")
            assert (await owner.get(path)).status_code == 200
        assert (await owner.get(path, headers=bearer(secret))).status_code == 200


@needs_linux
async def test_a_guests_streams_make_room_for_others_when_descriptors_run_out(tmp_path: Path) -> None:
    async with frugal_daemon(tmp_path, None) as (url, _), AsyncExitStack() as stack:
        parts = urlsplit(url)
        async with httpx.AsyncClient(base_url=url, timeout=SOON_S, headers=bearer(TOKEN)) as owner:
            made = await owner.post("/session", json={"cwd": str(tmp_path)})
            session_id = made.json()["sessionId"]
            created = await owner.post("/tokens", json={"name": "guest", "role": "observer"})
            secret = created.json()["token"]
        for _ in range(FILES):
            stream = await anyio.connect_tcp(parts.hostname or "", parts.port or 0)
            await open_stream(parts.netloc, stack, f"/session/{session_id}/events", secret, stream)
        for _ in range(10):
            async with httpx.AsyncClient(base_url=url, timeout=SOON_S, headers=bearer(TOKEN)) as owner:
                assert (await owner.get(f"/session/{session_id}")).status_code == 200
