"""Readers without tasks: those of one session in one shape are told together what has come.

`tell_session` answers a request with the stream of a session. Where the server lets go of an answer
(`server.open_answer`), the request ends with that: what is left of a reader is an object with a cursor. Nothing is
queued for it, and it delays nobody. Elsewhere the request's task writes, by the stream's pump.

Theory of operation
-------------------
A reader that has all there is rests. When the session has more, its audience walks over the readers: it takes what
is behind a reader's cursor from the shared ring and writes it, the same bytes for all at the same place. It lets
others run after every few writes, and takes the newest there is when it goes on, so that the more readers there
are, the fewer writes each of them costs. A reader whose client takes nothing waits for room, outside of the walk.
One that is behind the ring, or whose place is lost, catches up in a task of its own, until it can rest again; so
does one whose client may not have read the answer to the prompt that ended.

What a reader does is one of five:

    RESTS       it is told with the others
    FULL        its client takes nothing; told again once there is room, given up after `write_timeout_s`
    CATCHES_UP  a task reads the log for it, and waits for room by itself
    LEAVES      its last words wait for room, for a moment
    OVER        it is nobody's any more

    U1  A reader is written offsets cursor+1, cursor+2, … without a gap or a repeat, as F1 to F5 and P1 to P4 say,
        in whole frames (W1). Its cursor moves with the write.
    U2  A reader that is full is written nothing: it holds what is in the server's buffer and no more (W2).
    U3  The loop is held for a page of events, or some writes, at most.
    U4  Whatever ends it (the session, its client, its credential, the daemon) a reader ends once, and from then on
        counts nowhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import anyio
from starlette.types import Send

from turnwire.errors import PositionLost, SessionNotFound, TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.runtime.follow import Page
from turnwire.runtime.tail import Tail
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import Call
from turnwire.server.open_answer import OpenAnswer, chunk, detached
from turnwire.server.streams.session_stream import PATH, Lost, SessionStream, held_end, in_parts, oldest
from turnwire.server.streams.shaped import ShapedRing, follow_shaped, shaped_ring
from turnwire.server.streams.stream import (
    FAREWELL_S,
    HEARTBEAT,
    REVOKED,
    STOPPING,
    fill_stream,
    note_early_end,
    note_stalled,
    send_head,
)

AT_ONCE: Final = 5_000
"""What is done before others get a turn, in looks at a reader: two hundred short writes, or twenty of whole
pages, some 5 to 8 ms. An agent that writes without a pause does not get ahead of the readers meanwhile: its session
leaves rounds of the loop to the walk (`Tail.walks`)."""
FEW: Final = 64
WRITE: Final = 25
"""What a write costs, in looks."""
LONG_WRITE: Final = 32 * 1024
"""So many bytes in one write are as good as another write."""

_FAILED: Final = {"event": "stream_failed"}

logger = logging.getLogger(__name__)


async def tell_session(call: Call, send: Send, headers: Mapping[str, str], stream: SessionStream) -> None:
    """Answer with the stream of a session, to whose end somebody else may come. Raises `SessionNotFound`."""
    daemon = call.daemon
    tail = await daemon.node.tail(stream.session_id)
    await send_head(send, headers)
    answer = detached(call.request.scope)
    if answer is None or call.request.method == "HEAD":
        await fill_stream(call, send, partial(stream.run, call))
        return
    ring = shaped_ring(daemon.node, tail, stream.session_id, stream.shape)
    Reader(call, answer, stream, audience_of(daemon, ring, tail)).begin()


class _Doing(Enum):
    """What a reader does."""

    RESTS = auto()
    FULL = auto()
    CATCHES_UP = auto()
    LEAVES = auto()
    OVER = auto()


class _CatchUp(NamedTuple):
    """What a reader needs besides, while it catches up."""

    scope: anyio.CancelScope
    room: asyncio.Event


class Reader:
    """One reader. There are thousands of these, so each is made of little.

    Implements `open_answer.Holder`, `deadlines.Timed`, `tokens.Running` and `metrics.OpenStream`.
    """

    __slots__ = (
        "_answer",
        "_audience",
        "_catching",
        "_doing",
        "_full_since",
        "_last_words",
        "_stream",
        "_who",
        "_written_at",
        "client_id",
        "epoch",
        "offset",
    )

    def __init__(self, call: Call, answer: OpenAnswer, stream: SessionStream, audience: Audience) -> None:
        self._who = call.who
        self.client_id = call.client_id
        self._answer = answer
        self._audience = audience
        self._stream: SessionStream | None = stream
        """None once nothing but events is to be told."""
        self.epoch, self.offset = stream.after
        """Everything up to here was written."""
        self._doing = _Doing.RESTS
        self._catching: _CatchUp | None = None
        self._full_since: float | None = None
        """Since when something waits for room."""
        self._written_at = 0.0
        self._last_words: bytes | None = None
        """What it is to be told at its end, once that has come."""

    @property
    def session_id(self) -> SessionId:
        return self._audience.session_id

    @property
    def is_resting(self) -> bool:
        """Whether it can be told something now."""
        return self._doing is _Doing.RESTS

    @property
    def last_words(self) -> bytes | None:
        return self._last_words

    def begin(self) -> None:
        """Write what the stream begins with, and count from now on."""
        daemon, stream = self._audience.daemon, self._stream
        assert stream is not None, "it begins once"
        self._answer.holder = self
        daemon.metrics.subscribers.add(self)
        daemon.clients.stream_opened(self.session_id, self._who, self.client_id)
        daemon.tokens.enter(self._who, self)
        self._write(chunk(stream.begin()))
        if not stream.replays:
            self._stream = None
        self._audience.enter(self)
        daemon.deadlines.add(self, self._written_at + daemon.limits.heartbeat_s)

    # -- what it is written --------------------------------------------------------------------------------

    def tell(self, page: Page, chunked: bytes) -> None:
        """Write the events behind its place, `chunked` as they are for most; or wait for room."""
        if self._answer.is_full:
            self._doing, self._full_since = _Doing.FULL, self._audience.now()
            return
        self._answer.write(chunked if self._stream is None else self._chunked(page))
        self._written_at = self._audience.now()
        self.offset = page.offset

    def _chunked(self, page: Page | Lost) -> bytes:
        stream = self._stream
        if stream is None:
            return chunk(page.frame(self.session_id) if isinstance(page, Lost) else b"".join(page.frames))
        frames = stream.frames(page)
        if not stream.replays:
            self._stream = None
        return chunk(frames)

    def _write(self, chunked: bytes) -> None:
        self._answer.write(chunked)
        self._written_at = self._audience.now()

    def has_room(self) -> None:
        """It takes more again."""
        self._full_since = None
        if self._doing is _Doing.FULL:
            self._doing = _Doing.RESTS
            self._audience.visit(self)
        elif self._doing is _Doing.LEAVES:
            self._say_last_words()
        elif self._catching is not None:
            self._catching.room.set()

    def tick(self, now: float) -> float | None:
        """Write a heartbeat, or give the reader up that takes nothing, if it is time for that."""
        if self._doing in (_Doing.LEAVES, _Doing.OVER):
            return None
        limits = self._audience.daemon.limits
        if self._full_since is None and now >= self._written_at + limits.heartbeat_s:
            if not self._answer.is_full:
                self._write(chunk(HEARTBEAT))
            else:
                self._full_since = now
                if self._doing is _Doing.RESTS:
                    self._doing = _Doing.FULL
        if self._full_since is None:
            # Not later, because what begins to wait for room right now waits too long then.
            return min(self._written_at + limits.heartbeat_s, now + limits.write_timeout_s)
        if now < self._full_since + limits.write_timeout_s:
            return self._full_since + limits.write_timeout_s
        note_stalled(self._audience.daemon, PATH)
        self.drop()
        return None

    # -- catching up ---------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Read the log in a task, until it can rest."""
        self._doing = _Doing.CATCHES_UP
        catching = self._catching = _CatchUp(anyio.CancelScope(), asyncio.Event())
        self._audience.daemon.tasks.start_soon(self._catch_up, catching)

    async def _catch_up(self, catching: _CatchUp) -> None:
        try:
            with catching.scope:
                await self._read_on(catching.room)
        except SessionNotFound:
            self.end(b"")  # deleted while it was read: there is nothing more to tell
        except TurnwireError as error:
            note_early_end(error.code)
            self.end(b"")
        except Exception:  # whatever it is, others are told
            logger.exception("a reader is let go", extra=_FAILED)
            self.drop()
        if self._doing is _Doing.CATCHES_UP:
            self._catching, self._full_since, self._doing = None, None, _Doing.RESTS
            self._audience.visit(self)

    async def _read_on(self, room: asyncio.Event) -> None:
        daemon, session_id = self._audience.daemon, self.session_id
        shape = self._audience.ring.log.shape
        try:
            pages = follow_shaped(daemon.node, session_id, Position(self.epoch, self.offset), shape, waits=False)
            async with aclosing(pages):
                async for page in pages:
                    async for part in in_parts(page, daemon.clients, session_id, self.client_id):
                        await self._give(part, room)
                        self.offset = part.offset
        except PositionLost as error:
            why = str(error.context.get("why"))
            if why != "ahead":
                head = await daemon.node.head(session_id)
                await self._give(Lost(why, self.offset, head.first), room)
                self.epoch, self.offset = oldest(head)
            # One that is ahead is stored, and about to be shown: it rests until something is behind it.
        tail = await daemon.node.tail(session_id)
        if tail is not self._audience.tail:
            # Another life of the session has begun.
            self._audience.leave(self)
            self._audience = audience_of(daemon, shaped_ring(daemon.node, tail, session_id, shape), tail)
            self._audience.enter(self)

    async def _give(self, page: Page | Lost, room: asyncio.Event) -> None:
        # It may have left while the page was read: the cancellation comes with the next wait only.
        while self._doing is _Doing.CATCHES_UP and self._answer.is_full:
            self._full_since = self._full_since or self._audience.now()
            room.clear()
            await room.wait()
        if self._doing is _Doing.CATCHES_UP:
            self._write(self._chunked(page))

    # -- its end -------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Its credential has ended."""
        self._last_words = REVOKED
        self._audience.visit(self)

    def end(self, last_words: bytes) -> None:
        """End the answer. A client that takes nothing has a moment to take the last words."""
        if self._doing in (_Doing.LEAVES, _Doing.OVER):
            return
        self._last_words = last_words
        self._stop_catching_up()
        if self._answer.is_full:
            self._doing = _Doing.LEAVES
            self._audience.loop.call_later(FAREWELL_S, self._give_up)
        else:
            self._say_last_words()

    def left(self) -> None:
        """Its client is gone."""
        self._stop_catching_up()
        self._be_over()

    def _say_last_words(self) -> None:
        self._answer.end(chunk(self._last_words or b""))
        self._be_over()

    def _give_up(self) -> None:
        if self._doing is _Doing.LEAVES:
            self.drop()

    def drop(self) -> None:
        """Let it go where it stands."""
        if self._doing is not _Doing.OVER:
            self._stop_catching_up()
            self._answer.drop()
            self._be_over()

    def _stop_catching_up(self) -> None:
        if self._catching is not None:
            self._catching.scope.cancel()
            self._catching = None

    def _be_over(self) -> None:
        daemon = self._audience.daemon
        self._doing = _Doing.OVER
        self._answer.holder = None
        daemon.tokens.leave(self._who, self)
        daemon.clients.stream_ended(self.session_id, self._who, self.client_id)
        daemon.metrics.subscribers.discard(self)
        self._audience.leave(self)
        # Its next deadline still knows it, and is not to keep a connection.
        del self._answer


class _SharedPage(NamedTuple):
    """What readers at one place are told."""

    after: int
    head: int
    """How far the ring was."""
    page: Page
    chunked: bytes


class Audience:
    """The readers of one session in one shape."""

    def __init__(self, daemon: Daemon, ring: ShapedRing, tail: Tail) -> None:
        self.daemon = daemon
        self.ring = ring
        self.tail = tail
        self.session_id = ring.log.session_id
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self._readers: dict[Reader, None] = {}
        self._behind: dict[Reader, None] = {}
        """Those that are to be looked at, in order."""
        self._told: tuple[int, bool] | None = None
        """Where the ring was, and whether the session was over, when the last look at everybody began."""
        self._page: _SharedPage | None = None
        self._is_walking = False
        self._is_reading = False
        """The log is read, because the ring cannot go on without it."""
        self._more: asyncio.Future[None] | None = None
        """What it waits for while everybody has everything."""
        self._is_stopping = False
        daemon.stopping.add(self._stop)

    def enter(self, reader: Reader) -> None:
        """Tell it from now on."""
        self._readers[reader] = None
        self.visit(reader)

    def leave(self, reader: Reader) -> None:
        """Tell it no more."""
        self._readers.pop(reader, None)
        self._behind.pop(reader, None)
        if not self._readers:
            self.daemon.stopping.discard(self._stop)
            if self._more is not None:
                self._more.remove_done_callback(self._go_on)
                self._more = None
            if _audiences.get(self.ring) is self:
                del _audiences[self.ring]

    def visit(self, reader: Reader) -> None:
        """There may be something to tell it."""
        self._behind[reader] = None
        self._walk_soon()

    def _stop(self) -> None:
        """The daemon stops: everybody is told so."""
        self._is_stopping = True
        self._visit_all()

    def _visit_all(self) -> None:
        self._behind |= self._readers
        self._told = None
        self._walk_soon()

    def _walk_soon(self) -> None:
        if not self._is_walking:
            self._is_walking = True
            self.tail.walks += 1
            self.loop.call_soon(self._walk)

    def _go_on(self, _more: asyncio.Future[None]) -> None:
        """The session has more."""
        self._more = None
        self._visit_all()

    def _walk(self) -> None:
        """Look at some readers, and go on in the next round of the loop if there are more."""
        self._is_walking = False
        self.tail.walks -= 1
        try:
            self._look_at_some()
        except Exception:  # whatever it is, other sessions go on
            logger.exception("the readers of a session are let go", extra=_FAILED)
            self._drop_all()

    def _look_at_some(self) -> None:
        self._make_frames()
        if self._told is None:
            self._told = self.ring.head, self.tail.is_over
        room = AT_ONCE
        while self._behind and room > 0:
            # Some at a time: to find the first of a dictionary takes as long as what was removed before it is.
            for reader in list(islice(self._behind, FEW)):
                if room > 0 and reader in self._behind:
                    del self._behind[reader]
                    room -= self._look_at(reader)
        if self._behind:
            self._walk_soon()
        elif self._readers and not self._is_reading:
            self._rest()

    def _rest(self) -> None:
        """Everybody was looked at: once more, or wait for more."""
        self._page = None
        if self._told != (self.tail.head, self.tail.is_over):
            self._visit_all()
        elif self._more is None:
            self._more = self.tail.more()
            self._more.add_done_callback(self._go_on)

    def _drop_all(self) -> None:
        for each in list(self._readers):
            each.drop()

    def _make_frames(self) -> None:
        if self.ring.head >= self.tail.head or self._is_reading:
            return
        if not self.ring.advance(self.tail):
            self._is_reading = True
            self.daemon.tasks.start_soon(self._read_log)

    async def _read_log(self) -> None:
        try:
            await self.ring.go_on(self.tail, self.ring.head, None)
        except TurnwireError as error:
            if not isinstance(error, SessionNotFound):
                note_early_end(error.code)
            for each in list(self._readers):
                each.end(b"")
        except Exception:  # whatever it is, other sessions go on
            logger.exception("the readers of a session are let go", extra=_FAILED)
            self._drop_all()
        finally:
            self._is_reading = False
            self._visit_all()

    def _look_at(self, reader: Reader) -> int:
        """Tell a reader what there is for it; what that cost, in looks."""
        last_words = STOPPING if self._is_stopping else reader.last_words
        if last_words is not None:
            reader.end(last_words)
        elif not reader.is_resting:
            return 1
        elif reader.epoch != self.tail.epoch:
            reader.catch_up()
        elif reader.offset < self.ring.head:
            return self._tell(reader)
        elif self.tail.is_over and reader.offset >= self.tail.head:
            reader.end(b"")
        else:
            return 1
        return WRITE

    def _tell(self, reader: Reader) -> int:
        shared, after, head = self._page, reader.offset, self.ring.head
        if shared is None or shared.after != after or shared.head != head:
            frames = self.ring.page(after)
            if frames is None:
                reader.catch_up()
                return WRITE
            shared = _SharedPage(after, head, Page(after + len(frames), frames), chunk(b"".join(frames)))
            self._page = shared
        unread = self.daemon.clients.unread(self.session_id, reader.client_id)
        if unread and held_end(shared.page, unread) is not None:
            # It has to wait for its own client, and nobody else for it.
            reader.catch_up()
            return WRITE
        reader.tell(shared.page, shared.chunked)
        if reader.is_resting and (shared.page.offset < head or self.tail.is_over):
            # There is another page, or its end.
            self._behind[reader] = None
        return WRITE + WRITE * len(shared.chunked) // LONG_WRITE


_audiences: dict[ShapedRing, Audience] = {}
"""An audience is here as long as somebody is in it."""


def audience_of(daemon: Daemon, ring: ShapedRing, tail: Tail) -> Audience:
    """Where the readers of a ring are. Somebody has to enter it now."""
    if ring not in _audiences:
        _audiences[ring] = Audience(daemon, ring, tail)
    return _audiences[ring]
