"""Frames for a client that are in no log: answers, requests to it, refusals. In order, for any number of readers.

Takes frames; gives each of them to every reader that is there. What comes while nobody reads is held for the first
who does, up to a bound; beyond it there is nobody to talk to, and `is_lost` says so. A reader that falls further
behind than the bound is let go, so that it delays nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from types import TracebackType
from typing import NamedTuple, Protocol, Self

BEHIND = 4
"""Pages of the log that wait at most for a reader, if another is faster. For the fastest one waits: the log has the
rest."""


class Woken(Protocol):
    """Somebody who has something to look at."""

    def set(self) -> None:
        """There is something. Does next to nothing: who says so has others to tell."""
        ...


class Wake:
    """Set by many, waited for by one. An event of asyncio, for any number who wait, is ten times as large."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """There is something to look at."""
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
    """A frame or a page of the log, and the offset of the event that it must not overtake; 0 if there is none."""

    after: int
    frames: Sequence[bytes]
    is_logged: bool = False
    """It is a page of the log, so whoever comes back can have it again."""


class FrameQueue:
    """One order of frames. There are thousands of these, nearly all of them empty, with one reader or none."""

    __slots__ = ("_first", "_held", "_most", "_read", "_readers", "_room", "is_lost")

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: list[Queued] = []
        self._first = 0
        """How many were dropped from `_held`: the number of its first one."""
        self._read = 0
        """The first that no reader has taken."""
        self._readers: list[QueueReader] = []
        self._room: list[Woken] = []
        """Who waits for room, each once."""
        self.is_lost = False
        """More waits than may: nobody reads."""

    @property
    def end(self) -> int:
        """The number of the next one. A page has one number."""
        return self._first + len(self._held)

    @property
    def has_readers(self) -> bool:
        """Whether somebody reads now."""
        return bool(self._readers)

    def wake(self) -> None:
        """There is something to look at besides frames."""
        for each in self._readers:
            each.wake.set()

    def put(self, frame: bytes, after: int = 0) -> None:
        """Give a frame to all readers, or hold it for the first."""
        self._put(Queued(after, (frame,)))

    def put_all(self, frames: Sequence[bytes]) -> None:
        """Give a page of frames that the log has to all readers, or hold it for the first. Ask for room before."""
        self._put(Queued(0, frames, is_logged=True))

    def _put(self, queued: Queued) -> None:
        self._held.append(queued)
        for each in list(self._readers):
            # What is held is held for those in time, so one that does not read costs the others nothing.
            is_far = queued.is_logged and self._pages_from(each.position) > BEHIND
            if is_far or self.end - each.position > self._most:
                each.is_late = True
            each.wake.set()
        self._trim()
        if len(self._held) > self._most:
            self.is_lost = True

    def forget_logged(self) -> None:
        """Frames that the log has are not given any more."""
        # The places stay: a reader knows where it is by number.
        self._held = [each._replace(frames=()) if each.is_logged else each for each in self._held]

    def has_room(self, wake: Woken) -> bool:
        """Whether the fastest reader has taken all pages of the log. If not, `wake` is set once it may have."""
        if not self._pages_from(self._fastest()):
            return True
        if wake not in self._room:
            self._room.append(wake)
        return False

    def open(self, wake: Woken) -> QueueReader:
        """A reader: the first one gets what was held, another what comes from now on."""
        return QueueReader(self, self.end if self._readers else self._read, wake)

    def since(self, position: int) -> Iterator[Queued]:
        """What is held from this number on."""
        return islice(self._held, max(position - self._first, 0), None)

    def taken(self, position: int) -> None:
        """A reader has taken what has this number."""
        self._read = max(self._read, position + 1)
        self._trim()
        self._look_for_room()

    def enter(self, reader: QueueReader) -> None:
        """The reader reads from here on."""
        self._readers.append(reader)
        # It may stand before all others, and have nothing to take.
        self._look_for_room()

    def leave(self, reader: QueueReader) -> None:
        """The reader is gone; what it alone has not read is dropped if others were faster."""
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
        # Without a reader what nobody has taken waits for the next one.
        keep = min(in_time, default=self._read)
        gone = min(max(keep - self._first, 0), len(self._held))
        del self._held[:gone]
        self._first += gone


class QueueReader:
    """One reader's place. Use it with `with`."""

    __slots__ = ("_queue", "is_late", "position", "wake")

    def __init__(self, queue: FrameQueue, position: int, wake: Woken) -> None:
        self._queue = queue
        self.position = position
        self.wake = wake
        self.is_late = False
        """It fell too far behind, and gets nothing more."""

    def next(self, upto: int | None = None) -> bytes | None:
        """The next frame, if there is one that may follow the event `upto`; any may if that is none.

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
        """All frames that there are; may be none although something was taken."""
        queued = [] if self.is_late else list(self._queue.since(self.position))
        if queued:
            self.position += len(queued)
            self._queue.taken(self.position - 1)
        return list(chain.from_iterable([each.frames for each in queued]))

    @property
    def next_after(self) -> int | None:
        """The event that the next frame waits behind; none if there is no frame."""
        queued = None if self.is_late else next(self._queue.since(self.position), None)
        return None if queued is None else queued.after

    def __enter__(self) -> Self:
        self._queue.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.leave(self)
