"""A body has a size and a time limit, by its route; a client that delays its body occupies little, and not for
long.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from tests.patience import SOON_S
from tests.security.intruding import attacked, bearer, issue, link_of, open_session
from tests.security.slow_request import connect, slow_request, until_closed

from turnwire.limits import KiB, Limits, MiB
from turnwire.server import http_connection
from turnwire.server.access.tokens import Role
from turnwire_testing.patience import quiet

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]


async def test_a_public_route_takes_four_kibibytes(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        large = json.dumps({"code": "x" * 4 * KiB}).encode()
        for content in (large, _pieces(large)):
            answer = await client.post("/login", content=content, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["limit"]) == (413, "public_body_bytes")
        small = await client.post("/login", json={"code": "x" * 3 * KiB})
        assert small.status_code == 401


async def _pieces(body: bytes):
    for start in range(0, len(body), 512):
        yield body[start : start + 512]


async def test_a_route_takes_as_much_as_its_row_says(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as client:
        session_id = await open_session(client, tmp_path)
        text = "x" * 100 * KiB
        refused = await client.patch(f"/session/{session_id}", json={"title": text})
        assert (refused.status_code, refused.json()["limit"]) == (413, "fields_body_bytes")
        prompt = {"prompt": [{"type": "text", "text": f"say 1 {text}"}]}
        assert (await client.post(f"/session/{session_id}/prompt", json=prompt)).status_code == 202


@pytest.mark.parametrize("path", ["/login", "/tokens"])
async def test_a_body_that_does_not_end_is_given_up_and_its_memory_with_it(tmp_path: Path, path: str) -> None:
    async with attacked(tmp_path, limits=Limits(short_body_s=0.3)) as daemon:
        async with slow_request(daemon, "POST", path, daemon.headers, size=2000) as request:
            await request.send_body(b"x" * 1000)
            answer = await request.answer(SOON_S)
            assert (answer.status, json.loads(answer.body)["code"]) == (408, "body_too_slow")
        assert daemon.daemon.bodies.unfinished_bytes == 0


async def test_a_refused_body_does_not_keep_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "LINGER_S", 0.2)
    async with attacked(tmp_path) as daemon, await connect(daemon) as stream:
        host = daemon.url.removeprefix("http://")
        lines = f"POST /tokens HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n"
        await stream.send(lines.encode() + b"x")
        assert (await until_closed(stream, SOON_S)).startswith(b"HTTP/1.1 401 ")


async def test_the_rest_of_a_refused_body_is_read_so_that_its_sender_hears_why(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.stranger() as client:
        for _ in range(2):
            answer = await client.post("/tokens", content=b"x" * MiB)
            assert answer.status_code == 401
        assert (await client.get("/health")).status_code == 200


async def test_what_strangers_hold_is_bounded_and_a_login_in_one_go_still_works(tmp_path: Path) -> None:
    most, each = 64 * KiB, 4000
    async with (
        attacked(tmp_path, limits=Limits(stranger_bytes=most)) as daemon,
        AsyncExitStack() as stack,
    ):
        requests = [
            await stack.enter_async_context(slow_request(daemon, "POST", "/login", size=each + 1))
            for _ in range(40)
        ]
        for request in requests:
            await request.send_body(b"x" * each)
        # The oldest are dropped.
        for request in requests[: 40 - most // each]:
            assert (await request.answer(SOON_S)).status == 408
        assert 0 < daemon.daemon.bodies.unfinished_bytes <= most
        async with daemon.client() as owner, daemon.stranger() as browser:
            code = link_of(await owner.post("/login-link")).fragment
            assert (await browser.post("/login", json={"code": code})).status_code == 204


async def test_requests_of_strangers_without_a_body_yet_are_bounded_too(tmp_path: Path) -> None:
    async with attacked(tmp_path, limits=Limits(stranger_bytes=64 * KiB)) as daemon, AsyncExitStack() as stack:
        requests = [
            await stack.enter_async_context(slow_request(daemon, "POST", "/login", size=100)) for _ in range(20)
        ]
        for request in requests[:12]:
            assert (await request.answer(SOON_S)).status == 408


async def test_what_strangers_hold_of_heads_is_bounded_too(tmp_path: Path) -> None:
    most, each, count = 64 * KiB, 4000, 40
    limits = Limits(stranger_bytes=most)
    async with attacked(tmp_path, server_limits=limits) as daemon, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(await connect(daemon)) for _ in range(count)]
        for peer in peers:
            await peer.send(b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * each)
        for peer in peers[: count - most // each]:
            await until_closed(peer, SOON_S)
        async with daemon.stranger() as client:
            assert (await client.get("/health")).status_code == 200


async def test_who_goes_on_with_a_body_is_not_dropped_for_those_who_hold_heads_back(tmp_path: Path) -> None:
    body = json.dumps({"cwd": str(tmp_path / "work"), "displayName": "x" * 40_000}).encode()
    parts = [body[at : at + 5_000] for at in range(0, len(body), 5_000)]
    limits = Limits(stranger_bytes=64 * KiB)
    async with (
        attacked(tmp_path, server_limits=limits) as daemon,
        slow_request(daemon, "POST", "/session", daemon.headers, size=len(body)) as honest,
        AsyncExitStack() as stack,
    ):
        for part in parts:
            await honest.send_body(part)
            for _ in range(2):
                stranger = await stack.enter_async_context(await connect(daemon))
                await stranger.send(b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * 8_000)
            await quiet()
        assert (await honest.answer()).status == 200


async def test_what_one_credential_holds_is_bounded_and_others_are_not_refused(tmp_path: Path) -> None:
    limits = Limits(credential_body_bytes=64 * KiB)
    async with attacked(tmp_path, limits=limits) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        _, secret = await issue(daemon, Role.CONTROLLER)
        path = f"/session/{session_id}/prompt"
        async with (
            slow_request(daemon, "POST", path, bearer(secret), size=MiB) as first,
            slow_request(daemon, "POST", path, bearer(secret), size=MiB) as second,
        ):
            await first.send_body(b"x" * 50_000)
            with anyio.fail_after(SOON_S):
                while daemon.daemon.bodies.unfinished_bytes < 50_000:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await second.send_body(b"x" * 50_000)
            refused = await second.answer(SOON_S)
            assert (refused.status, json.loads(refused.body)["limit"]) == (429, "credential_body_bytes")
            prompt = {"prompt": [{"type": "text", "text": "x" * 60_000}]}
            assert (await owner.post(path, json=prompt)).status_code == 202
        with anyio.fail_after(SOON_S):
            while daemon.daemon.bodies.unfinished_bytes:  # noqa: ASYNC110
                await anyio.sleep(0.01)
