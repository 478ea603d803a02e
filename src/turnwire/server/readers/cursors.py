"""Cursors of clients: parsing them, and checking them against the log."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from turnwire.errors import BadRequest
from turnwire.ids import Epoch, SessionId
from turnwire.log import rules
from turnwire.log.base import Position, SessionHead
from turnwire.projections.envelope import stream_frame
from turnwire.runtime.node import Node

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
