"""Trailers are not headers: they authorise no request, and are bounded as heads are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from tests.patience import SOON_S
from tests.security.intruding import attacked
from tests.security.slow_request import connect, until_closed
from tests.support.daemons import Running

from turnwire.limits import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

BODY = json.dumps({"name": "mole", "role": "owner"}).encode()


def chunked(path: str, host: str, trailers: bytes = b"", **headers: str) -> bytes:
    """Return a request with a chunked body."""
    lines = {"Host": host, "Content-Type": "application/json", "Transfer-Encoding": "chunked", **headers}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return head.encode() + b"\r\n%x\r\n%b\r\n0\r\n%b\r\n" % (len(BODY), BODY, trailers)


async def asked_with_trailer(daemon: Running, trailer: tuple[str, str], **headers: str) -> int:
    """Return the status of a request whose body is followed by a trailer."""
    async with await connect(daemon) as stream:
        line = f"{trailer[0]}: {trailer[1]}\r\n".encode()
        host = urlsplit(daemon.url).netloc
        await stream.send(chunked("/tokens", host, line, Connection="close", **headers))
        return int((await until_closed(stream)).split(b" ", 2)[1])


async def test_a_trailer_authorises_nobody(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon:
        assert await asked_with_trailer(daemon, ("authorization", f"Bearer {daemon.token}")) == 401
        assert await daemon.daemon.tokens.list() == ()


async def test_a_trailer_is_bounded_as_a_head_is(tmp_path: Path) -> None:
    async with attacked(tmp_path, limits=Limits(header_bytes=4096)) as daemon:
        trailer = ("x-long", "x" * 9000)
        assert await asked_with_trailer(daemon, trailer, Authorization=f"Bearer {daemon.token}") == 431
        assert await daemon.daemon.tokens.list() == ()


async def test_a_trailer_of_a_request_that_waits_for_its_turn_authorises_nobody(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner, await connect(daemon) as peer:
        host = urlsplit(daemon.url).netloc
        made = await owner.post("/session", json={"cwd": str(tmp_path / "work")})
        path = f"/session/{made.json()['sessionId']}/prompt?wait=1"
        body = json.dumps({"prompt": [{"type": "text", "text": "never"}]}).encode()
        first = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {daemon.token}\r\n"
        first += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        trailer = f"Authorization: Bearer {daemon.token}\r\n".encode()
        await peer.send(first.encode() + body + chunked("/tokens", host, trailer, Connection="close"))
        came = await until_closed(peer)
        assert re.findall(rb"HTTP/1\.1 (\d+)", came) == [b"202", b"401"]
        assert await daemon.daemon.tokens.list() == ()


@pytest.mark.parametrize(
    "trailers",
    [b"X-Long: " + b"x" * 8192 + b"\r\n", b"X-Short: y\r\n" * 1000, b"x" * 8192],
    ids=["long", "many", "unfinished"],
)
async def test_trailers_count_against_the_limit_of_heads(tmp_path: Path, trailers: bytes) -> None:
    limits = Limits(header_bytes=4096)
    async with attacked(tmp_path, limits=limits) as daemon, await connect(daemon) as peer:
        host = urlsplit(daemon.url).netloc
        request = chunked("/tokens", host, trailers, Authorization=f"Bearer {daemon.token}")
        head, _, tail = request.partition(b"0\r\n")
        await peer.send(head)
        with anyio.fail_after(SOON_S):
            while not daemon.daemon.bodies.unfinished_bytes:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        await peer.send(b"0\r\n" + tail.removesuffix(b"\r\n"))
        assert (await until_closed(peer, SOON_S)).startswith(b"HTTP/1.1 431 ")
        assert await daemon.daemon.tokens.list() == ()


async def test_trailers_that_drip_count_too(tmp_path: Path) -> None:
    limits = Limits(header_bytes=1024)
    async with attacked(tmp_path, limits=limits) as daemon, await connect(daemon) as peer:
        host = urlsplit(daemon.url).netloc
        await peer.send(chunked("/tokens", host, Authorization=f"Bearer {daemon.token}").removesuffix(b"\r\n"))
        with anyio.fail_after(SOON_S):
            answered = b""
            while not answered:
                await peer.send(b"x" * 200)
                with anyio.move_on_after(0.05):
                    answered = await peer.receive()
        assert answered.startswith(b"HTTP/1.1 431 ")


async def test_a_small_trailer_does_no_harm(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon:
        credential = f"Bearer {daemon.token}"
        assert await asked_with_trailer(daemon, ("x-checksum", "1"), Authorization=credential) == 201
