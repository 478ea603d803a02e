"""What a connection alone can do to the daemon: keep silent, take descriptors, flood it, or name two hosts."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import h2.errors
import h2.exceptions
import httpx
import pytest
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream
from h2.settings import SettingCodes
from tests.patience import SOON_S
from tests.process.starting import needs_linux
from tests.security.intruding import attacked
from tests.security.slow_request import connect, until_closed
from tests.server.acp.socket_client import open_socket
from tests.support.certificates import self_signed
from tests.support.daemons import TOKEN
from tests.support.http2_peer import GONE, http2_peer

from turnwire.limits import KiB, Limits
from turnwire.server import http2, listener
from turnwire.server.listener import Tls
from turnwire.testing.patience import WAIT_S

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("G13")]

VERSIONS = pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for for long."""
    for name in ("HEAD_S", "KEEP_ALIVE_S", "HANDSHAKE_S"):
        monkeypatch.setattr(listener, name, 0.3)


async def drained(stream: ByteStream) -> bytes:
    """All that comes until the other side has closed."""
    came = b""
    with anyio.fail_after(SOON_S):
        try:
            while True:
                came += await stream.receive()
        except GONE:
            return came


# -- silence -------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("said", [b"", b"P", b"PRI * HTTP/2.0\r\n", b"GET /health HTTP/1.1\r\n"])
@pytest.mark.attack("13.12", "connections are opened, and nothing whole is said on them")
async def test_a_silent_connection_is_closed(tmp_path: Path, http2: bool, said: bytes) -> None:
    async with attacked(tmp_path, http2=http2) as daemon, await connect(daemon) as peer:
        if said:
            await peer.send(said)
        await until_closed(peer, SOON_S)


@pytest.mark.usefixtures("hasty")
@pytest.mark.attack("13.12", "connections are kept after a request, with a byte now and then")
async def test_a_connection_that_only_sends_line_ends_is_closed(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, await connect(daemon) as peer:
        host = urlsplit(daemon.url).netloc
        await peer.send(f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert (await peer.receive()).startswith(b"HTTP/1.1 200 ")
        await peer.send(b"\r\n")
        await until_closed(peer, SOON_S)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("alpn", [None, "http/1.1", "h2"])
@pytest.mark.attack("13.12", "connections over TLS are opened, and nothing is said on them")
async def test_a_silent_connection_over_tls_is_closed(tmp_path: Path, tls: Tls, alpn: str | None) -> None:
    async with attacked(tmp_path, tls=tls) as daemon, await connect(daemon) as peer:
        if alpn is None:
            await until_closed(peer, SOON_S)
            return
        trusted = ssl.create_default_context(cafile=str(tls.cert))
        trusted.set_alpn_protocols([alpn])
        name = urlsplit(daemon.url).hostname
        await drained(await TLSStream.wrap(peer, hostname=name, ssl_context=trusted, standard_compatible=False))


@pytest.mark.usefixtures("hasty")
@pytest.mark.attack("13.12", "connections of HTTP/2 are kept by pings alone")
async def test_pings_do_not_keep_a_connection_of_http2(tmp_path: Path) -> None:
    async with attacked(tmp_path, http2=True) as daemon, http2_peer(daemon.url) as peer:
        await peer.ask(1, "/health")
        assert await peer.status(1) == 200
        with anyio.fail_after(SOON_S), suppress(*GONE, h2.exceptions.ProtocolError):
            while True:
                peer.h2.ping(b"12345678")
                await peer.flush()
                await peer.next()


# -- descriptors ---------------------------------------------------------------------------------------------

FILES = 200


@asynccontextmanager
async def frugal_daemon(home: Path, tls: Tls | None) -> AsyncGenerator[tuple[str, int]]:
    """A daemon that may have few descriptors; gives its URL and its process."""
    words = ["--json", "--port", "0", "--log", "memory", "--token", TOKEN, "--cwd", str(home)]
    if tls is not None:
        words += ["--tls-cert", str(tls.cert), "--tls-key", str(tls.key)]
    command = ["sh", "-c", f'ulimit -n {FILES}; exec "$0" -m turnwire serve "$@"', sys.executable, *words]
    errors = (home / "errors").open("wb")
    environment = os.environ | {"HOME": str(home), "XDG_STATE_HOME": str(home)}
    async with await anyio.open_process(command, stderr=errors, env=environment) as process:
        try:
            assert process.stdout is not None
            with anyio.fail_after(WAIT_S):
                told = await process.stdout.receive()
            yield httpx.Response(200, content=told).json()["url"], process.pid
        finally:
            process.kill()
            errors.close()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@needs_linux
@pytest.mark.parametrize("is_tls", [False, True], ids=["clear", "tls"])
@pytest.mark.attack("13.12", "connections take all descriptors of the daemon")
async def test_silent_connections_do_not_use_up_the_descriptors(tmp_path: Path, tls: Tls, is_tls: bool) -> None:
    verify = ssl.create_default_context(cafile=str(tls.cert))
    async with frugal_daemon(tmp_path, tls if is_tls else None) as (url, pid), AsyncExitStack() as stack:
        parts = urlsplit(url)
        for _ in range(FILES + 100):
            stream = await anyio.connect_tcp(parts.hostname or "", parts.port or 0)
            await stack.enter_async_context(stream)
        before = cpu_s(pid)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=url, timeout=SOON_S, headers=headers, verify=verify) as client:
            for _ in range(20):
                assert (await client.get("/health", headers={"Connection": "close"})).status_code == 200
            # There are some left for an agent.
            made = await client.post("/session", json={"cwd": str(tmp_path)})
            assert made.status_code == 200, made.text
        assert cpu_s(pid) - before < 3
        told = (tmp_path / "errors").read_text(encoding="utf-8")
        assert told.count("descriptors_run_out") == 1


# -- sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 10])
@pytest.mark.parametrize("is_tls", [False, True], ids=["clear", "tls"])
@pytest.mark.attack("13.12", "a message on a WebSocket is larger than any may be")
async def test_an_oversize_message_closes_its_socket_and_says_why(
    tmp_path: Path, tls: Tls, is_tls: bool, pieces: int
) -> None:
    limits = Limits(body_bytes=64 * KiB)
    options: dict[str, Any] = {"ssl": ssl.create_default_context(cafile=str(tls.cert))} if is_tls else {}
    async with (
        attacked(tmp_path, limits=limits, tls=tls if is_tls else None) as daemon,
        open_socket(daemon, **options) as socket,
    ):
        await socket.start()
        part = "x" * (128 * KiB // pieces)
        await socket.wire.send(part if pieces == 1 else [part] * pieces)
        assert await socket.closed() == 1009


@pytest.mark.attack("13.12", "a frame of HTTP/2 announces megabytes")
async def test_an_oversize_frame_is_refused_before_it_comes(tmp_path: Path) -> None:
    async with attacked(tmp_path, http2=True) as daemon, http2_peer(daemon.url) as peer:
        await peer.stream.send((0xFFFFFF).to_bytes(3, "big") + b"\x00\x00" + (1).to_bytes(4, "big"))
        assert await peer.closed() == h2.errors.ErrorCodes.FRAME_SIZE_ERROR


@pytest.mark.attack("13.12", "a head of HTTP/2 never ends")
async def test_a_head_of_http2_that_does_not_end_is_refused(tmp_path: Path) -> None:
    limits = Limits(header_bytes=16 * KiB)
    async with attacked(tmp_path, http2=True, limits=limits) as daemon, http2_peer(daemon.url) as peer:
        size = 8 * KiB
        with suppress(*GONE):
            for kind in (b"\x01", *[b"\x09"] * 8):
                head = size.to_bytes(3, "big") + kind + b"\x00" + (1).to_bytes(4, "big")
                await peer.stream.send(head + b"\x00" * size)
        assert await peer.closed() in (h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, None)


@pytest.mark.attack("13.12", "a small head of HTTP/2 grows to megabytes when it is unpacked")
async def test_a_packed_head_of_http2_is_refused(tmp_path: Path) -> None:
    limits = Limits(header_bytes=16 * KiB)
    async with attacked(tmp_path, http2=True, limits=limits) as daemon, http2_peer(daemon.url) as peer:
        long = ("x-long", "x" * 3000)
        await peer.ask(1, "/health", *[long] * 100)
        assert await peer.closed() == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM


@pytest.mark.attack("13.12", "streams of HTTP/2 are opened and taken back at once, thousands of them")
async def test_streams_that_are_taken_back_at_once_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MOST_STREAMS", 10)
    running, most = 0, 0
    async with attacked(tmp_path, http2=True) as daemon, http2_peer(daemon.url) as peer:
        wait = anyio.Event()

        async def counted(scope: object) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                await wait.wait()
            finally:
                running -= 1

        monkeypatch.setattr(http2._Stream, "run", counted)  # pyright: ignore[reportPrivateUsage]
        for stream_id in range(1, 201, 2):
            await peer.ask(stream_id, "/health")
            peer.h2.reset_stream(stream_id)
            await peer.flush()
        await peer.pong()
        wait.set()
    assert 0 < most <= 10


@pytest.mark.attack("13.12", "frames that want an answer are sent, and no answer is read")
async def test_answers_to_frames_that_nobody_reads_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "UNREAD_BYTES", 64 * KiB)
    monkeypatch.setattr(http2, "SMALL_FRAMES", 10**9)
    async with attacked(tmp_path, http2=True) as daemon, http2_peer(daemon.url) as peer:
        pings = (b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"12345678") * 4096
        with anyio.fail_after(WAIT_S), suppress(*GONE):
            while True:
                await peer.stream.send(pings)


PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"12345678"
SETTINGS = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + b"\x00\x04\x00\x01\x00\x00"
PRIORITY = b"\x00\x00\x05\x02\x00\x00\x00\x00\x01" + b"\x00\x00\x00\x00\x10"
UNKNOWN = b"\x00\x00\x00\xee\x00\x00\x00\x00\x01"
WINDOW = b"\x00\x00\x04\x08\x00\x00\x00\x00\x00" + b"\x00\x00\x00\x01"


@pytest.mark.parametrize("frame", [PING, SETTINGS, PRIORITY, UNKNOWN, WINDOW], ids=lambda each: f"kind{each[3]}")
@pytest.mark.attack("13.12", "frames that bring nothing are sent as fast as they go")
async def test_a_flood_of_small_frames_ends_its_connection(tmp_path: Path, frame: bytes) -> None:
    async with attacked(tmp_path, http2=True) as daemon, http2_peer(daemon.url) as peer:
        await peer.stream.send(frame * (http2.SMALL_FRAMES * 2))
        assert await peer.closed() in (h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, None)


@pytest.mark.attack("13.12", "a body of HTTP/2 comes in thousands of empty frames")
async def test_a_flood_of_empty_pieces_ends_its_connection(tmp_path: Path) -> None:
    async with attacked(tmp_path, http2=True) as daemon, http2_peer(daemon.url) as peer:
        head = [(":method", "POST"), (":scheme", "http"), (":authority", peer.host), (":path", "/login")]
        peer.h2.send_headers(1, head)
        await peer.flush()
        await peer.stream.send(b"\x00\x00\x00\x00\x00\x00\x00\x00\x01" * (http2.SMALL_FRAMES * 2))
        assert await peer.closed() in (h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, None)


@pytest.mark.attack("13.12", "answers are asked for, and the window for them stays shut")
async def test_an_answer_that_has_no_window_is_dropped_after_a_while(tmp_path: Path) -> None:
    limits = Limits(write_timeout_s=0.2)
    shut = {SettingCodes.INITIAL_WINDOW_SIZE: 0}
    async with attacked(tmp_path, http2=True, limits=limits) as daemon, http2_peer(daemon.url, shut) as peer:
        await peer.ask(1, "/health")
        with anyio.fail_after(SOON_S):
            while 1 not in peer.ends:
                await peer.next()
        assert (peer.statuses, peer.ends) == ({1: 200}, {1: h2.errors.ErrorCodes.CANCEL})


@pytest.mark.attack("13.12", "a client of HTTP/2 lets the daemon remember gigabytes of headers")
async def test_the_table_of_headers_is_not_as_large_as_a_client_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[http2.Http2Connection] = []
    begin = http2.Http2Connection.connection_made

    def noted(self: http2.Http2Connection, transport: asyncio.BaseTransport) -> None:
        made.append(self)
        begin(self, transport)

    monkeypatch.setattr(http2.Http2Connection, "connection_made", noted)
    wanted = {SettingCodes.HEADER_TABLE_SIZE: 2**31}
    async with attacked(tmp_path, http2=True) as daemon, http2_peer(daemon.url, wanted) as peer:
        for stream_id in (1, 3, 5):
            await peer.ask(stream_id, "/health")
            assert await peer.status(stream_id) == 200
        [connection] = made
        assert connection.h2.encoder.header_table_size <= http2.HEADER_TABLE


# -- whom it asks for ----------------------------------------------------------------------------------------


@pytest.mark.attack("13.12", "a request of HTTP/2 names one host in :authority and another in host")
async def test_authority_and_host_must_agree(tmp_path: Path) -> None:
    async with attacked(tmp_path, http2=True) as daemon:
        ours = urlsplit(daemon.url).netloc
        async with http2_peer(daemon.url) as peer:
            await peer.ask(1, "/health", ("host", ours))
            assert await peer.status(1) == 200
        for authority, host in ((ours, "evil.example"), ("evil.example", ours)):
            async with http2_peer(daemon.url) as peer:
                await peer.ask(1, "/health", ("host", host), authority=authority)
                assert await peer.closed() == h2.errors.ErrorCodes.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://{ours}/health", "{ours}", 200),
        ("http://evil.example/health", "{ours}", 400),
        ("http://{ours}/health", "evil.example", 400),
    ],
)
@pytest.mark.attack("13.12", "a request line names one host and the header another")
async def test_the_request_line_and_host_must_agree(tmp_path: Path, target: str, host: str, status: int) -> None:
    async with attacked(tmp_path) as daemon, await connect(daemon) as peer:
        ours = urlsplit(daemon.url).netloc
        line = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        await peer.send(line.format(ours=ours).encode())
        assert (await until_closed(peer)).startswith(f"HTTP/1.1 {status} ".encode())
