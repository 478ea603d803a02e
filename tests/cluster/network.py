"""A TCP route that can fail: between a node and the database, or between two nodes.

The port of a real server gets a proxy port in front of it. Bytes in transit are never lost while the route holds
them: as in a network, they arrive when the route is open again, or the connection is cut. The bytes are not
inspected.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto

import anyio
from anyio.abc import SocketAttribute, SocketStream

_RESET = struct.pack("ii", 1, 0)
BROKEN = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class Condition(Enum):
    """The handling of bytes."""

    OPEN = auto()
    CUT = auto()
    """Connections are reset, and new ones are refused."""
    HELD = auto()
    """Nothing passes and no side is notified."""
    SLOW = auto()
    """Each chunk is delayed."""


class FaultyRoute:
    """A route to one port of this machine."""

    def __init__(self, target: int, late_s: float = 0.1) -> None:
        self._target = target
        self._late_s = late_s
        self._condition = Condition.OPEN
        self._changed = anyio.Event()
        self._open: set[anyio.CancelScope] = set()
        self._closed = anyio.Event()
        self.port = 0

    def become(self, condition: Condition) -> None:
        """From now on the route is like this."""
        self._condition = condition
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        if condition is Condition.CUT:
            for scope in list(self._open):
                scope.cancel()

    def lead_to(self, target: int) -> None:
        """New connections go to another port."""
        self._target = target

    async def empty(self) -> None:
        """Return once there are no connections, and all bytes in transit have arrived."""
        while self._open:
            await self._closed.wait()

    async def serve(self, client: SocketStream) -> None:
        """Carry one connection to its end."""
        async with client:
            try:
                await self._passable()
                if self._condition is Condition.CUT:
                    return
                async with await anyio.connect_tcp("127.0.0.1", self._target) as server:
                    await self._carry(client, server)
            except BROKEN:
                pass
            finally:
                _reset_at_close(client)

    async def _carry(self, client: SocketStream, server: SocketStream) -> None:
        async with anyio.create_task_group() as tasks:
            self._open.add(tasks.cancel_scope)
            try:
                tasks.start_soon(self._pump, client, server, tasks.cancel_scope)
                await self._pump(server, client, tasks.cancel_scope)
            finally:
                self._open.discard(tasks.cancel_scope)
                closed, self._closed = self._closed, anyio.Event()
                closed.set()
                if self._condition is Condition.CUT:
                    # Otherwise the server would still receive data of a client that no longer exists.
                    _reset_at_close(server)

    async def _pump(self, source: SocketStream, sink: SocketStream, both: anyio.CancelScope) -> None:
        try:
            async for piece in source:
                if self._condition is Condition.SLOW:
                    await anyio.sleep(self._late_s)
                await self._passable()
                await sink.send(piece)
        except BROKEN:
            pass
        # An end closes both directions: neither PostgreSQL nor HTTP sends more after it.
        await self._passable()
        both.cancel()

    async def _passable(self) -> None:
        while self._condition is Condition.HELD:
            await self._changed.wait()


def _reset_at_close(stream: SocketStream) -> None:
    raw: socket.socket = stream.extra(SocketAttribute.raw_socket)
    # The other side may have closed it under us.
    with suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


@asynccontextmanager
async def faulty_route(target: int) -> AsyncGenerator[FaultyRoute]:
    """Run a route on a free port until the end of the block."""
    route = FaultyRoute(target)
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        route.port = listener.extra(SocketAttribute.local_port)
        tasks.start_soon(listener.serve, route.serve)
        try:
            yield route
        finally:
            tasks.cancel_scope.cancel()
