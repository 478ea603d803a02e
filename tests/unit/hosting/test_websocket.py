"""The link over a WebSocket: invalid frames, silent peers, and the contents of the handshake."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from turnwire.errors import AgentLaunchFailed, LinkBroken
from turnwire.hosting.remote_agent import RemoteSource
from turnwire.hosting.websocket import BINARY, WebSocketLink, open_websocket
from turnwire.limits import KiB, Limits
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

LIMITS = Limits(frame_bytes=64 * KiB, stop_eof_s=0.5, launch_s=2)


@asynccontextmanager
async def serving(
    talk: Callable[[ServerConnection], Awaitable[None]],
    answer: Callable[[ServerConnection, Request, Response], Response | None] | None = None,
) -> AsyncGenerator[str]:
    async with serve(talk, "127.0.0.1", 0, process_response=answer, close_timeout=0.5) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/acp"


@asynccontextmanager
async def linked(url: str, limits: Limits = LIMITS) -> AsyncGenerator[WebSocketLink]:
    link = await open_websocket(url, {}, limits)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        try:
            with anyio.fail_after(WAIT_S):
                yield link
        finally:
            await link.aclose()


async def until_closed(connection: ServerConnection) -> None:
    await connection.wait_closed()


async def test_binary_messages_are_skipped_and_counted() -> None:
    async def talk(connection: ServerConnection) -> None:
        for message in (b"\x00\x01", "one", b"{}", "two"):
            await connection.send(message)
        await connection.wait_closed()

    async with serving(talk) as url, linked(url) as link:
        received: list[bytes] = []
        while len(received) < 2:
            received += await link.receive()
        assert (received, link.breaches[BINARY]) == ([b"one", b"two"], 2)


async def test_a_message_beyond_the_limit_ends_the_link_and_says_so() -> None:
    async def talk(connection: ServerConnection) -> None:
        await connection.send("x" * (64 * KiB + 1))
        await connection.wait_closed()

    async with serving(talk) as url, linked(url) as link:
        with pytest.raises(LinkBroken, match="1009"):
            await link.receive()


async def test_a_peer_that_does_not_answer_pings_is_gone() -> None:
    async def stall(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        await released.wait()

    released = anyio.Event()
    quick = Limits(heartbeat_s=0.1, stop_eof_s=0.1)
    async with serving(stall) as url, linked(url, quick) as link:
        with pytest.raises(LinkBroken, match="silent"):
            await link.receive()
        released.set()


async def test_a_peer_that_we_hold_back_ourselves_is_not_silent() -> None:
    async def flood(connection: ServerConnection) -> None:
        for number in range(64):
            await connection.send(f"{number} {'x' * KiB * 32}")
        await connection.wait_closed()

    held = Limits(heartbeat_s=0.05, stop_eof_s=0.5, link_buffer_bytes=64 * KiB)
    async with serving(flood) as url, linked(url, held) as link:
        # Nothing is received for the length of many heartbeats.
        with anyio.move_on_after(0.5):
            await anyio.sleep_forever()
        received: list[bytes] = []
        while len(received) < 64:
            received += await link.receive()
        assert [each.split()[0] for each in received] == [b"%d" % number for number in range(64)]


async def test_the_credential_and_cookies_go_with_every_handshake() -> None:
    seen: list[Request] = []

    def answer(_connection: ServerConnection, request: Request, response: Response) -> None:
        seen.append(request)
        response.headers["Set-Cookie"] = "affinity=here; Path=/"

    async with (
        serving(until_closed, answer) as url,
        RemoteSource(url, token="t0ken", headers={"X-Team": "blue"}, limits=LIMITS) as source,
    ):
        for _ in range(2):
            await (await source.connect()).aclose()
    assert [each.headers["Authorization"] for each in seen] == ["Bearer t0ken"] * 2
    assert [each.headers["X-Team"] for each in seen] == ["blue"] * 2
    assert [each.headers.get("Cookie") for each in seen] == [None, "affinity=here"]


async def test_a_redirect_is_not_followed() -> None:
    def answer(_connection: ServerConnection, _request: Request, response: Response) -> Response:
        response.headers["Location"] = "ws://127.0.0.1:9/elsewhere"
        return Response(302, "Found", response.headers)

    async with serving(until_closed, answer) as url:
        with pytest.raises(AgentLaunchFailed) as refused:
            await open_websocket(url, {"Authorization": "Bearer t0ken"}, LIMITS)
        assert refused.value.context["status"] == 302
