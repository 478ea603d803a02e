"""A session's events as sent to one kind of reader: projected once for all of these readers.

`ProjectedLog` returns the frames of any part of a session's log. `ProjectedRing` holds those of the newest events.

Theory of operation
-------------------
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

from bisect import bisect_right
from collections.abc import AsyncGenerator
from operator import attrgetter
from typing import Final
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import checkpoint

from turnwire.errors import PositionLost
from turnwire.ids import AgentSessionId, Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position
from turnwire.projections.envelope import Form
from turnwire.projections.parties import Parties, Prompter
from turnwire.projections.projection import Projection
from turnwire.projections.shape import Shape, ShapeFold
from turnwire.projections.translate.sessions import current_offers
from turnwire.runtime.folds import stored_view
from turnwire.runtime.follow import Page, check_shown
from turnwire.runtime.node import Node
from turnwire.runtime.tail import Ring, Tail
from turnwire.session import events as ev
from turnwire.session.codec import check_readable

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
