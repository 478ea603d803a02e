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

from collections.abc import Mapping
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


class Journal(Protocol):
    """Notes about a link that outlive this process together with the agent (`hosting.holder`).

    Notes and frames of one event loop round are stored together or not at all. Frames that arrive are numbered from
    1, over all processes that read the link.
    """

    @property
    def notes(self) -> Mapping[str, bytes]:
        """The notes of the process that had the link before."""
        ...

    @property
    def acknowledged(self) -> int:
        """Number of the newest frame that is not received again after this process."""
        ...

    def note(self, name: str, value: bytes | None) -> None:
        """Store a note in this round; `None` removes it."""
        ...

    async def stored(self) -> None:
        """Return once all notes so far survive this process."""
        ...

    def acknowledge(self, frame: int) -> None:
        """Forget the frames up to this number."""
        ...

    def leave(self) -> None:
        """Disconnect, and let the agent continue for the next process."""
        ...
