"""Readers without tasks: all readers of one session and kind are written to in one pass.

A reader is a cursor in a session's projected events (`projected`), and a sink. Nothing is queued for it, and it
delays no other reader.

Theory of operation
-------------------
A reader that has all events rests. When the session has more, its fan-out walks over the readers: it fetches the
page after a reader's cursor from the shared ring and passes it to the sink, the same bytes to all readers at the
same position. It lets other tasks run after some writes, and fetches the newest events when it continues; so the
more readers there are, the fewer writes each of them costs. A reader whose sink is full waits for room, outside of
the walk. A reader that lags behind the ring, or whose cursor is lost, catches up in a task, until it can rest
again.

    RESTS       it is written to in the walk
    WAITS       its sink is full, and calls `has_room` later
    CATCHES_UP  a task reads the log for it, and waits for room
    OVER        it has left

    U1  A sink gets offsets cursor+1, cursor+2, … without a gap or a repeat, as F1 to F5 and P1 to P4 state. The
        cursor moves with the write.
    U2  A full sink is written nothing: a stalled reader holds only the server's buffer.
    U3  The loop is blocked for a page of events, or some writes, at most.
    U4  A reader ends once: it leaves (`leave`), or its sink is notified that no more follows (`reader_ended`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import Enum, auto
from itertools import islice
from typing import Final, NamedTuple, Protocol

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from turnwire.errors import PositionLost, SessionNotFound, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.projections.shape import Shape
from turnwire.runtime.follow import Page
from turnwire.runtime.tail import Tail
from turnwire.server.daemon import Daemon
from turnwire.server.open_answer import chunk
from turnwire.server.readers.cursors import Lost, oldest
from turnwire.server.readers.projected import ProjectedRing, projected_ring

AT_ONCE: Final = 5_000
"""Work before other tasks run, in looks at a reader: two hundred short writes, or twenty whole pages, some 5 to 8
ms. An agent that writes without a pause does not get ahead of the readers meanwhile: its session leaves iterations
of the loop to the walk (`Tail.walks`).
"""
FEW: Final = 64
WRITE: Final = 25
"""Cost of a write, in looks."""
LONG_WRITE: Final = 32 * 1024
"""Bytes in one write that cost as much as another write."""

_FAILED: Final = {"event": "stream_failed"}

logger = logging.getLogger(__name__)


class SharedPage:
    """A page of frames for all readers at one position."""

    __slots__ = ("_chunked", "after", "frames", "head", "offset")

    def __init__(self, after: int, head: int, frames: list[bytes]) -> None:
        self.after = after
        self.head = head
        """The head of the ring when the page was made."""
        self.frames = frames
        self.offset = after + len(frames)
        """The offset of the last frame."""
        self._chunked: bytes | None = None

    @property
    def chunked(self) -> bytes:
        """Return the frames as an HTTP chunk, encoded once."""
        if self._chunked is None:
            self._chunked = chunk(b"".join(self.frames))
        return self._chunked


class Sink(Protocol):
    """The destination of readers' frames. Never blocks."""

    @property
    def is_full(self) -> bool:
        """True if the client reads more slowly than we write."""
        ...

    def await_room(self, reader: Reader, /) -> None:
        """Call the reader's `has_room` once there is room."""
        ...

    def write_page(self, reader: Reader, page: SharedPage, /) -> int:
        """Write a page and return its size."""
        ...

    def write_lost(self, reader: Reader, lost: Lost, after: Position, /) -> None:
        """Report that events are missing; the reader continues after the position `after`."""
        ...

    def reader_ended(self, reader: Reader, error: TurnwireError | None, /) -> None:
        """Called once: the session has ended, or cannot be read."""
        ...


class _State(Enum):
    RESTS = auto()
    WAITS = auto()
    CATCHES_UP = auto()
    OVER = auto()


class _CatchUp(NamedTuple):
    """The task of a reader that catches up."""

    scope: anyio.CancelScope
    room: asyncio.Event


class Reader:
    """A cursor and a sink. There are thousands, so each is small."""

    __slots__ = ("_catching", "_sink", "_state", "epoch", "fanout", "offset")

    def __init__(self, fanout: Fanout, sink: Sink, after: Position) -> None:
        self.fanout = fanout
        self._sink = sink
        self.epoch, self.offset = after
        """The position up to which everything was written."""
        self._state = _State.RESTS
        self._catching: _CatchUp | None = None

    @property
    def is_resting(self) -> bool:
        """True if a page can be delivered."""
        return self._state is _State.RESTS

    def enter(self) -> None:
        """Start delivering."""
        self.fanout.enter(self)

    def leave(self) -> None:
        """Stop delivering."""
        self._state = _State.OVER
        if self._catching is not None:
            self._catching.scope.cancel()
            self._catching = None
        self.fanout.leave(self)

    def end(self, error: TurnwireError | None = None) -> None:
        """Leave, and notify the sink that no more follows."""
        if self._state is not _State.OVER:
            self.leave()
            self._sink.reader_ended(self, error)

    def deliver(self, page: SharedPage) -> int:
        """Write the page after the cursor and return its size; or wait for room."""
        if self._sink.is_full:
            self._state = _State.WAITS
            self._sink.await_room(self)
            return 0
        self.offset = page.offset
        return self._sink.write_page(self, page)

    def has_room(self) -> None:
        """Continue. Called by the sink."""
        if self._state is _State.WAITS:
            self._state = _State.RESTS
            self.fanout.visit(self)
        elif self._catching is not None:
            self._catching.room.set()

    # -- catching up ---------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Read the log in a task, until the reader can rest."""
        self._state = _State.CATCHES_UP
        self._catching = _CatchUp(anyio.CancelScope(), asyncio.Event())
        self.fanout.daemon.tasks.start_soon(self._catch_up, self._catching)

    async def _catch_up(self, catching: _CatchUp) -> None:
        try:
            with catching.scope:
                await self._read_log(catching.room)
        except TurnwireError as error:
            if not isinstance(error, SessionNotFound):
                note_early_end(error.code)
            self.end(error)
        except Exception:  # other readers must continue
            logger.exception("a reader is dropped", extra=_FAILED)
            self.end(TurnwireError("the session cannot be read"))
        if self._catching is catching:
            self._catching, self._state = None, _State.RESTS
            self.fanout.visit(self)

    async def _read_log(self, room: asyncio.Event) -> None:
        daemon, fanout = self.fanout.daemon, self.fanout
        node, session_id = daemon.node, fanout.session_id
        try:
            async with aclosing(self._pages()) as pages:
                async for page in pages:
                    await self._room(room)
                    after, self.offset = self.offset, page.offset
                    self._sink.write_page(self, SharedPage(after, page.offset, page.frames))
        except PositionLost as error:
            why = str(error.context.get("why"))
            if why != "ahead":
                head = await node.head(session_id)
                await self._room(room)
                lost, here = Lost(why, self.offset, head.first), oldest(head)
                self._sink.write_lost(self, lost, here)
                self.epoch, self.offset = here
            # An offset past the head is stored and about to be published: the reader rests until there are more.
        tail = await node.tail(session_id)
        if tail is not fanout.tail:
            # The session was created or opened again.
            self.fanout = fanout_of(daemon, tail, session_id, fanout.shape)
            self.fanout.enter(self)
            fanout.leave(self)

    async def _pages(self) -> AsyncGenerator[Page]:
        """Yield pages up to the newest event. Raises `SessionNotFound`, `PositionLost`."""
        daemon, fanout = self.fanout.daemon, self.fanout
        tail = await daemon.node.tail(fanout.session_id)
        if tail.epoch != self.epoch:
            raise PositionLost("the session was created again", why="epoch")
        ring = projected_ring(daemon.node, tail, fanout.session_id, fanout.shape)
        async with aclosing(ring.catch_up(tail, self.offset)) as pages:
            async for page in pages:
                yield page

    async def _room(self, room: asyncio.Event) -> None:
        while self._sink.is_full:
            room.clear()
            self._sink.await_room(self)
            await room.wait()
        # The reader may have left while the page was read: the cancellation comes with the next wait.
        await checkpoint_if_cancelled()


class Fanout:
    """The readers of one session and kind."""

    def __init__(self, daemon: Daemon, ring: ProjectedRing, tail: Tail) -> None:
        self.daemon = daemon
        self.ring = ring
        self.tail = tail
        self._loop = asyncio.get_running_loop()
        self._readers: dict[Reader, None] = {}
        self._pending: dict[Reader, None] = {}
        """Readers to look at, in order."""
        self._looked_at: tuple[int, bool] | None = None
        """The head of the ring, and whether the session was over, when the last walk over all readers began."""
        self._page: SharedPage | None = None
        self._is_walking = False
        self._is_reading = False
        """True while the log is read, because the ring cannot continue without it."""
        self._more: asyncio.Future[None] | None = None
        """Done when there are more events. Awaited while every reader has all of them."""

    @property
    def session_id(self) -> SessionId:
        return self.ring.log.session_id

    @property
    def shape(self) -> Shape:
        return self.ring.log.shape

    def enter(self, reader: Reader) -> None:
        """Add a reader."""
        self._readers[reader] = None
        self.visit(reader)

    def leave(self, reader: Reader) -> None:
        """Remove a reader."""
        self._readers.pop(reader, None)
        self._pending.pop(reader, None)
        if not self._readers:
            if self._more is not None:
                self._more.remove_done_callback(self._wake)
                self._more = None
            if _fanouts.get(self.ring) is self:
                del _fanouts[self.ring]

    def visit(self, reader: Reader) -> None:
        """Look at a reader soon: there may be something for it."""
        self._pending[reader] = None
        self._walk_soon()

    def _visit_all(self) -> None:
        self._pending |= self._readers
        self._looked_at = None
        self._walk_soon()

    def _walk_soon(self) -> None:
        if not self._is_walking:
            self._is_walking = True
            self.tail.walks += 1
            self._loop.call_soon(self._walk)

    def _wake(self, _more: asyncio.Future[None]) -> None:
        self._more = None
        self._visit_all()

    def _walk(self) -> None:
        """Look at some readers, and continue in the next round of the loop if there are more."""
        self._is_walking = False
        self.tail.walks -= 1
        try:
            self._look_at_some()
        except Exception:  # other sessions must continue
            logger.exception("the readers of a session are dropped", extra=_FAILED)
            self._end_all(TurnwireError("the session cannot be read"))

    def _look_at_some(self) -> None:
        self._project()
        if self._looked_at is None:
            self._looked_at = self.ring.head, self.tail.is_over
        remaining = AT_ONCE
        while self._pending and remaining > 0:
            # Some at a time: finding the first key of a dictionary takes time for each key removed before it.
            for reader in list(islice(self._pending, FEW)):
                if remaining > 0 and reader in self._pending:
                    del self._pending[reader]
                    remaining -= self._look_at(reader)
        if self._pending:
            self._walk_soon()
        elif self._readers and not self._is_reading:
            self._rest()

    def _rest(self) -> None:
        """Look at all readers again if there is more by now, else wait for more."""
        self._page = None
        if self._looked_at != (self.tail.head, self.tail.is_over):
            self._visit_all()
        elif self._more is None:
            self._more = self.tail.more()
            self._more.add_done_callback(self._wake)

    def _end_all(self, error: TurnwireError) -> None:
        for each in list(self._readers):
            each.end(error)

    def _project(self) -> None:
        if self.ring.head >= self.tail.head or self._is_reading:
            return
        if not self.ring.advance(self.tail):
            self._is_reading = True
            self.daemon.tasks.start_soon(self._read_log)

    async def _read_log(self) -> None:
        try:
            await self.ring.project_more(self.tail, self.ring.head)
        except TurnwireError as error:
            if not isinstance(error, SessionNotFound):
                note_early_end(error.code)
            self._end_all(error)
        except Exception:  # other sessions must continue
            logger.exception("the readers of a session are dropped", extra=_FAILED)
            self._end_all(TurnwireError("the session cannot be read"))
        finally:
            self._is_reading = False
            self._visit_all()

    def _look_at(self, reader: Reader) -> int:
        """Deliver available pages to a reader. Return the cost, in looks."""
        if not reader.is_resting:
            return 1
        if reader.epoch != self.tail.epoch:
            reader.catch_up()
        elif reader.offset < self.ring.head:
            return self._deliver(reader)
        elif self.tail.is_over and reader.offset >= self.tail.head:
            reader.end()
        else:
            return 1
        return WRITE

    def _deliver(self, reader: Reader) -> int:
        page, after, head = self._page, reader.offset, self.ring.head
        if page is None or page.after != after or page.head != head:
            frames = self.ring.page(after)
            if frames is None:
                reader.catch_up()
                return WRITE
            page = self._page = SharedPage(after, head, frames)
        size = reader.deliver(page)
        if reader.is_resting and (page.offset < head or self.tail.is_over):
            # Another page, or the end, follows.
            self._pending[reader] = None
        return WRITE + WRITE * size // LONG_WRITE


_fanouts: dict[ProjectedRing, Fanout] = {}
"""Fan-outs with readers."""


def fanout_of(daemon: Daemon, tail: Tail, session_id: SessionId, shape: Shape) -> Fanout:
    """Return the fan-out of a session in a shape. The caller enters a reader before it awaits anything."""
    ring = projected_ring(daemon.node, tail, session_id, shape)
    if ring not in _fanouts:
        _fanouts[ring] = Fanout(daemon, ring, tail)
    return _fanouts[ring]


def note_early_end(code: str) -> None:
    """Log that a stream ends because the log cannot be read. The client resumes from its cursor."""
    logger.warning("a stream ended early", extra={"event": "stream_ended_early", "code": code})
