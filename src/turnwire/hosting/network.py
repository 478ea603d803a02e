"""A link over a network: two bounded queues, and a task that carries frames between them and the peer.

The transport is the subclass's (a WebSocket, Streamable HTTP) and runs inside `run`, in a task of the link's owner.
Only `send` and `aclose` wait for the peer, and both are bounded: by room, and by `stop_eof_s`.

Waiting senders are woken when half of the queue is sent, so that a sender is woken once for many frames.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque

import anyio

from turnwire.hosting.queues import Inbound, Outbound
from turnwire.limits import Limits

logger = logging.getLogger("turnwire.agent")


class _Inbound(Inbound):
    """Frames from the transport, which waits for room."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, "the peer closed the connection")
        self._taken = anyio.Event()

    def put(self, frame: bytes) -> None:
        if not self.is_ended:
            self.add([frame], len(frame))

    async def room(self) -> None:
        """Wait until there is room for more frames."""
        while self.is_full:
            await self._taken.wait()

    def on_taken(self) -> None:
        self._taken.set()
        self._taken = anyio.Event()

    def end(self) -> None:
        super().end()
        self._taken.set()


class _Outbound(Outbound):
    """Frames to be sent to the peer, in order."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, "link_buffer_bytes")
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._is_full = False
        self._more = anyio.Event()
        self.drained = anyio.Event()
        """Set once no frame waits and no more will be added."""

    def has_room(self) -> bool:
        return not self._is_full

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._bytes += len(frame)
        self._is_full |= self._bytes >= self._max_size
        self._more.set()

    async def next(self) -> bytes | None:
        """Return the oldest frame, which stays queued until `carried`; `None` after the last one."""
        while not self._frames:
            if self.is_closed or self.broken is not None:
                self.drained.set()
                return None
            self._more = anyio.Event()
            await self._more.wait()
        return self._frames[0]

    def carried(self) -> None:
        """Dequeue the oldest frame: the peer has it."""
        if self._frames:
            self._bytes -= len(self._frames.popleft())
        if self._bytes <= self._max_size // 2:
            self._is_full = False
            self.admit()

    def close(self) -> None:
        """Accept no more frames; queued ones are still sent."""
        super().close()
        self._more.set()

    def break_off(self, why: str) -> None:
        """Drop queued frames: the peer is gone."""
        self._frames.clear()
        super().break_off(why)
        self._more.set()
        self.drained.set()


class NetworkLink(ABC):
    """A `FrameLink` whose owner runs `run` in a task. Without that no frame is carried."""

    def __init__(self, limits: Limits, peer: str = "the agent") -> None:
        """`peer`: the name of the other side in messages."""
        self._limits = limits
        self._peer = peer
        self._inbound = _Inbound(limits.link_buffer_bytes)
        self._outbound = _Outbound(limits.link_buffer_bytes)
        self.receive = self._inbound.receive
        self.send = self._outbound.send
        self.send_nowait = self._outbound.send_nowait
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self.lost: str | None = None
        """The reason why the link broke, as our text; `None` before."""

    # -- for the owner -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry frames until either side ends. Raises nothing: callers of `receive` and `send` get the error."""
        try:
            with self._scope:
                await self._carry()
        finally:
            self._end()
            with anyio.move_on_after(self._limits.stop_eof_s, shield=True):
                await self._part()
            self._ended.set()

    async def aclose(self) -> None:
        """Send queued frames, for at most `stop_eof_s`, then close the connection to the peer. Idempotent."""
        if self._outbound.is_closed:
            return
        self._inbound.close()
        self._outbound.close()
        with anyio.move_on_after(self._limits.stop_eof_s, shield=True):
            await self._outbound.drained.wait()
        self._scope.cancel()
        with anyio.move_on_after(2 * self._limits.stop_eof_s, shield=True):
            await self._ended.wait()

    def _end(self) -> None:
        self._inbound.end()
        self._outbound.break_off(self.lost or "the peer closed the connection; the frame was not sent")

    # -- for the subclass ----------------------------------------------------------------------------------

    @abstractmethod
    async def _carry(self) -> None:
        """Carry frames both ways. Returns when no frame remains, or after `_lose`."""

    @abstractmethod
    async def _part(self) -> None:
        """Close the connection to the peer, if there is one. Bounded by the caller."""

    def _lose(self, why: str) -> None:
        """End everything: the peer is gone or unusable. The first reason is recorded."""
        if self.lost is None and not self._outbound.is_closed:
            self.lost = self._inbound.why_ended = why
            logger.info("the link to %s is lost: %s", self._peer, why, extra={"event": "link_lost"})
        self._end()
        self._scope.cancel()
