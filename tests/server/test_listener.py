"""The listener listens where configured, reports it, bounds strangers' resources, and stops gracefully."""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from anyio.abc import ByteStream, SocketStream
from anyio.streams.tls import TLSAttribute, TLSStream
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.patience import SOON_S
from tests.process.starting import needs_linux
from tests.support.certificates import self_signed
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from turnwire.errors import ConfigError
from turnwire.limits import Limits, MiB
from turnwire.server import http_connection, listener
from turnwire.server.listener import Tls, listen, open_listener, run, url_of
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": f"hello over {scope['http_version']}".encode()})


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    """A stream that never ends by itself."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


class Listening:
    """A server that listens."""

    def __init__(self, url: str, stop: anyio.Event, scope: anyio.CancelScope) -> None:
        self.url = url
        self.stop = stop
        self.scope = scope

    async def connect(self) -> SocketStream:
        address = urlsplit(self.url)
        assert address.hostname
        assert address.port
        return await anyio.connect_tcp(address.hostname, address.port)


@asynccontextmanager
async def listening(app: ASGIApp, **options: Any) -> AsyncGenerator[Listening]:
    stop, ready = anyio.Event(), anyio.Event()
    urls: list[str] = []

    def heard(url: str) -> None:
        urls.append(url)
        ready.set()

    serve = partial(listen, app, host="127.0.0.1", port=0, ready=heard, stop=stop, **options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        with anyio.fail_after(WAIT_S):
            await ready.wait()
        yield Listening(urls[0], stop, tasks.cancel_scope)
        stop.set()


async def read_all(stream: ByteStream) -> bytes:
    """Until the other side ends or drops the connection."""
    came = b""
    with anyio.fail_after(WAIT_S):
        try:
            while True:
                came += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return came


async def test_a_free_port_is_found_and_told() -> None:
    async with listening(hello) as server_, httpx.AsyncClient() as client:
        assert urlsplit(server_.url).port
        answer = await client.get(server_.url)
        assert answer.text == "hello over 1.1"
        assert "server" not in answer.headers


async def test_a_port_in_use_is_refused_by_name() -> None:
    async with listening(hello) as first:
        port = urlsplit(first.url).port
        assert port
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            await listen(hello, host="127.0.0.1", port=port, ready=print, stop=anyio.Event())


@pytest.mark.parametrize(
    ("host", "why"), [("no-such-host.invalid", "has no address"), ("192.0.2.1", "not an address of this machine")]
)
def test_a_host_that_is_not_ours_is_refused(host: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        open_listener(host, 0, Limits())


def test_a_listener_on_all_addresses_is_reached_on_this_machine() -> None:
    with open_listener("0.0.0.0", 0, Limits()) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener, "0.0.0.0", is_tls=True) == f"https://127.0.0.1:{port}"


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_ipv6_address_is_in_brackets() -> None:
    try:
        listener = open_listener("::1", 0, Limits())
    except ConfigError:
        pytest.skip("this machine has no IPv6 loopback")
    with listener:
        assert url_of(listener, "::1", is_tls=False) == f"http://[::1]:{listener.getsockname()[1]}"


async def test_a_socket_that_is_neither_accepted_nor_refused_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        """Forgets to answer."""

    async with listening(silent) as server:
        with pytest.raises(InvalidStatus, match="500"), anyio.fail_after(WAIT_S):
            await connect(server.url.replace("http", "ws", 1))
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == [
        "a WebSocket was neither accepted nor refused; it is told 500"
    ]


async def test_a_peer_that_does_not_read_its_answer_is_cut_in_the_end_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_written = anyio.Event()

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(16 * MiB)})
        is_written.set()

    monkeypatch.setattr(listener, "STOP_S", 1)
    with anyio.fail_after(WAIT_S):
        async with listening(long) as server:
            silent = await server.connect()
            await silent.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await is_written.wait()
    await silent.aclose()
    assert [each.levelname for each in caplog.records if each.msg == listener.NOT_ENDED] == ["WARNING"]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_a_request_that_is_not_answered_before_the_end_is_cut_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_asked = anyio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        is_asked.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(listener, "STOP_S", 1)
    with anyio.fail_after(WAIT_S):
        async with listening(waiting) as server:
            asking = await server.connect()
            await asking.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await is_asked.wait()
    await asking.aclose()
    assert [each.levelname for each in caplog.records if each.msg == listener.NOT_ENDED] == ["WARNING"]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR or each.exc_info]


async def test_http2_is_refused_as_http1_and_others_are_served() -> None:
    """A client that speaks HTTP/2 without negotiation gets an error that it can show, and the connection is
    closed.
    """
    settings_frame = bytes.fromhex("000000040000000000")
    async with listening(hello) as server, httpx.AsyncClient() as other, await server.connect() as peer:
        await other.get(server.url)
        await peer.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings_frame)
        assert (await read_all(peer)).startswith(b"HTTP/1.1 400 ")
        assert (await other.get(server.url)).text == "hello over 1.1"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.mark.full("needs openssl")
async def test_over_tls_only_http1_is_offered(tls: Tls) -> None:
    trusted = ssl.create_default_context(cafile=str(tls.cert))
    trusted.set_alpn_protocols(["h2", "http/1.1"])
    async with listening(hello, tls=tls) as server, await server.connect() as stream:
        wrapped = await TLSStream.wrap(stream, hostname="127.0.0.1", ssl_context=trusted, standard_compatible=False)
        assert wrapped.extra(TLSAttribute.alpn_protocol) == "http/1.1"
        assert server.url.startswith("https://")
        await wrapped.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"hello over 1.1" in await read_all(wrapped)


async def test_tls_without_its_files_is_refused(tmp_path: Path) -> None:
    tls = Tls(tmp_path / "cert.pem", tmp_path / "key.pem")
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        await listen(hello, host="127.0.0.1", port=0, tls=tls, ready=print, stop=anyio.Event())


async def test_a_server_stops_within_a_second_of_connections_that_rest() -> None:
    async with httpx.AsyncClient() as client:
        with anyio.fail_after(WAIT_S) as waiting:
            async with listening(hello) as server_, await server_.connect():
                await client.get(server_.url)  # its connection is kept open
                waiting.deadline = anyio.current_time() + SOON_S
                server_.stop.set()
        with pytest.raises(httpx.ConnectError):
            await client.get(server_.url)


async def test_half_a_request_does_not_hold_up_the_stop() -> None:
    async with listening(hello) as server, await server.connect() as half:
        await half.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
        server.stop.set()
        with anyio.fail_after(SOON_S):
            await read_all(half)


async def test_cancelling_stops_at_once_whatever_is_open() -> None:
    with anyio.fail_after(WAIT_S) as waiting:
        async with listening(endless) as server_, await server_.connect() as reader:
            await reader.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            while b"begun" not in await reader.receive():
                pass
            waiting.deadline = anyio.current_time() + SOON_S
            server_.scope.cancel()
    with pytest.raises(OSError, match="connection"):
        await server_.connect()


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@needs_linux
async def test_a_server_that_was_cancelled_leaves_no_thread_at_work() -> None:
    """A server that is stopped and finds its socket closed first would otherwise try to accept indefinitely."""
    before = threads()
    for _ in range(3):
        async with listening(hello) as serving:
            serving.scope.cancel()
    with anyio.fail_after(SOON_S):
        while threads() - before:  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def test_a_server_that_was_cancelled_leaves_the_loop_to_the_next() -> None:
    """Its socket gets the same number as the one before, which the loop must have forgotten."""
    for _ in range(3):
        async with listening(hello) as serving:
            async with httpx.AsyncClient(timeout=WAIT_S) as client:
                assert (await client.get(serving.url)).status_code == 200
            serving.scope.cancel()


async def test_a_head_that_never_ends_is_refused_before_it_is_whole() -> None:
    async with (
        listening(hello, limits=Limits(header_bytes=4096)) as server,
        await server.connect() as peer,
    ):
        await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
        await peer.send(b"x-long: " + b"x" * 8192)
        assert (await read_all(peer)).startswith(b"HTTP/1.1 431 ")


async def test_a_body_is_not_taken_for_a_head() -> None:
    async with (
        listening(hello, limits=Limits(header_bytes=1024)) as server,
        await server.connect() as peer,
    ):
        await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000)
        with anyio.fail_after(WAIT_S):
            assert (await peer.receive()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /"]
)
async def test_a_head_that_takes_too_long_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(http_connection, "HEAD_S", 0.2)
    async with listening(hello) as server, await server.connect() as peer:
        if begun:
            await peer.send(begun)
        answer = await read_all(peer)
        assert (b"hello over 1.1" in answer) == begun.endswith(b"GET /")


async def test_line_ends_between_requests_do_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "KEEP_ALIVE_S", 0.3)
    async with listening(hello) as server, await server.connect() as peer:
        await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await peer.receive()).startswith(b"HTTP/1.1 200 ")
        await peer.send(b"\r\n")
        with anyio.fail_after(SOON_S):
            await read_all(peer)


def test_a_program_runs_on_the_fast_loop() -> None:
    async def main() -> str:
        import asyncio

        return type(asyncio.get_running_loop()).__module__

    assert run(main) == "uvloop"


async def test_a_listener_without_descriptors_waits_a_moment_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It reports this once, and does not spin in the meantime."""
    accept, refused = socket.socket.accept, 0

    def exhausted(self: socket.socket) -> tuple[socket.socket, Any]:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(self)

    async with listening(hello) as server, httpx.AsyncClient(timeout=SOON_S) as client:
        monkeypatch.setattr(socket.socket, "accept", exhausted)
        begun = anyio.current_time()
        assert (await client.get(server.url)).status_code == 200
        assert anyio.current_time() - begun >= 2 * listener.PAUSE_S
    assert [each.__dict__["event"] for each in caplog.records if each.levelno == logging.WARNING] == [
        "descriptors_run_out"
    ]
