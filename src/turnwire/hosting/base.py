"""A link: whole frames to and from one peer, in order.

A link sends and receives frames as bytes without the line end and never reads their content. An agent's pipe, an
in-process pair and a socket are links; `session.correlation` on top of one makes a peer.

Obligations (the contract kit `turnwire_testing.contracts` checks them against any link):

K1  Order. Frames arrive in the order they were sent, each once.
K2  Whole. A frame arrives complete or not at all.
K3  Bounded. The amount sent but not yet accepted by the peer is bounded: `send` waits for room, `send_nowait`
    rejects with `LimitExceeded` and sends nothing.
K4  Drained before broken. After the peer closed, `receive` first returns every frame that had arrived. From then
    on it raises `LinkBroken`.
K5  Closing is final and idempotent. After `aclose` every other call raises `LinkClosed`, and the peer sees K4.
K6  One reader. A second concurrent `receive` raises `LocalProtocolError`.
K7  Cancel-safe. A cancelled `receive` loses no frame; a cancelled `send` has sent all or nothing.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class FrameLink(Protocol):
    """Frames to one peer. See the obligations above."""

    async def receive(self) -> list[bytes]:
        """Return everything that has arrived, at least one frame. Raises `LinkBroken`, `LinkClosed`."""
        ...

    async def send(self, frame: bytes) -> None:
        """Send one frame, waiting for room. Raises `LinkBroken`, `LinkClosed`."""
        ...

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame or reject it. Raises `LimitExceeded`, `LinkBroken`, `LinkClosed`."""
        ...

    async def aclose(self) -> None:
        """Close our side."""
        ...
