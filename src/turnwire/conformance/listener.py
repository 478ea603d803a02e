"""A WebSocket listener on loopback: each connection is a transport for whoever judges the client behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from websockets.asyncio.server import ServerConnection, serve

from turnwire.conformance.remote import LARGEST, SocketTransport
from turnwire.conformance.transport import Transport

HOST = "127.0.0.1"


@asynccontextmanager
async def listening(judge: Callable[[Transport], Awaitable[None]]) -> AsyncGenerator[str]:
    """Gives the address. A connection is closed when it is judged, and all are when this ends."""

    async def take(socket: ServerConnection) -> None:
        transport = SocketTransport(socket)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transport.read)
            await judge(transport)
            tasks.cancel_scope.cancel()

    # A client that is stopped over a case says nothing for a while, and that is no fault: nobody is pinged.
    async with serve(take, HOST, 0, max_size=LARGEST, ping_interval=None, compression=None) as server:
        _, port, *_ = next(iter(server.sockets)).getsockname()
        yield f"ws://{HOST}:{port}/acp"
