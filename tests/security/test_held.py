"""Attacks that were tried and held, so that they stay held: races, depths, floods, clocks that jump."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from tests.patience import LONG_S, SOON_S
from tests.security.intruding import attacked, bearer, issue, link_of, open_session, table
from tests.security.slow_request import connect, until_closed
from tests.server.acp.socket_client import open_socket
from tests.support.daemons import Running

from turnwire.limits import Limits
from turnwire.server.access.token_file import TokenFile
from turnwire.server.access.tokens import Role, Tokens
from turnwire_testing import ManualClock

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

JSON = {"Content-Type": "application/json"}
DEEP = 20_000


async def test_of_many_who_open_a_link_at_once_one_gets_in(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        code = link_of(await client.post("/login-link")).fragment
        statuses: list[int] = []

        async def open_link() -> None:
            statuses.append((await client.post("/login", json={"code": code})).status_code)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(open_link)
    assert sorted(statuses) == [204] + [401] * 19


async def test_no_route_falls_over_deep_json(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        session_id = await open_session(client, tmp_path)
        bodies = [b"[" * DEEP, b'{"a":' * DEEP, b'{"prompt":[{"x":' + b"[" * DEEP, b'{"code":' + b"[" * 2000]
        for endpoint, path in table(session_id):
            if endpoint.takes is None:
                continue
            for body in bodies:
                answer = await client.request(endpoint.method, path, content=body, headers=JSON)
                assert answer.status_code in (400, 404, 413), (path, answer.text)
        assert (await client.get("/health")).status_code == 200


async def test_a_connection_survives_deep_messages(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, open_socket(daemon) as socket:
        await socket.start()
        session_id = await socket.new()
        for text in ("[" * DEEP, '{"jsonrpc":"2.0","id":1,"method":"x","params":' + '{"a":' * DEEP):
            await socket.wire.send(text)
        deep = "[" * DEEP + "]" * DEEP
        await socket.wire.send(
            f'{{"jsonrpc":"2.0","id":"d","method":"session/prompt",'
            f'"params":{{"sessionId":"{session_id}","prompt":{deep}}}}}'
        )
        heard = [(await socket.next()).message for _ in range(3)]
        assert all("error" in each for each in heard), heard
        assert "sessions" in await socket.call("session/list", {})


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        b"POST /login HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /login HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: {host}\r\nX: a\r\n Authorization: Bearer x\r\n\r\n",
        b"GET /health HTTP/1.1\nHost: {host}\n\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["both-lengths", "two-lengths", "odd-coding", "space", "folded", "bare-lf", "tls"],
)
async def test_a_request_that_can_be_read_in_two_ways_is_refused(tmp_path: Path, request_: bytes) -> None:
    async with attacked(tmp_path) as daemon, await connect(daemon) as peer:
        await peer.send(request_.replace(b"{host}", urlsplit(daemon.url).netloc.encode()))
        came = await until_closed(peer, SOON_S)
        assert came == b"" or came.startswith(b"HTTP/1.1 400 "), came


async def test_a_clock_that_jumps_brings_no_token_back(tmp_path: Path) -> None:
    clock = JumpingClock()
    tokens = Tokens(TokenFile(tmp_path / "tokens.json", clock), clock, "an-operators-own-token")
    _, secret = await tokens.issue("ci", Role.OBSERVER, expires_in_s=60)
    clock.jump(61)
    assert await tokens.check(secret) is None
    # Not even before the file is written.
    clock.jump(-61)
    assert await tokens.check(secret) is None
    clock.jump(61)
    # Expired credentials are removed from the file, even if nothing else is written.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tokens.run)
        await clock.wait_for_sleepers(1)
        tasks.cancel_scope.cancel()
    # A clock that is set back does not bring it back, in this process and the next.
    clock.jump(-61)
    clock.advance(1)
    assert await tokens.check(secret) is None
    again = Tokens(TokenFile(tmp_path / "tokens.json", clock), clock, "an-operators-own-token")
    assert await again.check(secret) is None


class JumpingClock(ManualClock):
    """A clock that is set manually."""

    def __init__(self) -> None:
        super().__init__()
        self._set_ms = 0

    def jump(self, seconds: float) -> None:
        self._set_ms += round(seconds * 1000)

    def now_ms(self) -> int:
        return super().now_ms() + self._set_ms


@asynccontextmanager
async def readers(daemon: Running, count: int, session_id: str, secret: str) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(count):
            stream = await stack.enter_async_context(await connect(daemon))
            host = urlsplit(daemon.url).netloc
            head = f"GET /session/{session_id}/events HTTP/1.1\r\nHost: {host}\r\n"
            await stream.send(f"{head}Authorization: Bearer {secret}\r\n\r\n".encode())
        yield


async def test_readers_that_do_not_read_keep_nobody_waiting(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        _, secret = await issue(daemon, Role.OBSERVER)
        async with readers(daemon, 200, session_id, secret):
            prompt = {"prompt": [{"type": "text", "text": "flood 5000 500"}]}
            with anyio.fail_after(LONG_S):
                said = await owner.post(f"/session/{session_id}/prompt", json=prompt, headers={"Prefer": "wait=60"})
            assert said.status_code == 200
            assert (await owner.get("/health")).status_code == 200


async def test_a_flood_of_one_credential_slows_that_one_alone(tmp_path: Path) -> None:
    async with attacked(tmp_path, limits=Limits(request_rate=5)) as daemon:
        _, secret = await issue(daemon, Role.OBSERVER)
        async with daemon.client() as client:
            found = [(await client.get("/capabilities", headers=bearer(secret))).status_code for _ in range(10)]
            assert found[:5] == [200] * 5
            assert 429 in found[5:]
            assert (await client.get("/capabilities")).status_code == 200


async def test_a_link_on_another_site_reads_nothing_with_the_cookie(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        code = link_of(await owner.post("/login-link")).fragment
        async with daemon.stranger() as browser:
            assert (await browser.post("/login", json={"code": code})).status_code == 204
            led = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
            assert (await browser.get("/tokens", headers=led)).status_code == 403
            embedded = led | {"Sec-Fetch-Dest": "iframe"}
            assert (await browser.get("/login", headers=embedded)).status_code == 403
            assert json.loads((await browser.get("/tokens")).text)["tokens"]
