"""Attacks by a mere connection: silence, exhausting descriptors, flooding, or naming two hosts."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream
from tests.patience import SOON_S
from tests.process.starting import needs_linux
from tests.security.intruding import attacked, bearer
from tests.security.slow_request import GONE, connect, until_closed
from tests.server.acp.socket_client import open_socket
from tests.support.certificates import self_signed
from tests.support.daemons import TOKEN

from turnwire.limits import KiB, Limits
from turnwire.server import http_connection, listener
from turnwire.server.listener import Tls
from turnwire_testing.patience import WAIT_S

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use short timeouts."""
    for module, name in ((http_connection, "HEAD_S"), (http_connection, "KEEP_ALIVE_S"), (listener, "HANDSHAKE_S")):
        monkeypatch.setattr(module, name, 0.3)


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


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("is_agreed", [False, True], ids=["before", "after"])
async def test_a_silent_connection_over_tls_is_closed(tmp_path: Path, tls: Tls, is_agreed: bool) -> None:
    async with attacked(tmp_path, tls=tls) as daemon, await connect(daemon) as peer:
        if not is_agreed:
            await until_closed(peer, SOON_S)
            return
        trusted = ssl.create_default_context(cafile=str(tls.cert))
        name = urlsplit(daemon.url).hostname
        await drained(await TLSStream.wrap(peer, hostname=name, ssl_context=trusted, standard_compatible=False))


# -- descriptors ---------------------------------------------------------------------------------------------

FILES = 200


@asynccontextmanager
async def frugal_daemon(home: Path, tls: Tls | None) -> AsyncGenerator[tuple[str, int]]:
    """Run a daemon with few descriptors; yield its URL and its process."""
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
            # Enough descriptors remain for an agent.
            made = await client.post("/session", json={"cwd": str(tmp_path)})
            assert made.status_code == 200, made.text
        assert cpu_s(pid) - before < 3
        told = (tmp_path / "errors").read_text(encoding="utf-8")
        assert told.count("descriptors_run_out") == 1


HALVES = {
    "a stranger's body": "POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n{{",
    "a body with a credential": (
        "POST /session HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
    ),
    "a head after a request": "GET /health HTTP/1.1\r\nHost: {host}\r\n\r\nGET /health HTTP/1.1\r\n",
    "a body after a request": (
        "GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n"
        "POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n{{"
    ),
}


@needs_linux
@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
async def test_half_sent_requests_do_not_use_up_the_descriptors(tmp_path: Path, half: str) -> None:
    async with frugal_daemon(tmp_path, None) as (url, _), AsyncExitStack() as stack:
        parts = urlsplit(url)
        for _ in range(FILES + 100):
            stream = await anyio.connect_tcp(parts.hostname or "", parts.port or 0)
            await stack.enter_async_context(stream)
            await stream.send(half.format(host=parts.netloc, token=TOKEN).encode())
        for _ in range(10):
            async with httpx.AsyncClient(base_url=url, timeout=SOON_S, headers=bearer(TOKEN)) as owner:
                assert (await owner.get("/capabilities")).status_code == 200


# -- pipelining ----------------------------------------------------------------------------------------------


async def test_requests_beyond_the_pipelined_ones_are_not_read(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, await connect(daemon) as peer:
        request = f"GET /health HTTP/1.1\r\nHost: {urlsplit(daemon.url).netloc}\r\n\r\n"
        await peer.send(request.encode() * 1000)
        came = await until_closed(peer)
        assert came.count(b"HTTP/1.1 200 ") == came.count(b"HTTP/1.1 ") == http_connection.MAX_PIPELINED + 1
        assert came.count(b"connection: close") == 1, "the client knows which requests to repeat"


# -- sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 10])
async def test_an_oversize_message_closes_its_socket_and_says_why(tmp_path: Path, pieces: int) -> None:
    limits = Limits(body_bytes=64 * KiB)
    async with attacked(tmp_path, limits=limits) as daemon, open_socket(daemon) as socket:
        await socket.start()
        part = "x" * (128 * KiB // pieces)
        await socket.wire.send(part if pieces == 1 else [part] * pieces)
        assert await socket.closed() == 1009


# -- whom it asks for ----------------------------------------------------------------------------------------


async def test_the_request_line_and_host_must_agree(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon:
        ours, evil = urlsplit(daemon.url).netloc, "evil.example"
        for named, host, status in ((ours, ours, 200), (evil, ours, 400), (ours, evil, 400)):
            async with await connect(daemon) as peer:
                line = f"GET http://{named}/health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                await peer.send(line.encode())
                assert (await until_closed(peer)).startswith(f"HTTP/1.1 {status} ".encode()), (named, host)
