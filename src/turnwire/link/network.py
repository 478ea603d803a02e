"""A link over a network: two bounded queues, and a task that carries frames between them and the peer.

What carries them is the subclass's (a WebSocket, Streamable HTTP), and runs inside `run`, in a task of the link's
owner. Only `send` and `aclose` wait for the peer, and both are bounded: by room, and by `stop_eof_s`.

Room comes back when half of what waited is gone, so that a sender is woken once for many frames.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque

import anyio

from turnwire.errors import LimitExceeded, LinkBroken, LinkClosed
from turnwire.limits import Limits
from turnwire.link.queues import Senders, next_frames, tell_arrived

logger = logging.getLogger("turnwire.agent")


class Inbound:
    """Frames that have arrived and were not received yet. Who brings them waits for room; putting never fails."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames: list[bytes] = []
        self._bytes = 0
        self._taken = anyio.Event()
        self.arrived: asyncio.Future[None] | None = None
        """Set while a reader waits."""
        self.is_ended = False

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._max_bytes and not self.is_ended

    def put(self, frame: bytes) -> None:
        if self.is_ended:
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._wake()

    def take(self) -> list[bytes]:
        frames, self._frames, self._bytes = self._frames, [], 0
        self._taken.set()
        self._taken = anyio.Event()
        return frames

    async def room(self) -> None:
        """Wait until more may be brought."""
        while self.is_full:
            await self._taken.wait()

    def end(self) -> None:
        """Nothing more arrives; what has arrived can still be received."""
        self.is_ended = True
        self._taken.set()
        self._wake()

    def drop(self) -> None:
        """End, and forget what was not received."""
        self.end()
        self._frames.clear()

    def _wake(self) -> None:
        tell_arrived(self)


class Outbound:
    """Frames that wait to be carried to the peer, in order."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._is_full = False
        self._senders = Senders()
        self._more = anyio.Event()
        self.is_finishing = False
        """No more frames; what waits is still carried."""
        self.is_ended = False
        self.drained = anyio.Event()
        """Set once nothing waits and nothing more comes."""

    def has_room(self) -> bool:
        return not self._is_full

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._bytes += len(frame)
        self._is_full |= self._bytes >= self._max_bytes
        self._more.set()

    async def wait_for_room(self, frame: bytes) -> bool:
        """Hand the frame over when there is room; whether that happened before the output ended."""
        return await self._senders.wait(frame)

    async def next(self) -> bytes | None:
        """The oldest frame; it stays until `carried`. None when there will be no more."""
        while not self._frames:
            if self.is_finishing or self.is_ended:
                self.drained.set()
                return None
            self._more = anyio.Event()
            await self._more.wait()
        return self._frames[0]

    def carried(self) -> None:
        """The peer has the oldest frame."""
        if self._frames:
            self._bytes -= len(self._frames.popleft())
        if self._bytes <= self._max_bytes // 2:
            self._is_full = False
            self._senders.let_in(self.has_room, self.put)

    def finish(self) -> None:
        """Take no more frames. Senders that wait for room are turned away."""
        self.is_finishing = True
        self._senders.turn_away()
        self._more.set()

    def end(self) -> None:
        """The peer is gone: forget what waits."""
        self.is_ended = True
        self._frames.clear()
        self._senders.turn_away()
        self._more.set()
        self.drained.set()


class NetworkLink(ABC):
    """A `FrameLink` whose owner runs `run` in a task. Without that nothing is carried."""

    def __init__(self, limits: Limits, peer: str = "the agent") -> None:
        """`peer`: what the other side is called in words."""
        self._limits = limits
        self._peer = peer
        self._inbound = Inbound(limits.link_buffer_bytes)
        self._outbound = Outbound(limits.link_buffer_bytes)
        self._scope = anyio.CancelScope()
        self._is_closed = False
        self._ended = anyio.Event()
        self.lost: str | None = None
        """Why the link broke, in our own words, once it has."""

    # -- for the owner -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry frames until either side ends. Raises nothing: an end is heard by who receives or sends."""
        try:
            with self._scope:
                await self._carry()
        finally:
            self._inbound.end()
            self._outbound.end()
            with anyio.move_on_after(self._limits.stop_eof_s, shield=True):
                await self._part()
            self._ended.set()

    async def receive(self) -> list[bytes]:
        """Every frame that has arrived, at least one. Cancel-safe: a cancelled call took nothing."""
        return await next_frames(
            self._inbound, lambda: self._is_closed, lambda: self.lost or "the peer closed the connection"
        )

    async def send(self, frame: bytes) -> None:
        """Send one frame, waiting for room in order. Cancel-safe: a cancelled call sent all or nothing."""
        self._check_open()
        if self._outbound.has_room():
            self._outbound.put(frame)
        elif not await self._outbound.wait_for_room(frame):
            self._check_open()

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame or refuse with `LimitExceeded`."""
        self._check_open()
        if not self._outbound.has_room():
            raise LimitExceeded(
                "the peer does not take what it was sent; use send() to wait for room",
                limit="link_buffer_bytes",
                value=self._limits.link_buffer_bytes,
            )
        self._outbound.put(frame)

    async def aclose(self) -> None:
        """Carry what was sent, for at most `stop_eof_s`, then take leave of the peer. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._inbound.drop()
        self._outbound.finish()
        with anyio.move_on_after(self._limits.stop_eof_s, shield=True):
            await self._outbound.drained.wait()
        self._scope.cancel()
        with anyio.move_on_after(2 * self._limits.stop_eof_s, shield=True):
            await self._ended.wait()

    def _check_open(self) -> None:
        if self._is_closed:
            raise LinkClosed("this link is closed; start a new one")
        if self._outbound.is_ended:
            raise LinkBroken(self.lost or "the peer closed the connection; the frame was not sent")

    # -- for the subclass ----------------------------------------------------------------------------------

    @abstractmethod
    async def _carry(self) -> None:
        """Carry frames both ways. Returns when there is nothing more to carry, or after `_lose`."""

    @abstractmethod
    async def _part(self) -> None:
        """Take leave of the peer, if it is there. Bounded by the caller."""

    def _lose(self, why: str) -> None:
        """The peer is gone, or cannot be used any more: end everything. The first reason is kept."""
        if self.lost is None and not self._is_closed:
            self.lost = why
            logger.info("the link to %s is lost: %s", self._peer, why, extra={"event": "link_lost"})
        self._inbound.end()
        self._outbound.end()
        self._scope.cancel()
