"""ACP over standard input and output: one client, which started turnwire as its agent.

Takes a link to the client; hands its messages to the engine one by one and writes what the client is sent. Serves
until the client's input ends, it no longer reads, or the daemon has stopped. Then it detaches: turns go on, and the
log has them. Never writes anything but ACP.
"""

from __future__ import annotations

import logging
from contextlib import aclosing

import anyio
import msgspec
from msgspec import UNSET, UnsetType

from turnwire.core.correlation import ExactId, exact
from turnwire.errors import FrameTooLarge, LinkError
from turnwire.link.stdio import StdioLink
from turnwire.server.access.identity import PARENT
from turnwire.server.acp.connection import AcpConnection
from turnwire.server.acp.rpc import failure_of
from turnwire.server.daemon import Daemon
from turnwire.wire.methods import SESSION_PROMPT

CLOSE_S = 5.0
"""What telling sessions of a client that left may take; the log does it in milliseconds."""

logger = logging.getLogger(__name__)


class _Head(msgspec.Struct, gc=False):
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET


_head = msgspec.json.Decoder(_Head).decode


class _Asked:
    """Requests of the client that have no answer yet."""

    def __init__(self) -> None:
        self._open: dict[ExactId, str] = {}
        self._changed = anyio.Event()

    def took(self, frame: bytes) -> None:
        """The client sent this."""
        head = _read(frame)
        if isinstance(head.id, int | str) and head.method is not UNSET:
            self._open[exact(head.id)] = head.method

    def gave(self, frame: bytes) -> None:
        """The client was sent this."""
        head = _read(frame)
        if isinstance(head.id, int | str) and head.method is UNSET:
            self._open.pop(exact(head.id), None)
            self._changed.set()

    async def answered(self, *, prompts: bool) -> None:
        """Wait until all of them are answered. Prompts only if told to: their turns go on without the client."""
        while any(prompts or method != SESSION_PROMPT for method in self._open.values()):
            self._changed = anyio.Event()
            await self._changed.wait()


def _read(frame: bytes) -> _Head:
    try:
        return _head(frame)
    except msgspec.DecodeError:
        return _Head()


class _Client:
    """The client at the other end of the link."""

    def __init__(self, connection: AcpConnection, link: StdioLink, most: int) -> None:
        self.connection = connection
        self.asked = _Asked()
        self.reads_no_more = anyio.Event()
        self._link = link
        self._most = most
        self._breaches = 0

    async def tell(self, receiving: anyio.CancelScope) -> None:
        """Write what the client is sent, until the connection ends or the client reads no more."""
        try:
            async with aclosing(self.connection.all_frames()) as frames:
                async for some in frames:
                    for frame in some:
                        await self._link.send(frame)
                        self.asked.gave(frame)
        except LinkError:
            logger.info("the client reads no more", extra={"event": "stdio_not_read"})
        self.reads_no_more.set()
        receiving.cancel()

    async def hear(self) -> None:
        """Take what the client sends, until its input ends."""
        try:
            while True:
                for frame in await self._link.receive():
                    self.asked.took(frame)
                    await self.connection.receive(frame)
                await self._refuse_oversized()
        except LinkError:
            await self._refuse_oversized()

    async def _refuse_oversized(self) -> None:
        """A message that was too long is gone, and with it its id; its sender must hear of it all the same."""
        dropped = self._link.breaches.total() - self._breaches
        self._breaches += dropped
        for _ in range(dropped):
            error = FrameTooLarge(f"a message is longer than {self._most} bytes; send less", limit="frame_bytes")
            try:
                await self._link.send(failure_of(None, error))
            except LinkError:
                return


async def serve_stdio(daemon: Daemon, link: StdioLink, stop: anyio.Event) -> None:
    """Serve the client at the other end of `link` until it leaves or `stop` is set. The link stays open."""
    limits = daemon.limits
    async with anyio.create_task_group() as tasks:
        client = _Client(AcpConnection(daemon, PARENT, tasks), link, limits.frame_bytes)
        with daemon.clients.only(client.connection.can_answer), anyio.CancelScope() as receiving:
            tasks.start_soon(client.tell, receiving)
            tasks.start_soon(_cancel_after, stop, receiving)
            await client.hear()
        # One that only ended its input still reads: it gets the answers that it asked for. A daemon that stops has
        # ended all turns, so their answers are on their way, too.
        is_stopped = stop.is_set()
        with anyio.move_on_after(limits.stop_eof_s if is_stopped else limits.opening_s):
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(_cancel_after, client.reads_no_more, waiting.cancel_scope)
                await client.asked.answered(prompts=is_stopped)
                waiting.cancel_scope.cancel()
        with anyio.move_on_after(CLOSE_S, shield=True):
            await client.connection.aclose()
        tasks.cancel_scope.cancel()


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
