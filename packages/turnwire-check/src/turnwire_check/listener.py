"""A WebSocket listener on loopback: each connection is a transport for checking the client at its other end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from websockets.asyncio.server import ServerConnection, serve

from turnwire_check.remote import LARGEST, SocketTransport
from turnwire_check.transport import Transport

HOST = "127.0.0.1"


@asynccontextmanager
async def listening(judge: Callable[[Transport], Awaitable[None]]) -> AsyncGenerator[str]:
    """Listen and yield the address. A connection is closed after its check, and all are closed at the end."""

    async def take(socket: ServerConnection) -> None:
        transport = SocketTransport(socket)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transport.read)
            await judge(transport)
            tasks.cancel_scope.cancel()

    # A client that is suspended during a case is silent for a while, which is not a fault: no pings are sent.
    async with serve(take, HOST, 0, max_size=LARGEST, ping_interval=None, compression=None) as server:
        _, port, *_ = next(iter(server.sockets)).getsockname()
        yield f"ws://{HOST}:{port}/acp"
