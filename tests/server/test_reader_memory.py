"""Memory of an idle reader in the daemon, as the kernel counts it: a stream, and a client with a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from tests.patience import LONG_S
from tests.server.serving import Serving, serving
from websockets.asyncio.client import ClientConnection, connect

pytestmark = [pytest.mark.full("measures memory"), pytest.mark.anyio, pytest.mark.guarantee("G10")]

READERS = 400
ATTACHED = 150
"""Fewer: each new one is announced to all others."""
STREAM_KB, SOCKET_KB, ATTACHED_KB = 15, 26, 40
"""Six, sixteen and thirty-four were measured; a process allocates memory in larger steps."""

Opened = asyncio.StreamWriter | ClientConnection


async def stream(daemon: Serving) -> Opened:
    address = urlsplit(daemon.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    token = daemon.headers["Authorization"]
    writer.write(f"GET {daemon.path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: {token}\r\n\r\n".encode())
    await reader.readuntil(b"id: ")
    return writer


async def socket(daemon: Serving) -> ClientConnection:
    url = f"ws://{urlsplit(daemon.url).netloc}/acp"
    opened = await connect(url, additional_headers=daemon.headers, compression=None, proxy=None)
    await result(opened, 1, "initialize", {"protocolVersion": 1})
    return opened


async def attached(daemon: Serving) -> Opened:
    opened = await socket(daemon)
    (listed,) = (await result(opened, 2, "session/list", {}))["sessions"]
    wanted: dict[str, Any] = {"sessionId": daemon.session_id, "cwd": listed["cwd"], "mcpServers": []}
    await result(opened, 3, "session/load", wanted)
    return opened


async def result(opened: ClientConnection, request_id: int, method: str, params: dict[str, Any]) -> Any:
    asked = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    await opened.send(json.dumps(asked))
    while (told := json.loads(await opened.recv())).get("id") != request_id:
        pass  # the history
    return told["result"]


@pytest.mark.parametrize(
    ("open_one", "count", "most_kb"),
    [(stream, READERS, STREAM_KB), (socket, READERS, SOCKET_KB), (attached, ATTACHED, ATTACHED_KB)],
)
async def test_an_idle_reader_is_small(
    tmp_path: Path, open_one: Callable[[Serving], Awaitable[Opened]], count: int, most_kb: int
) -> None:
    async with serving(tmp_path / "d") as daemon:
        with anyio.fail_after(LONG_S):
            # Memory for the first ones is needed only once.
            opened = [await open_one(daemon) for _ in range(count // 4)]
            before_mb = daemon.memory_mb()
            opened += [await open_one(daemon) for _ in range(count)]
            each_kb = (daemon.memory_mb() - before_mb) * 1024 / count
        assert each_kb < most_kb
        for each in opened:
            each.transport.abort()
