"""One session as a stream: what is after a cursor, then what comes; one word if the cursor cannot be honoured.

`SessionStream` is the pump of `GET /session/{session_id}/events`. It skips nothing without saying so, and says it
once.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from turnwire.core.envelope import stream_frame
from turnwire.core.shape import Shape
from turnwire.errors import BadRequest, PositionLost
from turnwire.ids import PromptId, SessionId
from turnwire.log import rules
from turnwire.log.base import Position, SessionHead
from turnwire.runtime.follow import Page
from turnwire.runtime.node import Node
from turnwire.server.endpoint import Call
from turnwire.server.streams.shaped import follow_shaped
from turnwire.server.streams.stream import RETRY, Writer

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


class SessionStream:
    """The stream of one session."""

    def __init__(
        self, call: Call, head: SessionHead, after: Position, shape: Shape, opening: list[bytes], *, replays: bool
    ) -> None:
        self._call = call
        self._shape = shape
        self._session_id = head.session_id
        self._after = after
        self._opening = opening
        self._replayed = 0
        self._replay_to = head.head if replays else None
        """Where the replay is complete; none once that was said, or if there is none."""

    async def run(self, writer: Writer) -> None:
        """Write all there is and will be. Returns when the session is over."""
        daemon, session_id = self._call.daemon, self._session_id
        with (
            daemon.metrics.subscriber(session_id) as subscriber,
            daemon.clients.streaming(session_id, self._call.who, self._call.client_id),
        ):
            subscriber.offset = self._after.offset
            await writer.write(self._begin())
            async with aclosing(follow_kept(daemon.node, session_id, self._after, self._shape)) as pages:
                async for page in pages:
                    frames = self._frames(page)
                    for prompt_id in daemon.clients.unread(session_id, self._call.client_id):
                        frames = await self._held_back(frames, prompt_id, writer)
                    await writer.write(frames[0] if len(frames) == 1 else b"".join(frames))
                    if isinstance(page, Page):
                        subscriber.offset = page.offset

    async def _held_back(self, frames: list[bytes], prompt_id: PromptId, writer: Writer) -> list[bytes]:
        """The end of a prompt and what is behind it, once its client has read the answer; the rest is written."""
        named = prompt_id.encode()
        ends = (at for at, each in enumerate(frames) if named in each and _IS_END.match(each))
        place = next(ends, None)
        if place is None:
            return frames
        if place:
            await writer.write(b"".join(frames[:place]))
        await self._call.daemon.clients.heard(prompt_id)
        return frames[place:]

    def _begin(self) -> bytes:
        # The id alone is no event, but a client that is cut before the first one comes back with it.
        after = self._after.offset
        return b"".join([RETRY, *self._opening, b"id: %d\n\n" % after, *self._replay_end(after)])

    def _frames(self, page: Page | Lost) -> list[bytes]:
        """What to write for a page, with the end of the replay in its place if that is in it."""
        if isinstance(page, Lost):
            return [page.frame(self._session_id), *self._replay_end((page.earliest or 1) - 1)]
        if self._replay_to is None:
            return page.frames
        place = max(len(page.frames) - max(page.offset - self._replay_to, 0), 0)
        self._replayed += place
        return [*page.frames[:place], *self._replay_end(page.offset), *page.frames[place:]]

    def _replay_end(self, reached: int) -> list[bytes]:
        """`replay_complete` if the reader has now reached where the log stood when it came."""
        last = self._replay_to
        if last is None or reached < last:
            return []
        self._replay_to = None
        data: dict[str, Any] = {"sessionId": self._session_id, "replayedCount": self._replayed}
        if self._replayed:
            data["lastReplayedEventId"] = last
        return [stream_frame("replay_complete", data)]
