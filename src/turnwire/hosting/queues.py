"""The pair of bounded queues of every link: frames that have arrived, and frames to be sent.

They uphold K1 to K7 of `turnwire.hosting.base`. Senders are served in order. The task that makes room also moves
the frame of the next sender, so a cancelled sender has sent all or nothing, and no sender is overtaken. A cancelled
`receive` has dequeued nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque

import anyio

from turnwire.errors import LimitExceeded, LinkBroken, LinkClosed, LocalProtocolError

CLOSED = "this link is closed; start a new one"


class Inbound:
    """Frames that have arrived but were not received yet. Adding never fails; the source watches `is_full`."""

    def __init__(self, max_size: int, why_ended: str) -> None:
        """`max_size`: in the unit in which the source adds, bytes or frames. `why_ended`: the reason shown to the
        reader.
        """
        self._max_size = max_size
        self._frames: list[bytes] = []
        self._size = 0
        self._reader: asyncio.Future[None] | None = None
        """Set while a task receives. A bare future: most waits are for one frame."""
        self.why_ended = why_ended
        self.is_ended = False
        """True if no more frames arrive; those that have arrived can still be received."""
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def is_full(self) -> bool:
        return self._size >= self._max_size and not self.is_ended

    def add(self, frames: list[bytes], size: int) -> None:
        """Add frames in their order, and wake the reader."""
        self._size += size
        if frames:
            self._frames += frames
            self._wake()

    async def receive(self) -> list[bytes]:
        """Return every frame that has arrived, at least one. Raises `LinkClosed`, `LinkBroken`."""
        if self._reader is not None:
            raise LocalProtocolError("another task is already in receive(); a link has one reader")
        while True:
            if self.is_closed:
                raise LinkClosed(CLOSED)
            if self._frames:
                frames, self._frames, self._size = self._frames, [], 0
                self.on_taken()
                return frames
            if self.is_ended:
                raise LinkBroken(self.why_ended)
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def on_taken(self) -> None:
        """Called when there is room again."""

    def end(self) -> None:
        """Accept no more arriving frames."""
        self.is_ended = True
        self._wake()

    def close(self) -> None:
        """End and drop all frames that were not received: the reader closed the link."""
        self.is_closed = True
        self.end()
        self._frames.clear()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _Sender:
    __slots__ = ("frame", "is_sent", "woken")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.is_sent = False
        self.woken = anyio.Event()


class Outbound(ABC):
    """Frames to be sent, and the senders that wait for room. The transport receives frames through `put`."""

    def __init__(self, max_size: int, limit: str) -> None:
        """`limit`: the name of the limit that sets `max_size`."""
        self._max_size = max_size
        self._limit = limit
        self._senders: deque[_Sender] = deque()
        self.is_closed = False
        self.broken: str | None = None
        """The reason why sending is impossible, if the peer is gone."""

    @abstractmethod
    def has_room(self) -> bool:
        """Return whether another frame can be put."""

    @abstractmethod
    def put(self, frame: bytes) -> None:
        """Accept a frame."""

    async def send(self, frame: bytes) -> None:
        """Send one frame, waiting for room in order."""
        self._check_open()
        if self.has_room() and not self._senders:
            self.put(frame)
            return
        sender = _Sender(frame)
        self._senders.append(sender)
        try:
            await sender.woken.wait()
        except BaseException:
            if sender in self._senders:
                self._senders.remove(sender)
            raise
        if not sender.is_sent:
            self._check_open()

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame, or raise `LimitExceeded`."""
        self._check_open()
        if not self.has_room() or self._senders:
            raise LimitExceeded(
                "the peer does not read what it was sent; use send() to wait for room",
                limit=self._limit,
                value=self._max_size,
            )
        self.put(frame)

    def admit(self) -> None:
        """Put the frames of waiting senders while there is room."""
        while self._senders and self.has_room():
            sender = self._senders.popleft()
            self.put(sender.frame)
            sender.is_sent = True
            sender.woken.set()

    def close(self) -> None:
        """Accept no more frames: our side closed the link."""
        self.is_closed = True
        self._turn_away()

    def break_off(self, why: str) -> None:
        """Accept no more frames: the peer is gone."""
        if self.broken is None:
            self.broken = why
        self._turn_away()

    def _turn_away(self) -> None:
        while self._senders:
            self._senders.popleft().woken.set()

    def _check_open(self) -> None:
        if self.is_closed:
            raise LinkClosed(CLOSED)
        if self.broken is not None:
            raise LinkBroken(self.broken)
