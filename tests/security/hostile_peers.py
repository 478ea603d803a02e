"""Hostile peers in a separate process: `python -m tests.security.hostile_peers URL TOKEN SHARE_LINK SECONDS`.

A guest with a share link, a controller, an agent controlled by its prompts, and strangers. Each tries to fill
memory, descriptors and logs, repeatedly until the time is over. Rejections are expected.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from urllib.parse import urlsplit

import anyio
import httpx
from websockets.asyncio.client import connect

from turnwire.server.access.login import PAGE_KEY

STREAMS, SOCKETS, STRANGERS = 300, 16, 200
FRAGMENT = 4 * 2**20


async def guest_with_streams(url: str, session_id: str, headers: dict[str, str]) -> None:
    """Open event streams and read nothing of them."""
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits) as client, AsyncExitStack() as stack:
        for _ in range(STREAMS):
            request = client.stream("GET", f"/session/{session_id}/events", timeout=5)
            await stack.enter_async_context(request)
        await anyio.sleep(5)


async def guest_with_sockets(url: str, session_id: str, headers: dict[str, str]) -> None:
    """Send pings and unfinished messages over WebSockets."""
    async with AsyncExitStack() as stack:
        address = url.replace("http", "ws") + "/acp"
        sockets = [
            await stack.enter_async_context(connect(address, additional_headers=headers)) for _ in range(SOCKETS)
        ]
        for socket in sockets:
            # A text frame that is not the last one of its message (RFC 6455, 5.2), masked with zeros.
            frame = b"\x01\xff" + FRAGMENT.to_bytes(8, "big") + bytes(4) + b"a" * FRAGMENT
            socket.transport.write(frame)
        for _ in range(2_000):
            for socket in sockets:
                await socket.pong(b"x")
        await anyio.sleep(2)


async def controller_with_prompts(url: str, session_id: str, headers: dict[str, str]) -> None:
    """Queue large prompts after one that never ends."""
    large = {"prompt": [{"type": "text", "text": "a" * 8 * 2**20}]}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        await client.post(f"/session/{session_id}/prompt", json={"prompt": [{"type": "text", "text": "never"}]})
        for _ in range(12):
            await client.post(f"/session/{session_id}/prompt", json=large)


async def agent_with_requests(url: str, session_id: str, headers: dict[str, str]) -> None:
    """Let an agent ask for thousands of permissions and files at once, and cancel it."""
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        await client.post(f"/session/{session_id}/prompt", json={"prompt": [{"type": "text", "text": "all"}]})
        await anyio.sleep(2)
        await client.post(f"/session/{session_id}/cancel")


async def strangers(url: str) -> None:
    """Guess codes, send half of a request, and send invalid HTTP."""
    address = urlsplit(url)
    async with httpx.AsyncClient(base_url=url) as client:
        for _ in range(200):
            await client.post("/login", json={"code": os.urandom(8).hex()})
    writers: list[asyncio.StreamWriter] = []
    try:
        for number in range(STRANGERS):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
            head = f"POST /login HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 4000\r\n\r\n{{"
            writer.write(head.encode() if number % 2 else os.urandom(2_000))
            writers.append(writer)
        await anyio.sleep(3)
    finally:
        for writer in writers:
            writer.close()


async def forever(act: Callable[[], Awaitable[None]]) -> None:
    while True:
        # A peer that was cut off fails in many ways, also inside of its libraries.
        with suppress(Exception):
            await act()
        await anyio.sleep(0.2)


async def main(url: str, token: str, link: str, seconds: float) -> None:
    owner = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=owner, timeout=60) as client:
        wanted: tuple[dict[str, str], ...] = ({}, {"agent": "hostile"})
        sessions = [(await client.post("/session", json=each)).json()["sessionId"] for each in wanted]
        made = await client.post("/tokens", json={"name": "mallory", "role": "controller"})
    async with httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/login", json={"code": urlsplit(link).fragment}, headers={"Origin": url})
    half = answer.headers["set-cookie"].partition(";")[0]
    guest = {"Cookie": half, PAGE_KEY: answer.headers[PAGE_KEY], "Origin": url}
    controller = {"Authorization": f"Bearer {made.json()['token']}"}
    shared = os.environ["SHARED_SESSION"]
    acts: list[Callable[[], Awaitable[None]]] = [
        partial(guest_with_streams, url, shared, guest),
        partial(guest_with_sockets, url, shared, guest),
        partial(controller_with_prompts, url, sessions[0], controller),
        partial(agent_with_requests, url, sessions[1], controller),
        partial(strangers, url),
    ]
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            async with asyncio.TaskGroup() as tasks:
                for act in acts:
                    tasks.create_task(forever(act))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
