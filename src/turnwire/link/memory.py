"""A link inside one process: two crossed ends that hand frames over without a system call, and without a copy.

Tests and embedded agents use it; it keeps the obligations of `turnwire.link.base` like any other.
"""

from __future__ import annotations

import asyncio

from turnwire.errors import LimitExceeded, LinkBroken, LinkClosed, LocalProtocolError
from turnwire.link.queues import Senders, next_frames, tell_arrived


class _Lane:
    """One direction: frames on their way, and who waits at either end."""

    __slots__ = ("arrived", "frames", "max_frames", "reader_gone", "senders", "writer_gone")

    def __init__(self, max_frames: int) -> None:
        self.max_frames = max_frames
        self.frames: list[bytes] = []
        self.senders = Senders()
        self.arrived: asyncio.Future[None] | None = None
        self.reader_gone = False
        self.writer_gone = False

    def has_room(self) -> bool:
        # A frame may not overtake a sender that waits already.
        return len(self.frames) < self.max_frames and not self.senders

    def put(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.wake_reader()

    @property
    def is_ended(self) -> bool:
        return self.writer_gone

    def take(self) -> list[bytes]:
        taken, self.frames = self.frames, []
        self.senders.let_in(lambda: len(self.frames) < self.max_frames, self.frames.append)
        return taken

    def wake_reader(self) -> None:
        tell_arrived(self)

    def end(self) -> None:
        """Wake everybody; each finds out for itself which side is gone."""
        self.senders.turn_away()
        self.wake_reader()


class MemoryLink:
    """One end of a pair made by `memory_pair`. See `turnwire.link.base.FrameLink` for what it promises."""

    def __init__(self, inbound: _Lane, outbound: _Lane) -> None:
        self._inbound = inbound
        self._outbound = outbound

    @property
    def waiting(self) -> int:
        """How many frames have arrived and were not received yet."""
        return len(self._inbound.frames)

    async def receive(self) -> list[bytes]:
        """Everything that has arrived, at least one frame. Cancel-safe: a cancelled call took nothing."""
        lane = self._inbound
        return await next_frames(lane, lambda: lane.reader_gone, lambda: _READ_TO_THE_END)

    async def send(self, frame: bytes) -> None:
        """Send one frame, waiting for room in order. Cancel-safe: a cancelled call sent all or nothing."""
        self._check_open()
        lane = self._outbound
        if lane.has_room():
            lane.put(frame)
            return
        if not await lane.senders.wait(frame):
            self._check_open()

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame or refuse with `LimitExceeded`."""
        self._check_open()
        lane = self._outbound
        if not lane.has_room():
            raise LimitExceeded(
                f"{lane.max_frames} frames wait for the peer; use send() to wait for room",
                limit="max_frames",
                value=lane.max_frames,
            )
        lane.put(frame)

    async def aclose(self) -> None:
        """Close this end. Idempotent, never waits."""
        self._inbound.reader_gone = True
        self._inbound.frames.clear()
        self._outbound.writer_gone = True
        self._inbound.end()
        self._outbound.end()

    def _check_open(self) -> None:
        if self._outbound.writer_gone:
            raise LinkClosed("this end of the link is closed; open a new pair")
        if self._outbound.reader_gone:
            raise LinkBroken("the peer closed its end; the frame was not sent")


_READ_TO_THE_END = "the peer closed its end and everything it sent has been read"


def memory_pair(max_frames: int = 1024) -> tuple[MemoryLink, MemoryLink]:
    """Two ends of one link. At most `max_frames` frames wait in each direction."""
    if max_frames < 1:
        raise LocalProtocolError(f"max_frames is {max_frames}; a link needs room for one frame", value=max_frames)
    there, back = _Lane(max_frames), _Lane(max_frames)
    return MemoryLink(back, there), MemoryLink(there, back)
