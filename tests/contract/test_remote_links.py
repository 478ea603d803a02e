"""The links to agents over WebSocket and over Streamable HTTP fulfil the contract of `FrameLink`, each way."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import anyio.lowlevel
import httpx
import pytest
from anyio.abc import TaskGroup
from tests.support.acp_endpoint import ServerEnd, served
from websockets.asyncio.server import ServerConnection, serve

from turnwire.hosting.base import FrameLink
from turnwire.hosting.streamable import StreamableLink
from turnwire.hosting.websocket import WebSocketLink, open_websocket
from turnwire.limits import KiB, Limits
from turnwire_testing.contracts.frame_link import CHECKS, Check, OpenPair, Pair, take

pytestmark = pytest.mark.anyio

TEXT = [each for each in CHECKS if str(each) != "K2_large_and_odd_frames_arrive_whole"]
"""Both carry text, so invalid UTF-8 cannot arrive; all other checks are below."""

ROOMY, TIGHT = Limits(stop_eof_s=0.5), Limits(link_buffer_bytes=64 * KiB, stop_eof_s=0.5)
INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}'


@pytest.fixture
async def tasks() -> AsyncGenerator[TaskGroup]:
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


@pytest.fixture
async def over_websocket(tasks: TaskGroup) -> AsyncGenerator[OpenPair]:
    """Open both ends; the far one has a small buffer, so that unread frames stay with their sender."""
    accepted: list[WebSocketLink] = []

    async def accept(connection: ServerConnection) -> None:
        accepted.append(WebSocketLink(connection, TIGHT))
        await accepted[-1].run()

    listener = socket.create_server(("127.0.0.1", 0))
    # Small buffers in transit, so that a link whose peer does not read stays full.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KiB)
    async with serve(accept, sock=listener, max_size=None, ping_interval=None, close_timeout=0.5):
        port = listener.getsockname()[1]

        async def open_pair() -> Pair:
            near = await open_websocket(f"ws://127.0.0.1:{port}/acp", {}, ROOMY)
            tasks.start_soon(near.run)
            while not accepted:
                await anyio.lowlevel.checkpoint()
            return near, accepted.pop()

        yield open_pair


@pytest.fixture
async def over_http(tasks: TaskGroup) -> AsyncGenerator[OpenPair]:
    far = ServerEnd(TIGHT)
    async with served(far.serve) as url, httpx.AsyncClient() as client:

        async def open_pair() -> Pair:
            near = StreamableLink(url, client, Limits(link_buffer_bytes=256 * KiB, stop_eof_s=0.5))
            tasks.start_soon(near.run)
            tasks.start_soon(far.run)
            await near.send(INITIALIZE)
            await take(near, 1)
            return near, far

        yield open_pair
        await far.aclose()


def swapped(open_pair: OpenPair) -> OpenPair:
    async def open_swapped() -> Pair:
        near, far = await open_pair()
        return far, near

    return open_swapped


@pytest.mark.parametrize("check", TEXT, ids=str)
async def test_the_websocket_link_keeps_the_contract(check: Check, over_websocket: OpenPair) -> None:
    await check(over_websocket)


@pytest.mark.parametrize("check", TEXT, ids=str)
async def test_the_streamable_link_keeps_the_contract_when_it_sends(check: Check, over_http: OpenPair) -> None:
    await check(over_http)


@pytest.mark.parametrize("check", [each for each in TEXT if each.obligation != "K3"], ids=str)
async def test_the_streamable_link_keeps_the_contract_when_it_reads(check: Check, over_http: OpenPair) -> None:
    await check(swapped(over_http))


async def carry_text(open_pair: OpenPair) -> None:
    sent = [b"x" * 3_000_000, "{'grüße': '\u2028'}".encode(), b"\x00", b"y"]
    near, far = await open_pair()
    assert isinstance(near, FrameLink)

    async def send_all(link: FrameLink) -> None:
        for frame in sent:
            await link.send(frame)

    async with aclosing(near), aclosing(far):
        for one, other in ((near, far), (far, near)):
            async with anyio.create_task_group() as sending:
                sending.start_soon(send_all, one)
                assert await take(other, len(sent)) == sent


async def test_large_and_odd_text_arrives_whole_over_a_websocket(over_websocket: OpenPair) -> None:
    await carry_text(over_websocket)


async def test_large_and_odd_text_arrives_whole_over_http(over_http: OpenPair) -> None:
    await carry_text(over_http)
