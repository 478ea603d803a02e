"""What every link needs on its two sides: senders that wait for room, and a reader that waits for frames.

Senders are served in the order they came. Whoever makes room takes the frame along, so a sender that is cancelled
has sent all or nothing, and nobody overtakes one that waits. There is one reader at a time; a cancelled wait took
nothing. These are K1, K3, K6 and K7 of `turnwire.link.base`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio

from turnwire.errors import LinkBroken, LinkClosed, LocalProtocolError


class _Sender:
    __slots__ = ("frame", "is_sent", "woken")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.is_sent = False
        self.woken = anyio.Event()


class Senders:
    """A queue of waiting senders."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[_Sender] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, frame: bytes) -> bool:
        """Wait until the frame is taken; False if the link ended first. Cancel-safe: then it is not sent."""
        sender = _Sender(frame)
        self._waiting.append(sender)
        try:
            await sender.woken.wait()
        except BaseException:
            if sender in self._waiting:
                self._waiting.remove(sender)
            raise
        return sender.is_sent

    def let_in(self, has_room: Callable[[], bool], put: Callable[[bytes], None]) -> None:
        """Take the frames of those who wait, as long as there is room."""
        while self._waiting and has_room():
            sender = self._waiting.popleft()
            put(sender.frame)
            sender.is_sent = True
            sender.woken.set()

    def turn_away(self) -> None:
        """The link has ended: wake everybody without sending."""
        while self._waiting:
            self._waiting.popleft().woken.set()


class Arriving(Protocol):
    """Where frames of the peer arrive. Calls `tell_arrived` when there is something new to see, also the end."""

    arrived: asyncio.Future[None] | None
    """Somebody waits here. A bare future: this is waited for before each burst, and most bursts are one frame."""

    @property
    def is_ended(self) -> bool: ...

    def take(self) -> list[bytes]: ...


def tell_arrived(source: Arriving) -> None:
    """Wake who waits there."""
    if source.arrived is not None and not source.arrived.done():
        source.arrived.set_result(None)


async def next_frames(source: Arriving, is_closed: Callable[[], bool], ended: Callable[[], str]) -> list[bytes]:
    """Every frame that has arrived. Raises `LinkClosed`, and `LinkBroken` with what `ended` says."""
    if source.arrived is not None:
        raise LocalProtocolError("another task is already in receive(); a link has one reader")
    while True:
        if is_closed():
            raise LinkClosed("this link is closed; start a new one")
        if frames := source.take():
            return frames
        if source.is_ended:
            raise LinkBroken(ended())
        source.arrived = asyncio.get_running_loop().create_future()
        try:
            await source.arrived
        finally:
            source.arrived = None
