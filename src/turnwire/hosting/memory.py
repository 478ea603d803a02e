"""A link inside one process: two crossed ends that pass frames to each other without a system call or a copy.

Tests and embedded agents use it; it fulfils the obligations of `turnwire.hosting.base` like any other link.
"""

from __future__ import annotations

from turnwire.errors import LocalProtocolError
from turnwire.hosting.queues import Inbound, Outbound


class _Inbound(Inbound):
    sender: _Outbound

    def on_taken(self) -> None:
        self.sender.admit()


class _Outbound(Outbound):
    """One direction: frames go straight to the inbound queue of the other end."""

    def __init__(self, far: _Inbound, max_frames: int) -> None:
        super().__init__(max_frames, "max_frames")
        self._far = far
        far.sender = self

    def has_room(self) -> bool:
        return not self._far.is_full

    def put(self, frame: bytes) -> None:
        self._far.add([frame], 1)

    def close(self) -> None:
        super().close()
        self._far.end()


class MemoryLink:
    """One end of a pair made by `memory_pair`. See `turnwire.hosting.base.FrameLink` for its guarantees."""

    def __init__(self, inbound: _Inbound, outbound: _Outbound) -> None:
        self._inbound = inbound
        self._outbound = outbound
        self.receive = inbound.receive
        self.send = outbound.send
        self.send_nowait = outbound.send_nowait

    @property
    def waiting(self) -> int:
        """The number of frames that have arrived but were not received yet."""
        return len(self._inbound)

    async def aclose(self) -> None:
        """Close this end. Idempotent, never waits."""
        self._inbound.close()
        self._inbound.sender.break_off("the peer closed its end; the frame was not sent")
        self._outbound.close()


def memory_pair(max_frames: int = 1024) -> tuple[MemoryLink, MemoryLink]:
    """Return two ends of one link. At most `max_frames` frames wait in each direction."""
    if max_frames < 1:
        raise LocalProtocolError(f"max_frames is {max_frames}; a link needs room for one frame", value=max_frames)
    why_ended = "the peer closed its end and everything it sent has been read"
    here, there = _Inbound(max_frames, why_ended), _Inbound(max_frames, why_ended)
    return MemoryLink(here, _Outbound(there, max_frames)), MemoryLink(there, _Outbound(here, max_frames))
