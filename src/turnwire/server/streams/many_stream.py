"""One stream over many sessions: the pump of `GET /events`. A dozen tabs of a browser live on one connection.

It shows the sessions that were asked for, or all that there are and will be: each session's events in its own
order, with a cursor over all of them as every event's id. Sessions take turns by the page, so that a loud one does
not keep a quiet one out. A session costs a task once it has something to tell; one that is quiet costs a number. A
reader that stalls holds one page for each that has something to tell.

Theory of operation
-------------------
The cursor is one line of text. It must hold everything, because it is all that a client brings back: also after a
restart, and also to another node. But a line that names a thousand sessions is too long to go with every event. So
it names the sessions that moved last, `NAMED` at most, and has one number for all the others: the exclusive or over
a digest of each with its position. A session that moves leaves the number and is named; the one that was named
longest goes back into it.

    C1  As long as a stream has no more than `NAMED` sessions, all of them are named and the number is 0. Coming
        back is exact.
    C2  With more, those that are named come back exactly. If the number equals what it would be with every other
        session at its head, nothing happened in those. If not, the stream says once that it cannot tell which.
    C3  A session is named by a digest of its id and its epoch. Another life of it is another name.

The form is `m1.<rest>.<named>.<tag>.<offset>`: the number and the named ones in base64 (for each a tag of 6 bytes
and a varint), then the session of this event, whose offset alone changes from event to event of a page.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, suppress
from hashlib import blake2b
from typing import Any

import anyio
from anyio.abc import TaskGroup

from turnwire.core.envelope import stream_frame
from turnwire.core.shape import Shape
from turnwire.errors import BadRequest, SessionNotFound
from turnwire.ids import Epoch, SessionId
from turnwire.log.base import Position, SessionHead
from turnwire.runtime.follow import Page
from turnwire.server.daemon import Daemon
from turnwire.server.endpoint import Call
from turnwire.server.streams.session_stream import Lost, follow_kept, oldest, why_lost
from turnwire.server.streams.stream import RETRY, Writer

UNNAMED = "unnamed"
"""Something happened in sessions that the cursor does not name, and it cannot be said in which."""
NAMED = 64
"""A cursor of this many sessions is about 700 bytes; a page with a dozen sends 150 with each event."""

_FORM = "m1"
_TAG = 6
_REST = 8
_MOST_OFFSET = 2**63 - 1


class ManyStream:
    """The stream of many sessions."""

    def __init__(self, call: Call, came_with: ManyCursor | None, shape: Shape) -> None:
        self._call = call
        self._shape = shape
        self._daemon: Daemon = call.daemon
        self._came_with = came_with
        self._cursor = ManyCursor()
        self._quiet: dict[SessionId, Position] = {}
        """Sessions that are not followed yet, because nothing has happened in them."""
        self._followed: set[SessionId] = set()
        self._opening: list[bytes] = []
        self._behind: dict[SessionId, int] = {}
        """Sessions whose replay is not complete, and where it will be."""
        self._replayed = 0
        self._turn = anyio.Lock()
        """Held by the session that writes; those that wait get it in the order in which they came."""

    # -- what the stream begins with -----------------------------------------------------------------------

    async def add_named(self, session_id: SessionId) -> None:
        """A session that was asked for. Raises `SessionNotFound`."""
        came_with, head = self._came_with, await self._daemon.node.head(session_id)
        if came_with is None:
            self._resume(head, Position(head.epoch, head.head))
        elif (named := came_with.named.get(tag_of(session_id, head.epoch))) is None:
            self._lose(head, Lost("epoch", 0, head.first))
        else:
            await self._resume_named(head, Position(head.epoch, named))

    def add_missing(self, session_id: SessionId) -> None:
        """A session that was asked for and is not there. Raises `SessionNotFound` if nobody can have seen it."""
        if self._came_with is None:
            raise SessionNotFound("there is no such session", session_id=session_id)
        # A refusal would end the other sessions' stream too: a browser does not come back after one.
        self._opening.append(Lost("deleted", 0, None).frame(session_id))

    async def add_all(self, heads: AsyncIterator[SessionHead]) -> None:
        """Every session that there is."""
        came_with = self._came_with
        rest = 0
        async for head in heads:
            tag = tag_of(head.session_id, head.epoch)
            if came_with is None:
                self._resume(head, Position(head.epoch, head.head))
            elif tag in came_with.named:
                await self._resume_named(head, Position(head.epoch, came_with.named[tag]))
            elif came_with.rest:
                rest ^= digest(tag, head.head)
                self._resume(head, Position(head.epoch, head.head))
            else:
                # All sessions of that time are named, so this one came later.
                self._resume(head, oldest(head))
        if came_with is not None and came_with.rest != rest:
            self._opening.append(Lost(UNNAMED, 0, None).frame(None))

    async def _resume_named(self, head: SessionHead, position: Position) -> None:
        if position.offset > head.head:
            # As in `start_at`: another node may have shown what this one has not heard of yet.
            head = await self._daemon.node.head(head.session_id, anew=True)
        self._resume(head, position)

    def _resume(self, head: SessionHead, position: Position) -> None:
        lost = why_lost(position, head)
        if lost is not None:
            self._lose(head, lost)
            return
        if position.offset < head.head:
            self._behind[head.session_id] = head.head
        self._quiet[head.session_id] = position
        self._cursor.place(tag_of(head.session_id, head.epoch), position.offset)

    def _lose(self, head: SessionHead, lost: Lost) -> None:
        self._opening.append(lost.frame(head.session_id))
        self._resume(head, oldest(head))

    # -- while it runs -------------------------------------------------------------------------------------

    async def run_named(self, writer: Writer) -> None:
        """Show the sessions that were asked for, until all of them are over."""
        with self._daemon.metrics.subscriber(None):
            async with anyio.create_task_group() as tasks:
                await self._begin(writer, tasks, list(self._quiet))

    async def run_all(self, writer: Writer) -> None:
        """Show every session, also those that are created meanwhile, for ever."""
        with self._daemon.metrics.subscriber(None), self._daemon.activity.listening() as news:
            # Whatever happens from here on is told, whatever happened before is in the heads.
            await self.add_all(all_heads(self._daemon))
            async with anyio.create_task_group() as tasks:
                await self._begin(writer, tasks, list(self._behind))
                while True:
                    sessions, has_missed = await news.next()
                    for session_id in sessions:
                        await self._notice(writer, tasks, session_id)
                    if has_missed:
                        await self._look(writer, tasks)

    async def _begin(self, writer: Writer, tasks: TaskGroup, loud: Iterable[SessionId]) -> None:
        # The id alone is no event, but a client that is cut before the first one comes back with it.
        opening = [RETRY, *self._opening, b"id: %b\n\n" % self._cursor.text()]
        if self._came_with is not None and not self._behind:
            opening.append(self._replay_complete())
        await writer.write(b"".join(opening))
        for session_id in loud:
            self._followed.add(session_id)
            tasks.start_soon(self._follow, writer, session_id, self._quiet.pop(session_id))

    async def _look(self, writer: Writer, tasks: TaskGroup) -> None:
        """Find what happened unheard on other nodes."""
        async for head in all_heads(self._daemon):
            if self._quiet.get(head.session_id) != Position(head.epoch, head.head):
                await self._notice(writer, tasks, head.session_id)

    async def _notice(self, writer: Writer, tasks: TaskGroup, session_id: SessionId) -> None:
        if session_id in self._followed or not self._call.who.may_touch(session_id):
            return
        position = self._quiet.pop(session_id, None)
        if position is None:
            try:
                position = oldest(await self._daemon.node.head(session_id))
            except SessionNotFound:
                return
            self._cursor.place(tag_of(session_id, position.epoch), position.offset)
        self._followed.add(session_id)
        tasks.start_soon(self._follow, writer, session_id, position)

    async def _follow(self, writer: Writer, session_id: SessionId, after: Position) -> None:
        with suppress(SessionNotFound), self._daemon.clients.streaming(session_id, self._call.who):
            async with aclosing(follow_kept(self._daemon.node, session_id, after, self._shape)) as pages:
                async for page in pages:
                    async with self._turn:
                        if isinstance(page, Lost):
                            after = await self._tell_lost(writer, session_id, after, page)
                            continue
                        await writer.write(b"".join(self._labelled(session_id, after, page)))
                    after = Position(after.epoch, page.offset)
        # It is over, but its agent may have last words, and another life of it may begin.
        self._followed.discard(session_id)
        self._quiet[session_id] = after

    async def _tell_lost(self, writer: Writer, session_id: SessionId, after: Position, lost: Lost) -> Position:
        here = oldest(await self._daemon.node.head(session_id))
        tag = tag_of(session_id, here.epoch)
        if here.epoch == after.epoch:
            self._cursor.move(tag, after.offset, here.offset)
        else:
            self._cursor.place(tag, here.offset)
        await writer.write(lost.frame(session_id))
        return here

    def _labelled(self, session_id: SessionId, after: Position, page: Page) -> list[bytes]:
        """The frames of a page with this stream's cursor as their ids. The session's own is in the envelope."""
        tag = tag_of(session_id, after.epoch)
        self._cursor.move(tag, after.offset, page.offset)
        before = b"id: %b" % self._cursor.before(tag)
        numbered = enumerate(page.frames, after.offset + 1)
        frames = [_renumbered(frame, b"%b%d" % (before, offset)) for offset, frame in numbered]
        target = self._behind.get(session_id)
        if target is not None:
            self._replayed += len(frames)
            if page.offset >= target:
                del self._behind[session_id]
                if not self._behind:
                    frames.append(self._replay_complete())
        return frames

    def _replay_complete(self) -> bytes:
        data: dict[str, Any] = {"replayedCount": self._replayed}
        return stream_frame("replay_complete", data)


def _renumbered(frame: bytes, number: bytes) -> bytes:
    """The frames of one event with another id in the last of them, the only one that has one."""
    if frame.startswith(b"id: "):
        return number + frame[frame.index(b"\n") :]
    place = frame.rindex(b"\n\nid: ") + 2
    return b"".join((frame[:place], number, frame[frame.index(b"\n", place) :]))


async def all_heads(daemon: Daemon) -> AsyncIterator[SessionHead]:
    """Every session of the log, a page at a time."""
    after: SessionId | None = None
    while heads := await daemon.log.sessions(after=after):
        for head in heads:
            yield head
        after = heads[-1].session_id


# -- the cursor ----------------------------------------------------------------------------------------------


def tag_of(session_id: SessionId, epoch: Epoch) -> bytes:
    """The name of one life of a session in a cursor."""
    return blake2b(f"{session_id}\0{epoch}".encode("utf-8", "surrogatepass"), digest_size=_TAG).digest()


class ManyCursor:
    """How far a stream is in each of its sessions."""

    def __init__(self, named: dict[bytes, int] | None = None, rest: int = 0) -> None:
        self.named = named or {}
        """Tag → offset, the one that moved last at the end."""
        self.rest = rest
        self._prefix: tuple[bytes, bytes] | None = None

    def place(self, tag: bytes, offset: int) -> None:
        """A session that the stream has just begun to follow is here."""
        if len(self.named) < NAMED:
            self.named[tag] = offset
        else:
            self.rest ^= digest(tag, offset)
        self._prefix = None

    def move(self, tag: bytes, before: int, after: int) -> None:
        """The stream has shown the session's events from `before` to `after`."""
        if self.named.pop(tag, None) is None:
            self._prefix = None
            self.rest ^= digest(tag, before)
            if len(self.named) >= NAMED:
                oldest = next(iter(self.named))
                self.rest ^= digest(oldest, self.named.pop(oldest))
        self.named[tag] = after

    def before(self, tag: bytes) -> bytes:
        """The text for an event of this session, but for the offset at its end."""
        if self._prefix is None or self._prefix[0] != tag:
            others = b"".join(each + _varint(offset) for each, offset in self.named.items() if each != tag)
            rest = self.rest.to_bytes(_REST, "big") if self.rest else b""
            text = f"{_FORM}.{_encode(rest)}.{_encode(others)}.{_encode(tag)}."
            self._prefix = tag, text.encode()
        return self._prefix[1]

    def text(self) -> bytes:
        """The cursor as it is now."""
        if not self.named:
            return self.before(b"") + b"0"
        tag, offset = next(reversed(self.named.items()))
        return self.before(tag) + b"%d" % offset


def read_cursor(text: str) -> ManyCursor:
    """The cursor that a client brings back. Raises `BadRequest`."""
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
    """What one session adds to the number of those that are not named."""
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
