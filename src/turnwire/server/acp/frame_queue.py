"""Frames for a client that are not in the log: responses, requests to it, errors.

Each frame goes to every present reader, in order. Frames that arrive without a reader are held for the first one,
up to a bound; beyond it the client is considered lost (`is_lost`). A reader that lags by more than the bound is
dropped, so that it delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from types import TracebackType
from typing import NamedTuple, Protocol, Self

BEHIND = 4
"""Maximum number of queued pages for a slower reader. Only one is queued for the fastest: the log has the rest.
"""


class Woken(Protocol):
    """The receiver of a wake-up."""

    def set(self) -> None:
        """Notify the receiver that there may be work. Must return quickly: the caller has others to notify."""
        ...


class Wake:
    """A wake-up that many set and one awaits. An asyncio event, for any number, is ten times as large."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiter."""
        self._is_set = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Return once `set` was called since the last return. Cancel-safe."""
        while not self._is_set:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        self._is_set = False


class Queued(NamedTuple):
    """A frame or a page of the log, and the offset of the event that it must not overtake; 0 for no event."""

    after: int
    frames: Sequence[bytes]
    is_logged: bool = False
    """True for a page of the log, which a returning client can receive again."""


class FrameQueue:
    """An ordered queue of frames. There are thousands, nearly all of them empty, with one reader or none."""

    __slots__ = ("_first", "_held", "_most", "_read", "_readers", "_room", "is_lost")

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: list[Queued] = []
        self._first = 0
        """The number of entries dropped from `_held`, which is the position of its first entry."""
        self._read = 0
        """The first position that no reader has consumed."""
        self._readers: list[QueueReader] = []
        self._room: list[Woken] = []
        """Receivers that wait for room, each listed once."""
        self.is_lost = False
        """True once more frames wait than allowed: the client does not read."""

    @property
    def end(self) -> int:
        """The position of the next entry. A page has one position."""
        return self._first + len(self._held)

    @property
    def has_readers(self) -> bool:
        """True if the queue has a reader."""
        return bool(self._readers)

    def wake(self) -> None:
        """Wake all readers for something other than a frame."""
        for each in self._readers:
            each.wake.set()

    def put(self, frame: bytes, after: int = 0) -> None:
        """Pass a frame to all readers, or hold it for the first one."""
        self._put(Queued(after, (frame,)))

    def put_all(self, frames: Sequence[bytes]) -> None:
        """Pass a page of the log to all readers, or hold it for the first one. Call `has_room` before."""
        self._put(Queued(0, frames, is_logged=True))

    def _put(self, queued: Queued) -> None:
        self._held.append(queued)
        for each in list(self._readers):
            # Entries are held only for readers that are not late, so one that does not read costs the others
            # nothing.
            is_far = queued.is_logged and self._pages_from(each.position) > BEHIND
            if is_far or self.end - each.position > self._most:
                each.is_late = True
            each.wake.set()
        self._trim()
        if len(self._held) > self._most:
            self.is_lost = True

    def forget_logged(self) -> None:
        """Discard the held frames that are in the log."""
        # The entries stay, because readers store their position as a number.
        self._held = [each._replace(frames=()) if each.is_logged else each for each in self._held]

    def has_room(self, wake: Woken) -> bool:
        """Return whether the fastest reader has consumed all pages of the log. If not, `wake` is set later."""
        if not self._pages_from(self._fastest()):
            return True
        if wake not in self._room:
            self._room.append(wake)
        return False

    def open(self, wake: Woken) -> QueueReader:
        """Return a reader: the first one starts with the held frames, any other with the next frame."""
        return QueueReader(self, self.end if self._readers else self._read, wake)

    def since(self, position: int) -> Iterator[Queued]:
        """Return the held entries from this position on."""
        return islice(self._held, max(position - self._first, 0), None)

    def taken(self, position: int) -> None:
        """Record that a reader has consumed the entry at this position."""
        self._read = max(self._read, position + 1)
        self._trim()
        self._look_for_room()

    def enter(self, reader: QueueReader) -> None:
        """Register the reader."""
        self._readers.append(reader)
        # The reader may be ahead of all others, with nothing to consume.
        self._look_for_room()

    def leave(self, reader: QueueReader) -> None:
        """Unregister the reader; frames that only it has not read are dropped if others were faster."""
        self._readers.remove(reader)
        self._trim()

    def _look_for_room(self) -> None:
        if self._room:
            waiting, self._room = self._room, []
            for each in waiting:
                each.set()

    def _pages_from(self, position: int) -> int:
        return sum(each.is_logged for each in self.since(position))

    def _fastest(self) -> int:
        return max((each.position for each in self._readers), default=self._read)

    def _trim(self) -> None:
        in_time = (each.position for each in self._readers if not each.is_late)
        # Without a reader, unconsumed frames wait for the next one.
        keep = min(in_time, default=self._read)
        gone = min(max(keep - self._first, 0), len(self._held))
        del self._held[:gone]
        self._first += gone


class QueueReader:
    """A reader's position. Use it with `with`."""

    __slots__ = ("_queue", "is_late", "position", "wake")

    def __init__(self, queue: FrameQueue, position: int, wake: Woken) -> None:
        self._queue = queue
        self.position = position
        self.wake = wake
        self.is_late = False
        """True once the reader lags too far; it receives no more frames."""

    def next(self, upto: int | None = None) -> bytes | None:
        """Return the next frame; None if there is none, or if it must wait for an event after `upto`.

        Only for queues without pages of the log.
        """
        queued = None if self.is_late else next(self._queue.since(self.position), None)
        if queued is None or (upto is not None and queued.after > upto):
            return None
        self.position += 1
        self._queue.taken(self.position - 1)
        (frame,) = queued.frames
        return frame

    def rest(self) -> list[bytes]:
        """Return all available frames; may be empty although entries were consumed."""
        queued = [] if self.is_late else list(self._queue.since(self.position))
        if queued:
            self.position += len(queued)
            self._queue.taken(self.position - 1)
        return list(chain.from_iterable([each.frames for each in queued]))

    @property
    def next_after(self) -> int | None:
        """The offset of the event that the next frame waits for; None without a frame."""
        queued = None if self.is_late else next(self._queue.since(self.position), None)
        return None if queued is None else queued.after

    def __enter__(self) -> Self:
        self._queue.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.leave(self)
