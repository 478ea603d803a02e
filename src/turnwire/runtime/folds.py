"""The folds of a session, from its log: the newest snapshot, then what came after it.

The log is read page by page, so memory is bounded by what is folded and not by the length of the log. Nothing is
appended here: what an interrupted session owes is decided afterwards by the session itself (`Recover`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from turnwire.core.codec import decode, decode_state
from turnwire.core.events import AnyEvent
from turnwire.core.evolve import evolve
from turnwire.core.state import NOTHING
from turnwire.core.view import VIEW_VERSION, View, decode_view, encode_view
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead, Snapshot
from turnwire.runtime.session import STATE, Opened

VIEW = "view"
"""Name of the snapshot that holds a session's view."""


async def open_state(log: EventLog, session_id: SessionId, limits: Limits) -> Opened:
    """The session's state at its head. Raises `SessionNotFound`, `LogCorrupt`, `LogTooNew`."""
    head = await log.head(session_id)
    snapshot = await log.load_snapshot(session_id, STATE)
    state, offset = NOTHING, 0
    if snapshot is not None and (known := decode_state(snapshot.body, snapshot.version)) is not None:
        state, offset = known, snapshot.offset
    async for event in _events(log, head, offset, limits):
        state = evolve(state, event)
    return Opened(session_id, head.epoch, state, head.head)


async def open_view(log: EventLog, session_id: SessionId, limits: Limits) -> tuple[View, int]:
    """The session's view and the offset it is folded to; kept as a snapshot when it took long."""
    view, kept, head = await _fold_view(log, session_id, limits)
    # A view is as long as its transcript. Keeping one each time the log has grown by half makes the work of
    # keeping them proportional to the log, and leaves at most a third of it to fold.
    if head - kept >= max(limits.snapshot_events, kept // 2):
        await log.save_snapshot(session_id, Snapshot(VIEW, head, VIEW_VERSION, encode_view(view)))
    return view, head


async def keep_view(log: EventLog, session_id: SessionId, limits: Limits) -> int:
    """Keep the view as it is now, whatever it costs; returns the offset it is folded to."""
    view, kept, head = await _fold_view(log, session_id, limits)
    if head > kept:
        await log.save_snapshot(session_id, Snapshot(VIEW, head, VIEW_VERSION, encode_view(view)))
    return head


async def _fold_view(log: EventLog, session_id: SessionId, limits: Limits) -> tuple[View, int, int]:
    """The view, the offset of the snapshot it began with, and the offset it is folded to."""
    head = await log.head(session_id)
    snapshot = await log.load_snapshot(session_id, VIEW)
    view, kept = View(), 0
    if snapshot is not None and (known := decode_view(snapshot.body, snapshot.version)) is not None:
        view, kept = known, snapshot.offset
    async for event in _events(log, head, kept, limits):
        view.apply(event)
    # The snapshot may be newer than the head that was read before it.
    return view, kept, max(head.head, kept)


async def _events(log: EventLog, head: SessionHead, after: int, limits: Limits) -> AsyncIterator[AnyEvent]:
    while after < head.head:
        page = await log.read(
            head.session_id,
            Position(head.epoch, after),
            max_events=min(limits.page_events, head.head - after),
            max_bytes=limits.page_bytes,
        )
        for each in page:
            yield decode(each.body)
        after = page[-1].offset
