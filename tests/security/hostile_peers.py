"""Hostile peers in a separate process: `python -m tests.security.hostile_peers URL TOKEN LINK SESSION SEED`.

A guest with LINK to SESSION, a controller, an agent controlled by its prompts, and strangers. Each tries to
fill memory, descriptors and logs, repeatedly until standard input ends; then the number of attempts of each is
printed. Rejections are expected. The seed decides how large each attempt is and when it starts.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import anyio
import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from turnwire.server.access.login import PAGE_KEY

STREAMS, SOCKETS, CONNECTIONS = 300, 16, 1200
FRAGMENT = 4 * 2**20
LARGE = 8 * 2**20
HEAD_S = 5.0


class Target(NamedTuple):
    """The daemon, and what a peer has of it."""

    url: str
    session_id: str
    headers: dict[str, str]
    chance: random.Random

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=STREAMS)
        return httpx.AsyncClient(base_url=self.url, headers=self.headers, limits=limits, timeout=60)

    def up_to(self, most: int) -> int:
        return self.chance.randint(1, most)

    async def prompt(self, client: httpx.AsyncClient, text: str) -> None:
        body = {"prompt": [{"type": "text", "text": text}]}
        await client.post(f"/session/{self.session_id}/prompt", json=body)

    def head(self, method: str, path: str, more: str = "") -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": self.host, **self.headers}.items())
        return f"{method} {path} HTTP/1.1\r\n{lines}{more}\r\n".encode()


@asynccontextmanager
async def raw_connections(target: Target, count: int, data: bytes) -> AsyncGenerator[None]:
    """Open connections that send `data` and read nothing."""
    hostname, port = urlsplit(target.url).hostname, urlsplit(target.url).port
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(count):
            _, writer = await asyncio.open_connection(hostname, port)
            writer.write(data)
            writers.append(writer)
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


async def guest_with_streams(target: Target) -> None:
    """Open event streams and read nothing of them."""
    async with target.client() as client, AsyncExitStack() as stack:
        for _ in range(target.up_to(STREAMS)):
            request = client.stream("GET", f"/session/{target.session_id}/events", timeout=HEAD_S)
            with suppress(httpx.HTTPError):
                await stack.enter_async_context(request)
        await anyio.sleep(HEAD_S)


async def guest_with_sockets(target: Target) -> None:
    """Send pongs and unfinished messages over WebSockets."""
    async with AsyncExitStack() as stack:
        address = target.url.replace("http", "ws") + "/acp"
        sockets = [
            await stack.enter_async_context(connect(address, additional_headers=target.headers))
            for _ in range(SOCKETS)
        ]
        size = target.up_to(FRAGMENT)
        for socket in sockets:
            # A text frame that is not the last one of its message (RFC 6455 §5.2), masked with zeros.
            socket.transport.write(b"\x01\xff" + size.to_bytes(8, "big") + bytes(4) + b"a" * size)
        with suppress(WebSocketException):  # the daemon closes sockets that send too many
            for _ in range(target.up_to(2_000)):
                for socket in sockets:
                    await socket.pong(b"x")
        await anyio.sleep(2)


async def guest_that_reads_nothing(target: Target) -> None:
    """Request the transcript over many connections and accept nothing of it."""
    data = target.head("GET", f"/session/{target.session_id}/export?format=json")
    async with raw_connections(target, target.up_to(STREAMS), data):
        await anyio.sleep(HEAD_S)


async def controller_with_prompts(target: Target) -> None:
    """Queue large prompts after one that never ends."""
    async with target.client() as client:
        await target.prompt(client, "never")
        for _ in range(12):
            await target.prompt(client, "a" * target.up_to(LARGE))


async def controller_with_bodies(target: Target) -> None:
    """Send half of a prompt over many connections."""
    size = f"Content-Type: application/json\r\nContent-Length: {LARGE}\r\n"
    data = target.head("POST", f"/session/{target.session_id}/prompt", size) + b"{" * target.up_to(100_000)
    async with raw_connections(target, target.up_to(CONNECTIONS), data):
        await anyio.sleep(HEAD_S)


async def agent_with_requests(target: Target) -> None:
    """Let an agent ask for thousands of permissions and files at once, and cancel it."""
    async with target.client() as client:
        await target.prompt(client, "all")
        await anyio.sleep(2)
        await client.post(f"/session/{target.session_id}/cancel")


async def strangers_that_guess(target: Target) -> None:
    """Guess codes, and send data that is not HTTP."""
    async with target.client() as client:
        for _ in range(200):
            await client.post("/login", json={"code": os.urandom(8).hex()})
    async with raw_connections(target, 200, target.chance.randbytes(2_000)):
        await anyio.sleep(1)


async def strangers_with_halves(target: Target) -> None:
    """Send half of a request over more connections than there are descriptors."""
    login = target.head("POST", "/login", "Content-Length: 4000\r\n") + b"{"
    health = target.head("GET", "/health")
    data = target.chance.choice([login, health[:-2], health + login, health + health[:-2], b""])
    async with raw_connections(target, CONNECTIONS, data):
        await anyio.sleep(HEAD_S)


async def strangers_that_pipeline(target: Target) -> None:
    """Send thousands of requests in one go."""
    async with raw_connections(target, target.up_to(40), b"GET / HTTP/1.1\r\n\r\n" * 10_000):
        await anyio.sleep(2)


async def repeat(act: Callable[[Target], Awaitable[None]], target: Target, begun: Counter[str]) -> None:
    while True:
        begun[act.__name__] += 1
        # Peers are cut off. Any other error is one of this program, and ends it.
        with suppress(OSError, EOFError, httpx.HTTPError, WebSocketException):
            await act(target)
        await anyio.sleep(target.chance.uniform(0.1, 2))


async def attack(url: str, token: str, link: str, shared: str, seed: str) -> Counter[str]:
    """Run all peers until standard input ends. Return the number of attempts of each."""
    owner = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=owner, timeout=60) as client:
        wanted: tuple[dict[str, str], ...] = ({}, {"agent": "hostile"})
        large, hostile = [(await client.post("/session", json=each)).json()["sessionId"] for each in wanted]
        made = await client.post("/tokens", json={"name": "mallory", "role": "controller"})
    async with httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/login", json={"code": urlsplit(link).fragment}, headers={"Origin": url})
    half = answer.headers["set-cookie"].partition(";")[0]
    guest = {"Cookie": half, PAGE_KEY: answer.headers[PAGE_KEY], "Origin": url}
    controller = {"Authorization": f"Bearer {made.json()['token']}"}
    acts: list[tuple[Callable[[Target], Awaitable[None]], str, dict[str, str]]] = [
        (guest_with_streams, shared, guest),
        (guest_with_sockets, shared, guest),
        (guest_that_reads_nothing, shared, guest),
        (controller_with_prompts, large, controller),
        (controller_with_bodies, large, controller),
        (agent_with_requests, hostile, controller),
        (strangers_that_guess, "", {}),
        (strangers_with_halves, "", {}),
        (strangers_that_pipeline, "", {}),
    ]
    begun: Counter[str] = Counter()
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(
                repeat(act, Target(url, session_id, headers, random.Random(seed + act.__name__)), begun)
            )
            for act, session_id, headers in acts
        ]
        await asyncio.to_thread(sys.stdin.read)
        for each in running:
            each.cancel()
    return begun


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(attack(*sys.argv[1:]))))
