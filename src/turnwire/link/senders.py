"""Senders that wait for room on a link, first come first served.

Takes frames whose senders must wait; gives them to the link when it has room. Whoever makes room takes the frame
along, so a sender that is cancelled has sent all or nothing, and nobody overtakes one that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio


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
