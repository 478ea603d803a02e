"""Cancelled and broken connection attempts to PostgreSQL leave no unretrieved error."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute, SocketStream

from turnwire.limits import Limits
from turnwire.log.postgres_connection import BROKEN, Database
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

RESET = struct.pack("ii", 1, 0)
LOOP_STEPS = 40
"""More event loop iterations than an attempt needs to wait for the server's first byte."""


@asynccontextmanager
async def server(answer: bytes, *, resets: bool = False) -> AsyncGenerator[Database]:
    """Run a server that answers the TLS request with these bytes, then closes the connection."""

    async def serve(client: SocketStream) -> None:
        async with client:
            try:
                await client.receive()
                await client.send(answer)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return
            if resets:
                raw: socket.socket = client.extra(SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(SocketAttribute.local_port)
        yield Database(f"postgresql://u@127.0.0.1:{port}/db", Limits(database_s=WAIT_S))
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [b"", b"S", b"N"], ids=["closed", "tls", "no_tls"])
@pytest.mark.parametrize("resets", [False, True], ids=["eof", "reset"])
async def test_connect_cancelled_at_any_loop_iteration_leaves_no_unretrieved_error(
    answer: bytes, resets: bool
) -> None:
    async with server(answer, resets=resets) as database:
        for steps in range(LOOP_STEPS):
            attempt = asyncio.ensure_future(database.connect("test"))
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            attempt.cancel()
            await asyncio.wait([attempt])
            if not attempt.cancelled():
                assert isinstance(attempt.exception(), BROKEN)
        with anyio.fail_after(WAIT_S):
            await database.aclose()
        # anyio's test runner raises errors that the event loop reports.
        gc.collect()
        await anyio.lowlevel.checkpoint()
