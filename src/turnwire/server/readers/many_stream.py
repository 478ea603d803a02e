"""One stream over many sessions: `GET /events`. A dozen tabs of a browser share one connection.

It shows the named sessions, or all present and future sessions: each session's events in its own order, with a
cursor over all of them as every event's id. Each session that has events has a reader, and all of them write to the
one stream; a session without events costs a position. When the client is slow, readers wait for room in order, so
that a busy session does not block a quiet one.

Theory of operation
-------------------
The cursor is one line of text. It must hold everything, because a client returns nothing else, even after a restart
and even to another node. But a line that names a thousand sessions is too long to send with every event. So it
names the `NAMED` sessions that moved last, and has one number for all the others: the exclusive or over a digest of
each with its position. A session that moves is removed from the number and named; the one that was named longest is
put back into it.

    C1  As long as a stream has no more than `NAMED` sessions, all of them are named and the number is 0. Resuming
        is exact.
    C2  With more, the named ones resume exactly. If the number equals its value with every other session at its
        head, nothing happened in those. If not, the stream reports once that it does not know which.
    C3  A session is named by a digest of its id and its epoch. Another epoch of it is another name.

The form is `m1.<rest>.<named>.<tag>.<offset>`: the number and the named ones in base64 (for each a tag of 6 bytes
and a varint), then the session of this event, whose offset alone changes from event to event of a page.
"""

from __future__ import annotations

import logging
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from hashlib import blake2b

import anyio

from turnwire.errors import BadRequest, SessionNotFound, TurnwireError
from turnwire.ids import Epoch, SessionId
from turnwire.log.base import Position, SessionHead
from turnwire.projections.envelope import Shape, stream_frame
from turnwire.server.connections import OpenAnswer
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import Call
from turnwire.server.readers.event_stream import RETRY, EventStream
from turnwire.server.readers.fanout import Lost, Reader, SharedPage, fanout_of, note_early_end, oldest, why_lost

logger = logging.getLogger(__name__)

UNNAMED = "unnamed"
"""The reason if events were missed in sessions that the cursor does not name, and the sessions are unknown."""
NAMED = 64
"""Sessions named in a cursor. It then has about 700 bytes; a page with a dozen sends 150 with each event."""

_FORM = "m1"
_TAG = 6
_REST = 8
_MOST_OFFSET = 2**63 - 1


class ManyStart:
    """The start of a stream of many sessions."""

    def __init__(self, daemon: Daemon, resumed: ManyCursor | None) -> None:
        self._daemon = daemon
        self.resumed = resumed
        """The client's cursor, if it has one."""
        self.cursor = ManyCursor()
        self.positions: dict[SessionId, Position] = {}
        self.opening: list[bytes] = []
        self.replay_to: dict[SessionId, int] = {}
        """Sessions with events to replay, and the offset at which the replay is complete."""

    async def add_named(self, session_id: SessionId) -> None:
        """Add a session that the client named. Raises `SessionNotFound`."""
        resumed, head = self.resumed, await self._daemon.node.head(session_id)
        if resumed is None:
            self._begin(head, Position(head.epoch, head.head))
        elif (named := resumed.named.get(tag_of(session_id, head.epoch))) is None:
            self._lose(head, Lost("epoch", 0, head.first))
        else:
            await self._resume(head, Position(head.epoch, named))

    def add_missing(self, session_id: SessionId) -> None:
        """Add a named session that does not exist. Raises `SessionNotFound` for a client without a cursor."""
        if self.resumed is None:
            raise SessionNotFound("there is no such session", session_id=session_id)
        # A rejection would end the other sessions' stream too: a browser does not reconnect after one.
        self.opening.append(Lost("deleted", 0, None).frame(session_id))

    async def add_all(self) -> None:
        """Add every existing session."""
        resumed = self.resumed
        rest = 0
        async for head in all_heads(self._daemon):
            tag = tag_of(head.session_id, head.epoch)
            if resumed is None:
                self._begin(head, Position(head.epoch, head.head))
            elif tag in resumed.named:
                await self._resume(head, Position(head.epoch, resumed.named[tag]))
            elif resumed.rest:
                rest ^= digest(tag, head.head)
                self._begin(head, Position(head.epoch, head.head))
            else:
                # All sessions of that time are named, so this one was created later.
                self._begin(head, oldest(head))
        if resumed is not None and resumed.rest != rest:
            self.opening.append(Lost(UNNAMED, 0, None).frame(None))

    async def _resume(self, head: SessionHead, position: Position) -> None:
        if position.offset > head.head:
            # As in `start_at`: another node may have delivered events that this one has not noticed yet.
            head = await self._daemon.node.head(head.session_id, anew=True)
        self._begin(head, position)

    def _begin(self, head: SessionHead, position: Position) -> None:
        lost = why_lost(position, head)
        if lost is not None:
            self._lose(head, lost)
            return
        if position.offset < head.head:
            self.replay_to[head.session_id] = head.head
        self.positions[head.session_id] = position
        self.cursor.place(tag_of(head.session_id, head.epoch), position.offset)

    def _lose(self, head: SessionHead, lost: Lost) -> None:
        self.opening.append(lost.frame(head.session_id))
        self._begin(head, oldest(head))


class ManyStream(EventStream):
    """The stream of many sessions. Implements `fanout.Sink` and `metrics.OpenStream`."""

    session_id: SessionId | None = None
    offset: int | None = None

    def __init__(self, call: Call, answer: OpenAnswer, start: ManyStart) -> None:
        super().__init__(call, answer)
        self._shape: Shape = call.query.shape
        self._start = start
        self._cursor = start.cursor
        self._idle = start.positions
        """Sessions without a reader, because they have no events to deliver."""
        self._readers: dict[SessionId, Reader | None] = {}
        """The readers; None for one that is about to begin."""
        self._waiting: dict[Reader, None] = {}
        """Readers that wait for room, longest first."""
        self._replay_to = start.replay_to
        self._replayed = 0
        self._ends = False
        """True if the stream ends when all its sessions are over."""
        self._scopes: set[anyio.CancelScope] = set()
        """The tasks of the stream."""

    def show_named(self) -> None:
        """Start showing the sessions that the client named, until all of them are over."""
        self.daemon.metrics.subscribers.add(self)
        self.open(self._opening())
        self._ends = True
        for session_id in list(self._idle):
            self._follow(session_id, self._idle.pop(session_id))
        self._end_if_over()

    def show_all(self) -> None:
        """Start showing every session, including those that are created later."""
        self.daemon.metrics.subscribers.add(self)
        self.open(b"")
        self.daemon.tasks.start_soon(self._run, self._follow_all)

    def _opening(self) -> bytes:
        # An id alone is no event, but a client that is disconnected before the first event resumes with it.
        opening = [RETRY, *self._start.opening, b"id: %b\n\n" % self._cursor.text()]
        if self._start.resumed is not None and not self._replay_to:
            opening.append(self._replay_complete())
        return b"".join(opening)

    # -- sessions with events ------------------------------------------------------------------------------

    async def _run(self, act: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a coroutine function in a task that ends with the stream."""
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                await act(*args)
        except TurnwireError as error:
            note_early_end(error.code)
            self.end()
        except Exception:  # other streams must continue
            logger.exception("an event stream failed", extra={"event": "stream_failed"})
            self.drop()
        finally:
            self._scopes.discard(scope)

    async def _follow_all(self) -> None:
        # Events from here on are noticed; the heads have all events before.
        with self.daemon.activity.listening() as news:
            await self._start.add_all()
            if self.is_open:
                self.write(self._opening())
            for session_id in self._replay_to:
                self._follow(session_id, self._idle.pop(session_id))
            while self.is_open:
                sessions, has_missed = await news.next()
                for session_id in sessions:
                    await self._notice(session_id)
                if has_missed:
                    # Events of other nodes, without a notice.
                    async for head in all_heads(self.daemon):
                        if self._idle.get(head.session_id) != Position(head.epoch, head.head):
                            await self._notice(head.session_id)

    async def _notice(self, session_id: SessionId) -> None:
        if session_id in self._readers or not self.who.may_touch(session_id):
            return
        position = self._idle.pop(session_id, None)
        if position is None:
            try:
                position = oldest(await self.daemon.node.head(session_id))
            except SessionNotFound:
                return
            self._cursor.place(tag_of(session_id, position.epoch), position.offset)
        self._follow(session_id, position)

    def _follow(self, session_id: SessionId, after: Position) -> None:
        self._readers[session_id] = None
        self.daemon.tasks.start_soon(self._run, self._begin_reader, session_id, after)

    async def _begin_reader(self, session_id: SessionId, after: Position) -> None:
        try:
            tail = await self.daemon.node.tail(session_id)
        except SessionNotFound:
            self._over(session_id, after)
            return
        if not self.is_open:
            return
        reader = self._readers[session_id] = Reader(
            fanout_of(self.daemon, tail, session_id, self._shape), self, after
        )
        self.daemon.clients.stream_opened(session_id, self.who, None)
        reader.enter()

    def _over(self, session_id: SessionId, after: Position) -> None:
        # The session is over, but its agent may still send events, and it may be created again.
        del self._readers[session_id]
        self._idle[session_id] = after
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._ends and not self._readers:
            self.end()

    def on_room(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for each in waiting:
            each.has_room()

    def on_end(self) -> None:
        for each in self._scopes:
            each.cancel()
        self.daemon.metrics.subscribers.discard(self)
        for each in filter(None, self._readers.values()):
            each.leave()
            self.daemon.clients.stream_ended(each.fanout.session_id, self.who, None)

    # -- the sink of the readers ---------------------------------------------------------------------------

    def await_room(self, reader: Reader) -> None:
        self._waiting[reader] = None
        self.wait_for_room()

    def write_page(self, reader: Reader, page: SharedPage) -> int:
        """Write a page with this stream's cursor as ids. The session's own ids are in the envelopes."""
        session_id = reader.fanout.session_id
        tag = tag_of(session_id, reader.epoch)
        self._cursor.move(tag, page.after, page.offset)
        before = b"id: %b" % self._cursor.before(tag)
        numbered = enumerate(page.frames, page.after + 1)
        frames = [_renumbered(frame, b"%b%d" % (before, offset)) for offset, frame in numbered]
        target = self._replay_to.get(session_id)
        if target is not None:
            self._replayed += len(frames)
            if page.offset >= target:
                del self._replay_to[session_id]
                if not self._replay_to:
                    frames.append(self._replay_complete())
        body = b"".join(frames)
        self.write(body)
        return len(body)

    def write_lost(self, reader: Reader, lost: Lost, after: Position) -> None:
        session_id = reader.fanout.session_id
        tag = tag_of(session_id, after.epoch)
        if after.epoch == reader.epoch:
            self._cursor.move(tag, reader.offset, after.offset)
        else:
            self._cursor.place(tag, after.offset)
        self.write(lost.frame(session_id))

    def reader_ended(self, reader: Reader, error: TurnwireError | None) -> None:
        session_id = reader.fanout.session_id
        self.daemon.clients.stream_ended(session_id, self.who, None)
        self._waiting.pop(reader, None)
        self._over(session_id, Position(reader.epoch, reader.offset))
        if error is not None and not isinstance(error, SessionNotFound):
            self.end()

    def _replay_complete(self) -> bytes:
        return stream_frame("replay_complete", {"replayedCount": self._replayed})


def _renumbered(frame: bytes, number: bytes) -> bytes:
    """Return the frames of one event with another id in the last of them, the only one that has an id."""
    if frame.startswith(b"id: "):
        return number + frame[frame.index(b"\n") :]
    place = frame.rindex(b"\n\nid: ") + 2
    return b"".join((frame[:place], number, frame[frame.index(b"\n", place) :]))


async def all_heads(daemon: Daemon) -> AsyncIterator[SessionHead]:
    """Yield the heads of all sessions of the log, read a page at a time."""
    after: SessionId | None = None
    while heads := await daemon.log.sessions(after=after):
        for head in heads:
            yield head
        after = heads[-1].session_id


# -- the cursor ----------------------------------------------------------------------------------------------


def tag_of(session_id: SessionId, epoch: Epoch) -> bytes:
    """Return the name of one epoch of a session in a cursor."""
    return blake2b(f"{session_id}\0{epoch}".encode("utf-8", "surrogatepass"), digest_size=_TAG).digest()


class ManyCursor:
    """The position of a stream in each of its sessions."""

    def __init__(self, named: dict[bytes, int] | None = None, rest: int = 0) -> None:
        self.named = named or {}
        """Tag → offset, most recently moved last."""
        self.rest = rest
        self._prefix: tuple[bytes, bytes] | None = None

    def place(self, tag: bytes, offset: int) -> None:
        """Add a session that the stream has just begun to follow."""
        if len(self.named) < NAMED:
            self.named[tag] = offset
        else:
            self.rest ^= digest(tag, offset)
        self._prefix = None

    def move(self, tag: bytes, before: int, after: int) -> None:
        """Record that the stream has sent the session's events from `before` to `after`."""
        if self.named.pop(tag, None) is None:
            self._prefix = None
            self.rest ^= digest(tag, before)
            if len(self.named) >= NAMED:
                oldest = next(iter(self.named))
                self.rest ^= digest(oldest, self.named.pop(oldest))
        self.named[tag] = after

    def before(self, tag: bytes) -> bytes:
        """Return the text for an event of this session, without the offset at its end."""
        if self._prefix is None or self._prefix[0] != tag:
            others = b"".join(each + _varint(offset) for each, offset in self.named.items() if each != tag)
            rest = self.rest.to_bytes(_REST, "big") if self.rest else b""
            text = f"{_FORM}.{_encode(rest)}.{_encode(others)}.{_encode(tag)}."
            self._prefix = tag, text.encode()
        return self._prefix[1]

    def text(self) -> bytes:
        """Return the current cursor."""
        if not self.named:
            return self.before(b"") + b"0"
        tag, offset = next(reversed(self.named.items()))
        return self.before(tag) + b"%d" % offset


def read_cursor(text: str) -> ManyCursor:
    """Parse the cursor that a client returns. Raises `BadRequest`."""
    try:
        form, rest, others, tag, offset = text.split(".")
        if form != _FORM or not (offset.isascii() and offset.isdigit()):
            raise ValueError
        named = dict(_entries(_decode(others)))
        last = _decode(tag)
        if last:
            named[last] = int(offset)
        if any(len(each) != _TAG or at > _MOST_OFFSET for each, at in named.items()):
            raise ValueError
        return ManyCursor(named, int.from_bytes(_decode(rest), "big"))
    except (ValueError, IndexError):
        raise BadRequest("this is no cursor of this stream; send back the id of its last event as it was") from None


def digest(tag: bytes, offset: int) -> int:
    """Return the contribution of one session to the number for unnamed sessions."""
    return int.from_bytes(blake2b(tag + offset.to_bytes(8, "big"), digest_size=_REST).digest(), "big")


def _entries(packed: bytes) -> Iterator[tuple[bytes, int]]:
    at = 0
    while at < len(packed):
        tag = packed[at : at + _TAG]
        at += _TAG
        offset = shift = 0
        while True:
            byte = packed[at]
            at += 1
            offset |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        yield tag, offset


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
