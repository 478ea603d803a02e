"""What an idle reader costs the daemon, as the kernel counts it: a stream, and a client with a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from tests.patience import LONG_S
from tests.server.serving import Serving, serving
from websockets.asyncio.client import ClientConnection, connect

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("G10")]

WARM = 100
"""Readers before it is counted: what the first ones need is needed once."""
READERS = 400
STREAM_KB, SOCKET_KB = 15, 42
"""Seven and thirty-two were measured; a process takes memory in steps of its own."""

Opened = asyncio.StreamWriter | ClientConnection


async def stream(daemon: Serving) -> Opened:
    address = urlsplit(daemon.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    token = daemon.headers["Authorization"]
    writer.write(f"GET {daemon.path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: {token}\r\n\r\n".encode())
    await reader.readuntil(b"id: ")
    return writer


async def socket(daemon: Serving) -> Opened:
    url = f"ws://{urlsplit(daemon.url).netloc}/acp"
    opened = await connect(url, additional_headers=daemon.headers, compression=None, proxy=None)
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    await opened.send(json.dumps(asked))
    await opened.recv()
    return opened


@pytest.mark.parametrize(("open_one", "most_kb"), [(stream, STREAM_KB), (socket, SOCKET_KB)])
async def test_an_idle_reader_is_small(
    tmp_path: Path, open_one: Callable[[Serving], Awaitable[Opened]], most_kb: int
) -> None:
    async with serving(tmp_path / "d") as daemon:
        with anyio.fail_after(LONG_S):
            opened = [await open_one(daemon) for _ in range(WARM)]
            before_mb = daemon.memory_mb()
            opened += [await open_one(daemon) for _ in range(READERS)]
            each_kb = (daemon.memory_mb() - before_mb) * 1024 / READERS
        assert each_kb < most_kb
        for each in opened:
            each.transport.abort()
