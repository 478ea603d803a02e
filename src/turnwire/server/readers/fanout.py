"""Readers without tasks: all readers of one session and kind are written to in one pass.

A reader is a cursor in a session's projected events, and a sink. Nothing is queued for it, and it delays no other
reader. `ProjectedLog` returns the frames of any part of a session's log in one shape. `ProjectedRing` holds those
of the newest events.

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

Frames come from a projection, and a projection depends on earlier events. Readers at the end of the log share one
projection and one ring of its frames, in parallel to the ring of the stored events (`Tail`). A reader behind that
ring has its own projection over the log until it reaches the ring. It begins at the nearest stored copy, or at the
start of the log, and passes over the events before its cursor page by page. Projections that translate are as large
as the session and are not copied; so one that reaches the ring replaces the shared one.

    P1  A reader gets offsets cursor+1, cursor+2, … without a gap or a repeat, as F1 to F5 of `runtime.follow`.
    P2  The frames of an event are the same for each reader of a kind, from the ring and from the log (E2).
    P3  At the end of the log an event is projected once per kind, when the first reader needs it.
    P4  The loop is blocked for one page of events at most.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import Enum, auto
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from turnwire.errors import BadRequest, PositionLost, SessionNotFound, TurnwireError
from turnwire.ids import AgentSessionId, Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log import rules
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.projections.envelope import Form, Parties, Prompter, Shape, ShapeFold, stream_frame
from turnwire.projections.projection import Projection
from turnwire.projections.translate.sessions import current_offers
from turnwire.runtime.folds import stored_view
from turnwire.runtime.follow import Page, check_shown
from turnwire.runtime.node import Node
from turnwire.runtime.tail import Ring, Tail
from turnwire.server.connections import chunk
from turnwire.server.daemon import Daemon
from turnwire.session import events as ev
from turnwire.session.codec import check_readable

# -- cursors of clients --------------------------------------------------------------------------------------

EPOCH_HEADERS: Final = ("Turnwire-Epoch", "X-Qwen-Event-Epoch")
"""Headers that name the epoch of a cursor."""

REASONS: Final = {"trimmed": "ring_evicted", "epoch": "epoch_reset", "ahead": "epoch_reset"}
"""Our reasons under the contract's names: the cursor is too old, or not of this log at all."""

RESYNC: Final = "state_resync_required"
_OFFSET_DIGITS: Final = 18


def read_offset(text: str | None) -> int | None:
    """Return the offset of a client's cursor; None without one. Raises `BadRequest`."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS):
        raise BadRequest("the cursor is no event id; send the id of the last event you have seen, a whole number")
    return int(text)


class Lost(NamedTuple):
    """A cursor that cannot be honoured: the reader continues at the oldest stored event."""

    reason: str
    """`epoch`, `trimmed`, `ahead`; `deleted` if the session does not exist any more."""
    last: int
    """The offset of the cursor."""
    earliest: int | None
    """The id of the event that comes next; None for a deleted session."""

    def envelope(self, session_id: SessionId | None) -> dict[str, Any]:
        """Return `state_resync_required`; without a session, for all that the cursor did not name."""
        return {"v": 1, "type": RESYNC, "data": self._data(session_id)}

    def frame(self, session_id: SessionId | None) -> bytes:
        """Return the envelope as an SSE frame."""
        return stream_frame(RESYNC, self._data(session_id))

    def _data(self, session_id: SessionId | None) -> dict[str, Any]:
        data: dict[str, Any] = {"reason": self.reason, "lastDeliveredId": self.last}
        if self.reason in REASONS:
            data |= {"reason": REASONS[self.reason], "detail": self.reason}
        if session_id is not None:
            data["sessionId"] = session_id
        if self.earliest is not None:
            data["earliestAvailableId"] = self.earliest
        return data


class Start(NamedTuple):
    """The start of a reader."""

    head: SessionHead
    after: Position
    """The reader's cursor, or the position before the oldest event if the cursor cannot be honoured."""
    lost: Lost | None


async def start_at(node: Node, session_id: SessionId, epoch: Epoch | None, offset: int) -> Start:
    """Check a cursor; without an epoch it belongs to the current one. Raises `SessionNotFound`."""
    for anew in (False, True):
        head = await node.head(session_id, anew=anew)
        after = Position(epoch or head.epoch, offset)
        lost = why_lost(after, head)
        if lost is None:
            return Start(head, after, None)
    # The second check used the log itself, because another node may have appended unnoticed by this one.
    return Start(head, oldest(head), lost)


def why_lost(after: Position, head: SessionHead) -> Lost | None:
    """Return the reason why a position cannot be honoured; None if it can."""
    reason = rules.why_lost(head, after)
    return None if reason is None else Lost(reason, after.offset, head.first)


def oldest(head: SessionHead) -> Position:
    """Return the position before the oldest stored event."""
    return Position(head.epoch, head.first - 1)


# -- projected events ----------------------------------------------------------------------------------------

TRANSLATED: Final = 128
"""Maximum number of events translated at once: some milliseconds."""
KEPT: Final = 64
"""Copies of projections per session and kind for readers that lag behind the ring; each is some hundred bytes."""
APART: Final = 4096
"""Minimum number of events between two copies: passing over them takes some milliseconds."""


class ProjectedLog:
    """The log of one session in one shape of the REST envelopes."""

    def __init__(self, log: EventLog, session_id: SessionId, epoch: Epoch, shape: Shape, limits: Limits) -> None:
        self.session_id = session_id
        self.shape = shape
        self.limits = limits
        self._log = log
        self._epoch = epoch
        self._kept: list[ShapeFold] = []
        """Copies ordered by offset."""

    async def fold_at(self, offset: int, *, is_whole: bool = False) -> ShapeFold:
        """Return a projection after this event, or after the trimmed ones.

        `is_whole`: return one that never gets stuck. Raises `SessionNotFound`, and `PositionLost` if the event is
        trimmed meanwhile or not published here yet.
        """
        head = await self._log.head(self.session_id)
        fold = None if is_whole else self._nearest(head.first - 1, offset)
        fold = fold or await self._first(head.first - 1)
        while fold.offset < offset and not fold.is_stuck:
            bodies = await self._bodies(fold, offset - fold.offset)
            if not bodies:
                raise PositionLost("this event is not shown here yet; ask again", why="ahead", head=fold.offset)
            fold.pass_over(bodies)
            self.keep(fold)
        return await self.fold_at(offset, is_whole=True) if fold.is_stuck else fold

    async def read(
        self, fold: ShapeFold, upto: int | None = None, form: Form = Form.SSE
    ) -> tuple[ShapeFold, list[bytes]]:
        """Return the frames of the next events, a page at most, and the projection to continue with.

        The projection is a new one if `fold` was stuck. Raises `LogCorrupt`, `LogVersionMismatch`, and returns
        nothing of a page in which one event cannot be read.
        """
        if fold.is_stuck:
            fold = await self.fold_at(fold.offset, is_whole=True)
        bodies = await self._bodies(fold, self.limits.page_events if upto is None else upto - fold.offset)
        check_readable(bodies)
        if not fold.translates:
            return fold, fold.project(bodies, form)
        frames: list[bytes] = []
        size = 0
        for body in bodies:
            # The frame of one event may contain a tool's whole output so far.
            frames += fold.project((body,), form)
            size += len(frames[-1])
            if size >= self.limits.page_bytes:
                break
        return fold, frames

    def keep(self, fold: ShapeFold) -> None:
        """Store a copy for later readers at this offset, unless there is one near."""
        offset, kept = fold.offset, self._kept
        place = bisect_right(kept, offset, key=_OFFSET)
        if any(abs(each.offset - offset) < APART for each in kept[max(place - 1, 0) : place + 1]):
            return
        copy = fold.copy()
        if copy is not None and not copy.is_stuck:
            kept.insert(place, copy)
            if len(kept) > KEPT:
                del kept[::2]

    def _nearest(self, oldest: int, offset: int) -> ShapeFold | None:
        place = bisect_right(self._kept, offset, key=_OFFSET) - 1
        return self._kept[place].copy() if place >= 0 and self._kept[place].offset >= oldest else None

    async def _first(self, oldest: int) -> ShapeFold:
        """Return a projection at the start of the log. The stored view knows the parties of trimmed events."""
        view = await stored_view(self._log, self.session_id) if oldest else None
        if view is None:
            return ShapeFold(self.session_id, self.shape, oldest)
        prompters = {each.prompt_id: Prompter(each.author, each.client_id) for each in view.turns.values()}
        fold = ShapeFold(self.session_id, self.shape, oldest, Parties(None, prompters))
        speaker = view.transcript.speaker
        fold.start(
            ev.AgentStarted(
                at=0,
                agent_session_id=speaker.agent_session_id or AgentSessionId(""),
                protocol_version=speaker.protocol_version,
                turn_end=ev.TurnEnd.RESPONSE,
                offers=current_offers(view.latest),
            )
        )
        return fold

    async def _bodies(self, fold: Projection, most: int) -> list[bytes]:
        page = await self._log.read(
            self.session_id,
            Position(self._epoch, fold.offset),
            max_events=min(most, self.at_once(fold)),
            max_bytes=self.limits.page_bytes,
        )
        return [each.body for each in page]

    def at_once(self, fold: Projection) -> int:
        """Return how many events may be projected before other tasks run."""
        most = self.limits.page_events
        return min(TRANSLATED, most) if fold.translates else most


_OFFSET = attrgetter("offset")


class ProjectedRing(Ring):
    """Frames of the newest events of a session, shared by all readers of a kind. `head` is the newest projected."""

    def __init__(self, log: ProjectedLog, tail: Tail) -> None:
        self.log = log
        self._fold = self._begin(tail)
        super().__init__(log.limits, self._fold.offset)
        self._reading = anyio.Lock()
        """Held while the log is read for all readers."""

    async def catch_up(self, tail: Tail, after: int) -> AsyncGenerator[Page]:
        """Yield the pages after an offset until there are no more. Raises `SessionNotFound`, `PositionLost`."""
        check_shown(tail, Position(tail.epoch, after))
        own: ShapeFold | None = None
        while True:
            frames = self.page(after)
            if frames is None:
                if own is None or own.offset != after:
                    own = await self.log.fold_at(after)
                if own.offset > after:
                    raise PositionLost("what follows this position is not kept any more", why="trimmed")
                own, frames = await self.log.read(own)
            elif not frames and after < tail.head:
                await self.project_more(tail, after, own)
                own = None
            elif not frames:
                return
            if frames:
                after += len(frames)
                yield Page(after, frames)

    async def project_more(self, tail: Tail, after: int, own: ShapeFold | None = None) -> None:
        """Project more events, towards a reader that waits after offset `after`.

        `own`: the reader's projection, if it is at this offset because the reader has just read the log.
        """
        shared = self._fold
        if own is not None and (own.offset, own.translates) > (shared.offset, shared.translates):
            self._replace(shared, own)
        if not self.advance(tail):
            async with self._reading:
                # Another reader may have advanced it meanwhile.
                if not self.advance(tail):
                    await self._read_log(tail)
        if self.head <= after:
            await checkpoint()

    def advance(self, tail: Tail) -> bool:
        """Project the events in memory, a page at most. Return False if that needs the log, or there are none."""
        fold, limits = self._fold, self.log.limits
        bodies = tail.frames(fold.offset, self.log.at_once(fold), limits.ring_bytes)
        frames = fold.project(bodies) if bodies and not fold.is_stuck else []
        self.add(frames)
        self.log.keep(fold)
        return bool(frames)

    def _begin(self, tail: Tail) -> ShapeFold:
        """Begin at the oldest event in memory: enough where nothing is translated."""
        offset, parties = tail.first - 1, tail.parties.copy()
        return ShapeFold(self.log.session_id, self.log.shape, offset, parties, is_whole=offset == 0)

    def _replace(self, old: ShapeFold, new: ShapeFold) -> None:
        """Continue with another projection, unless another reader was faster."""
        if self._fold is old:
            self._fold = new
            if new.offset != self.head:
                self.skip_to(new.offset)

    async def _read_log(self, tail: Tail) -> None:
        """Continue after the projection got stuck, or fell behind the tail because there were no readers."""
        fold = self._fold
        if fold.is_stuck:
            self._replace(fold, await self.log.fold_at(fold.offset, is_whole=True))
        elif fold.offset + 1 < tail.first and not fold.translates:
            self._replace(fold, self._begin(tail))
        elif fold.offset + 1 < tail.first:
            try:
                _, frames = await self.log.read(fold)
            except PositionLost:
                # The next events are trimmed.
                self._replace(fold, await self.log.fold_at(tail.first - 1, is_whole=True))
            else:
                if self._fold is fold:
                    self.add(frames)


_rings: WeakKeyDictionary[Tail, dict[Shape, ProjectedRing]] = WeakKeyDictionary()
"""Rings, stored for as long as the session's tail, so that a reader that reconnects finds its ring."""


def projected_ring(node: Node, tail: Tail, session_id: SessionId, shape: Shape) -> ProjectedRing:
    """Return the ring of a session in a shape."""
    rings = _rings.setdefault(tail, {})
    if shape not in rings:
        rings[shape] = ProjectedRing(ProjectedLog(node.log, session_id, tail.epoch, shape, node.limits), tail)
    return rings[shape]


# -- readers -------------------------------------------------------------------------------------------------

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
        self._is_all_due = False
        """True if every reader is to be looked at."""

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
            self.tail.watch_no_more(self._visit_all)
            if _fanouts.get(self.ring) is self:
                del _fanouts[self.ring]

    def visit(self, reader: Reader) -> None:
        """Look at a reader soon: there may be something for it."""
        self._pending[reader] = None
        self._walk_soon()

    def _visit_all(self) -> None:
        """Look at all readers soon. Called by the publisher, so its time must not depend on their number."""
        self._is_all_due = True
        self._walk_soon()

    def _walk_soon(self) -> None:
        if not self._is_walking:
            self._is_walking = True
            self.tail.walks += 1
            self._loop.call_soon(self._walk)

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
        if self._is_all_due:
            self._is_all_due, self._looked_at = False, None
            self._pending |= self._readers
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
        else:
            self.tail.watch(self._visit_all)

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
