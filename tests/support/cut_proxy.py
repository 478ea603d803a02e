"""A TCP proxy that cuts: each connection is reset after a number of bytes of the answer.

Its arguments are the address of a real server and a plan of byte counts, one for each connection; connections
beyond the plan are not cut. With a `mark`, the plan counts its occurrences in the answer, and the cut is directly
after it. `refusing` closes every new connection at once, like a server that is being restarted. The bytes are not
inspected any further, and the proxy never outlives its `async with`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream

_RESET = struct.pack("ii", 1, 0)
"""A close that is a reset: the other side is notified at once, even with bytes in flight."""


class CuttingProxy:
    """A proxy in front of one server."""

    def __init__(self, target: str, cuts: Iterable[int], mark: bytes | None = None) -> None:
        self._target = urlsplit(target)
        self._mark = mark
        self._cuts: Iterator[int] = iter(cuts)
        self.url = ""
        self.opened = 0
        """Connections so far."""
        self.made = 0
        """Cuts so far."""
        self.refusing = False
        self._open: set[anyio.CancelScope] = set()

    def cut_all(self) -> None:
        """Cut all open connections."""
        for scope in self._open:
            scope.cancel()

    def aim(self, target: str) -> None:
        """New connections go to another server: the same one, restarted."""
        self._target = urlsplit(target)

    async def serve(self, client: SocketStream) -> None:
        """Carry one connection to its end."""
        self.opened += 1
        async with client:
            if self.refusing:
                _reset(client)
                return
            try:
                server = await anyio.connect_tcp(self._target.hostname or "", self._target.port or 0)
            except OSError:
                _reset(client)
                return
            async with server:
                await self._carry(client, server, next(self._cuts, None))

    async def _carry(self, client: SocketStream, server: SocketStream, most: int | None) -> None:
        async with anyio.create_task_group() as tasks:
            self._open.add(tasks.cancel_scope)

            async def ask() -> None:
                try:
                    async for piece in client:
                        await server.send(piece)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(ask)
            try:
                await self._answer(client, server, most)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
            finally:
                self._open.discard(tasks.cancel_scope)
                _reset(client)
                tasks.cancel_scope.cancel()

    async def _answer(self, client: SocketStream, server: SocketStream, left: int | None) -> None:
        async for piece in server:
            if left is None:
                await client.send(piece)
                continue
            place, left = self._place(piece, left)
            await client.send(piece[:place])
            if place is not None:
                self.made += 1
                return

    def _place(self, piece: bytes, left: int) -> tuple[int | None, int]:
        """Return the position of the cut in these bytes, if it is there, and the remaining count."""
        if self._mark is None:
            return (left if len(piece) >= left else None), left - len(piece)
        place = 0
        while left and (found := piece.find(self._mark, place)) >= 0:
            place, left = found + len(self._mark), left - 1
        return (None if left else place), left


def _reset(stream: SocketStream) -> None:
    raw: socket.socket = stream.extra(SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


@asynccontextmanager
async def cutting(target: str, cuts: Iterable[int] = (), mark: bytes | None = None) -> AsyncGenerator[CuttingProxy]:
    """Run a proxy on a free port until the end of the block."""
    proxy = CuttingProxy(target, cuts, mark)
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        proxy.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.start_soon(listener.serve, proxy.serve)
        try:
            yield proxy
        finally:
            tasks.cancel_scope.cancel()
