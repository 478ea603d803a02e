"""One session in one shape of ACP: its newest events encoded once for all readers, its past for whoever reads that.

`ShapedLog` gives the frames of any part of a session's log; `follow_shaped` is `runtime.follow` in a shape. What an
event is told as is `core.shape`; here is who folds it, and from where.

Theory of operation
-------------------
Frames come from a fold, and a fold knows what came before. Readers in the present share one fold and one ring of
its frames, which goes along with the session's own ring. A reader behind that ring has a fold of its own over the
log until it gets there. It begins at the nearest fold that was kept on the way, or at the start of the log, and
reads up to its cursor without a word, page by page. Folds that translate are as long as the session and are not
kept; so one that comes to the ring is handed over to it.

    P1  A follower gives offsets cursor+1, cursor+2, … without a gap or a repeat, as F1 to F5 of `runtime.follow`.
    P2  What is told of an event is the same for each reader of a shape, from the ring and from the log (E2).
    P3  In the present an event is folded once per shape, when the first reader needs it.
    P4  The loop is held for one page of events at most.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator
from operator import attrgetter
from typing import Final
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import checkpoint

from turnwire.core import events as ev
from turnwire.core.codec import check_readable
from turnwire.core.envelope import Form
from turnwire.core.parties import Parties, Prompter
from turnwire.core.shape import Shape, ShapeFold
from turnwire.core.translate.sessions import current_offers
from turnwire.errors import PositionLost
from turnwire.ids import AgentSessionId, Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position
from turnwire.runtime.folds import stored_view
from turnwire.runtime.follow import Page, check_shown
from turnwire.runtime.node import Node
from turnwire.runtime.tail import Ring, Tail

TRANSLATED: Final = 128
"""Events that are translated in one go: some milliseconds."""
KEPT: Final = 64
"""Folds per session and shape that are kept for readers behind the ring; each is some hundred bytes."""
APART: Final = 4096
"""Events between two kept folds at least: passing over them takes some milliseconds."""


class ShapedLog:
    """The log of one session in one shape."""

    def __init__(self, log: EventLog, session_id: SessionId, epoch: Epoch, shape: Shape, limits: Limits) -> None:
        self.session_id = session_id
        self.shape = shape
        self.limits = limits
        self._log = log
        self._epoch = epoch
        self._kept: list[ShapeFold] = []
        """By offset."""

    async def fold_at(self, offset: int, *, is_whole: bool = False) -> ShapeFold:
        """A fold that stands behind this event, or behind what was trimmed.

        `is_whole`: one that never gets stuck. Raises `SessionNotFound`, and `PositionLost` if it is
        trimmed meanwhile or not shown here yet.
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
        """The frames of the next events, a page at most, and the fold to go on with: another, if it was stuck.

        Raises `LogCorrupt`, `LogTooNew` and gives nothing of a page in which one event cannot be read.
        """
        if fold.is_stuck:
            fold = await self.fold_at(fold.offset, is_whole=True)
        bodies = await self._bodies(fold, self.limits.page_events if upto is None else upto - fold.offset)
        check_readable(bodies)
        if not fold.translates:
            return fold, fold.take(bodies, form)
        frames: list[bytes] = []
        size = 0
        for body in bodies:
            # One event may be told as all that a tool has put out so far.
            frames += fold.take((body,), form)
            size += len(frames[-1])
            if size >= self.limits.page_bytes:
                break
        return fold, frames

    def keep(self, fold: ShapeFold) -> None:
        """Remember a fold for who comes to this place later, unless there is one near."""
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
        """A fold at the start of the log. Of what was trimmed, the view that was kept of it knows the parties."""
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

    async def _bodies(self, fold: ShapeFold, most: int) -> list[bytes]:
        page = await self._log.read(
            self.session_id,
            Position(self._epoch, fold.offset),
            max_events=min(most, self.at_once(fold)),
            max_bytes=self.limits.page_bytes,
        )
        return [each.body for each in page]

    def at_once(self, fold: ShapeFold) -> int:
        """How many events may be folded before others get a turn."""
        most = self.limits.page_events
        return min(TRANSLATED, most) if fold.translates else most


_OFFSET = attrgetter("offset")


# -- the present ---------------------------------------------------------------------------------------------


class ShapedRing(Ring):
    """The newest events of one session in one shape, shared by all who follow it. `head` is the newest whose frames
    are made."""

    def __init__(self, log: ShapedLog, tail: Tail) -> None:
        self.log = log
        self._fold = self._begin(tail)
        super().__init__(log.limits, self._fold.offset)
        self._turn = anyio.Lock()
        """Held by who reads the log for all."""

    async def go_on(self, tail: Tail, cursor: int, own: ShapeFold | None) -> None:
        """Make some more frames, towards a reader that waits behind `cursor`.

        `own`: the reader's fold, if that stands there because it has just come out of the log.
        """
        shared = self._fold
        if own is not None and (own.offset, own.translates) > (shared.offset, shared.translates):
            self._adopt(shared, own)
        if not self.advance(tail):
            async with self._turn:
                # Somebody else may have done it meanwhile.
                if not self.advance(tail):
                    await self._catch_up(tail)
        if self.head <= cursor:
            await checkpoint()

    def _begin(self, tail: Tail) -> ShapeFold:
        """What the tail knows of its past is enough where nothing is translated."""
        offset, parties = tail.first - 1, tail.parties.copy()
        return ShapeFold(self.log.session_id, self.log.shape, offset, parties, is_whole=offset == 0)

    def _adopt(self, old: ShapeFold, new: ShapeFold) -> None:
        """Go on with another fold, unless somebody was faster."""
        if self._fold is old:
            self._fold = new
            if new.offset != self.head:
                self.skip_to(new.offset)

    def advance(self, tail: Tail) -> bool:
        """Fold what the tail has, a page at most. False if that needs the log, or there is nothing."""
        fold, limits = self._fold, self.log.limits
        bodies = tail.frames(fold.offset, self.log.at_once(fold), limits.ring_bytes)
        frames = fold.take(bodies) if bodies and not fold.is_stuck else []
        self.add(frames)
        self.log.keep(fold)
        return bool(frames)

    async def _catch_up(self, tail: Tail) -> None:
        """The fold fell behind the tail because nobody read, or is stuck."""
        fold = self._fold
        if fold.is_stuck:
            self._adopt(fold, await self.log.fold_at(fold.offset, is_whole=True))
        elif fold.offset + 1 < tail.first and not fold.translates:
            self._adopt(fold, self._begin(tail))
        elif fold.offset + 1 < tail.first:
            try:
                _, frames = await self.log.read(fold)
            except PositionLost:
                # What it would go on with is trimmed away.
                self._adopt(fold, await self.log.fold_at(tail.first - 1, is_whole=True))
            else:
                if self._fold is fold:
                    self.add(frames)


_rings: WeakKeyDictionary[Tail, dict[Shape, ShapedRing]] = WeakKeyDictionary()
"""A ring lives as long as the session's own does, so that a reader that comes back finds it."""


def shaped_ring(node: Node, tail: Tail, session_id: SessionId, shape: Shape) -> ShapedRing:
    """The ring of a session in a shape."""
    rings = _rings.setdefault(tail, {})
    if shape not in rings:
        rings[shape] = ShapedRing(ShapedLog(node.log, session_id, tail.epoch, shape, node.limits), tail)
    return rings[shape]


async def follow_shaped(
    node: Node, session_id: SessionId, after: Position, shape: Shape, *, waits: bool = True
) -> AsyncGenerator[Page]:
    """Pages of frames after `after`; ends when the session is over. Raises `SessionNotFound`, `PositionLost`.

    Without `waits` it ends as well where there is nothing more now.
    """
    tail = await node.tail(session_id)
    async for page in follow_ring(shaped_ring(node, tail, session_id, shape), tail, after, waits=waits):
        yield page


async def follow_ring(ring: ShapedRing, tail: Tail, after: Position, *, waits: bool = True) -> AsyncGenerator[Page]:
    """The same for a ring that is known."""
    check_shown(tail, after)
    cursor = after.offset
    own: ShapeFold | None = None
    while True:
        frames = ring.page(cursor)
        if frames is None:
            if own is None or own.offset != cursor:
                own = await ring.log.fold_at(cursor)
            if own.offset > cursor:
                raise PositionLost("what follows this position is not kept any more", why="trimmed")
            own, frames = await ring.log.read(own)
        elif not frames and cursor < tail.head:
            await ring.go_on(tail, cursor, own)
            own = None
        elif not frames and not (waits and await tail.wait(cursor)):
            return
        if frames:
            cursor += len(frames)
            yield Page(cursor, frames)
