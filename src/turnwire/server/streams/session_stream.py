"""One session as a stream: what is after a cursor, then what comes; one word if the cursor cannot be honoured.

`SessionStream` is what `GET /session/{session_id}/events` is answered with. It skips nothing without saying so, and
says it once. It is written by readers without tasks (`audience`), or by its pump where the server has no way to.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from turnwire.core.envelope import stream_frame
from turnwire.core.shape import Shape
from turnwire.errors import BadRequest, PositionLost
from turnwire.ids import ClientId, Epoch, PromptId, SessionId
from turnwire.log import rules
from turnwire.log.base import Position, SessionHead
from turnwire.runtime.follow import Page
from turnwire.runtime.node import Node
from turnwire.server.daemon.clients import Clients
from turnwire.server.endpoint import Call
from turnwire.server.streams.shaped import follow_shaped
from turnwire.server.streams.stream import RETRY, Writer

PATH = "/session/{session_id}/events"
"""The route of these streams."""
EPOCH_HEADERS = ("Turnwire-Epoch", "X-Qwen-Event-Epoch")
"""What names the life of the log that a cursor is of."""

REASONS = {"trimmed": "ring_evicted", "epoch": "epoch_reset", "ahead": "epoch_reset"}
"""What the contract calls our reasons: it tells only whether the cursor is behind, or not of this log at all."""

RESYNC = "state_resync_required"
_OFFSET_DIGITS = 18
_IS_END = re.compile(rb"(?:id: \d+\n)?event: turn_(?:complete|error)\n")
"""The first lines of the frame that tells of a turn's end."""


def read_offset(text: str | None) -> int | None:
    """The offset that a cursor names; none without one. Raises `BadRequest`."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS):
        raise BadRequest("the cursor is no event id; send the id of the last event you have seen, a whole number")
    return int(text)


class Lost(NamedTuple):
    """The cursor cannot be honoured: the stream goes on from the oldest event that is kept."""

    reason: str
    """`epoch`, `trimmed`, `ahead`; `deleted` if there is no such session any more."""
    last: int
    """Where the reader believed to be."""
    earliest: int | None
    """The id of the event that comes next; none for a session that is gone."""

    def envelope(self, session_id: SessionId | None) -> dict[str, Any]:
        """`state_resync_required`. Without a session it speaks of all sessions that the cursor did not name."""
        return {"v": 1, "type": RESYNC, "data": self._told(session_id)}

    def frame(self, session_id: SessionId | None) -> bytes:
        """The same for a stream."""
        return stream_frame(RESYNC, self._told(session_id))

    def _told(self, session_id: SessionId | None) -> dict[str, Any]:
        data: dict[str, Any] = {"reason": self.reason, "lastDeliveredId": self.last}
        if self.reason in REASONS:
            data |= {"reason": REASONS[self.reason], "detail": self.reason}
        if session_id is not None:
            data["sessionId"] = session_id
        if self.earliest is not None:
            data["earliestAvailableId"] = self.earliest
        return data


def why_lost(after: Position, head: SessionHead) -> Lost | None:
    """What is wrong with a position, if anything is."""
    reason = rules.why_lost(head, after)
    return None if reason is None else Lost(reason, after.offset, head.first)


class Start(NamedTuple):
    """Where a reader begins."""

    head: SessionHead
    after: Position
    """Its cursor, or the oldest event if that cannot be honoured."""
    lost: Lost | None


async def start_at(node: Node, session_id: SessionId, epoch: Epoch | None, offset: int) -> Start:
    """What a cursor stands for; without an epoch it is of the life that there is. Raises `SessionNotFound`."""
    for anew in (False, True):
        head = await node.head(session_id, anew=anew)
        after = Position(epoch or head.epoch, offset)
        lost = why_lost(after, head)
        if lost is None:
            return Start(head, after, None)
    # The second look was at what is stored: another node may have gone on without this one having noticed.
    return Start(head, oldest(head), lost)


def oldest(head: SessionHead) -> Position:
    """The position before the oldest event that is kept."""
    return Position(head.epoch, head.first - 1)


async def follow_kept(
    node: Node, session_id: SessionId, after: Position, shape: Shape
) -> AsyncGenerator[Page | Lost]:
    """Pages of frames after a position that the log has had; `Lost` if it was trimmed meanwhile.

    Raises `SessionNotFound`. Close it when done (`aclosing`).
    """
    start = after
    while True:
        try:
            async with aclosing(follow_shaped(node, session_id, start, shape)) as pages:
                async for offset, frames in pages:
                    fresh = offset - after.offset
                    if fresh > 0:
                        yield Page(offset, frames if len(frames) == fresh else frames[-fresh:])
                        start = after = Position(after.epoch, offset)
            return
        except PositionLost as error:
            why, shown = error.context.get("why"), error.context.get("head")
            if why == "ahead" and isinstance(shown, int) and start == after:
                # Stored, and about to be shown: wait behind what is shown, and skip what the reader has.
                start = Position(after.epoch, shown)
                continue
            head = await node.head(session_id)
            yield Lost(str(why), after.offset, head.first)
            start = after = oldest(head)


def held_end(page: Page, unread: Sequence[PromptId]) -> tuple[int, PromptId] | None:
    """Where in a page the end of a prompt is whose answer its client may not have read, and of which (ADR 26)."""
    for place, frame in enumerate(page.frames):
        if _IS_END.match(frame):
            ended = next((each for each in unread if each.encode() in frame), None)
            if ended is not None:
                return place, ended
    return None


async def in_parts(
    page: Page, clients: Clients, session_id: SessionId, client_id: ClientId | None
) -> AsyncGenerator[Page]:
    """A page, whole but for such an end: that, and what is behind it, comes when the client has read the answer."""
    while unread := clients.unread(session_id, client_id):
        held = held_end(page, unread)
        if held is None:
            break
        place, prompt_id = held
        offset, frames = page
        if place:
            yield Page(offset - len(frames) + place, frames[:place])
            page = Page(offset, frames[place:])
        await clients.heard(prompt_id)
    yield page


class SessionStream:
    """What the stream of one session is made of."""

    __slots__ = ("_opening", "_replay_to", "_replayed", "after", "session_id", "shape")

    def __init__(
        self, head: SessionHead, after: Position, shape: Shape, opening: list[bytes], *, replays: bool
    ) -> None:
        self.session_id = head.session_id
        self.shape = shape
        self.after = after
        """Where it begins."""
        self._opening = opening
        self._replayed = 0
        self._replay_to = head.head if replays else None
        """Where the replay is complete; none once that was said, or if there is none."""

    async def run(self, call: Call, writer: Writer) -> None:
        """Write all there is and will be. Returns when the session is over."""
        daemon, session_id = call.daemon, self.session_id
        with (
            daemon.metrics.subscriber(session_id) as subscriber,
            daemon.clients.streaming(session_id, call.who, call.client_id),
        ):
            subscriber.offset = self.after.offset
            await writer.write(self.begin())
            async with aclosing(follow_kept(daemon.node, session_id, self.after, self.shape)) as pages:
                async for page in pages:
                    if isinstance(page, Lost):
                        await writer.write(self.frames(page))
                        continue
                    async for part in in_parts(page, daemon.clients, session_id, call.client_id):
                        await writer.write(self.frames(part))
                        subscriber.offset = part.offset

    @property
    def replays(self) -> bool:
        """Whether the end of the replay is still to be said."""
        return self._replay_to is not None

    def begin(self) -> bytes:
        """What it begins with."""
        # The id alone is no event, but a client that is cut before the first one comes back with it.
        after = self.after.offset
        return b"".join([RETRY, *self._opening, b"id: %d\n\n" % after, *self._replay_end(after)])

    def frames(self, page: Page | Lost) -> bytes:
        """What to write for a page, with the end of the replay in its place if that is in it."""
        if isinstance(page, Lost):
            return b"".join([page.frame(self.session_id), *self._replay_end((page.earliest or 1) - 1)])
        frames = page.frames
        if self._replay_to is not None:
            place = max(len(frames) - max(page.offset - self._replay_to, 0), 0)
            self._replayed += place
            frames = [*frames[:place], *self._replay_end(page.offset), *frames[place:]]
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _replay_end(self, reached: int) -> list[bytes]:
        """`replay_complete` if the reader has now reached where the log stood when it came."""
        last = self._replay_to
        if last is None or reached < last:
            return []
        self._replay_to = None
        data: dict[str, Any] = {"sessionId": self.session_id, "replayedCount": self._replayed}
        if self._replayed:
            data["lastReplayedEventId"] = last
        return [stream_frame("replay_complete", data)]
