"""The folds of a session, from its log: the newest snapshot, then what came after it.

The log is read page by page, so memory is bounded by what is folded and not by the length of the log. Nothing is
appended here: what an interrupted session owes is decided afterwards by the session itself (`Recover`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import anyio

from turnwire.core.codec import decode, decode_state
from turnwire.core.events import AnyEvent
from turnwire.core.evolve import evolve
from turnwire.core.state import NOTHING
from turnwire.core.view import VIEW_VERSION, View, decode_view, encode_view
from turnwire.errors import TurnwireError
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead, Snapshot
from turnwire.runtime.session import STATE, Opened

VIEW = "view"
"""Name of the snapshot that holds a session's view."""
FOLDED_AT_ONCE: Final = 256
"""Events that are folded into a kept view before others get a turn: two or three milliseconds."""


SHORT: Final = 128
"""Events that are folded in less time than the log needs for an answer."""


async def open_state(
    log: EventLog, session_id: SessionId, limits: Limits, head: SessionHead | None = None
) -> Opened:
    """The session's state at its head. Raises `SessionNotFound`, `LogCorrupt`, `LogTooNew`.

    `head`: where a session stands that was left open. It was in use, so a short log of it has no snapshot.
    """
    is_short = head is not None and head.first == 1 and head.head <= SHORT
    head = head or await log.head(session_id)
    snapshot = None if is_short else await log.load_snapshot(session_id, STATE)
    state, offset = NOTHING, 0
    if snapshot is not None and (known := decode_state(snapshot.body, snapshot.version)) is not None:
        state, offset = known, snapshot.offset
    async for event in _events(log, head, offset, limits):
        state = evolve(state, event)
    return Opened(session_id, head.epoch, state, head.head)


async def open_view(log: EventLog, session_id: SessionId, limits: Limits) -> tuple[View, int]:
    """The session's view and the offset it is folded to; kept as a snapshot when it took long."""
    view, kept, head = await _fold_view(log, session_id, limits)
    await _keep_if_long(log, session_id, view, kept, limits)
    return view, head


async def keep_view(log: EventLog, session_id: SessionId, limits: Limits) -> int:
    """Keep the view as it is now, whatever it costs; returns the offset it is folded to."""
    view, kept, head = await _fold_view(log, session_id, limits)
    if head > kept:
        await _keep(log, session_id, view)
    return head


class KeptViews:
    """The views of the sessions that were read last, so that the next look folds only what came since.

    A view is shared by all who read it, and grows: what is taken of it is taken before the next await.
    """

    def __init__(self, log: EventLog, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self._kept: dict[SessionId, _KeptView] = {}
        """The one that was read last at the end."""

    async def newest(self, session_id: SessionId) -> tuple[View, Epoch]:
        """The view up to the newest event, and the life of the log it is of. Raises `SessionNotFound`."""
        try:
            head = await self._log.head(session_id)
            kept = self._kept.pop(session_id, None)
            if kept is None or kept.epoch != head.epoch:
                kept = _KeptView(head.epoch)
            self._kept[session_id] = kept
            async with kept.folding:
                await self._fold(kept, head)
        except TurnwireError:
            # It is deleted, or what the view would go on with is trimmed: whoever comes next begins anew.
            self._kept.pop(session_id, None)
            raise
        self._let_go()
        return kept.view, kept.epoch

    async def _fold(self, kept: _KeptView, head: SessionHead) -> None:
        begun = kept.view.offset
        if not begun:
            kept.view, kept.size = await _begin_view(self._log, head.session_id)
            begun = kept.view.offset
        while kept.view.offset < head.head:
            page = await self._log.read(
                head.session_id,
                Position(head.epoch, kept.view.offset),
                max_events=FOLDED_AT_ONCE,
                max_bytes=self._limits.page_bytes,
            )
            for each in page:
                kept.view.apply(decode(each.body))
                kept.size += len(each.body)
        await _keep_if_long(self._log, head.session_id, kept.view, begun, self._limits)

    def _let_go(self) -> None:
        """Those that were read longest ago, until the others are few enough; never the one that was read now."""
        size = sum(each.size for each in self._kept.values())
        while size > self._limits.view_bytes and len(self._kept) > 1:
            size -= self._kept.pop(next(iter(self._kept))).size


class _KeptView:
    """A view in memory."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.view = View()
        self.size = 0
        """Bytes that were folded into it: it holds about as many at most."""
        self.folding = anyio.Lock()


async def _fold_view(log: EventLog, session_id: SessionId, limits: Limits) -> tuple[View, int, int]:
    """The view, the offset of the snapshot it began with, and the offset it is folded to."""
    head = await log.head(session_id)
    view, _ = await _begin_view(log, session_id)
    kept = view.offset
    async for event in _events(log, head, kept, limits):
        view.apply(event)
    # The snapshot may be newer than the head that was read before it.
    return view, kept, view.offset


async def _begin_view(log: EventLog, session_id: SessionId) -> tuple[View, int]:
    """The view that is kept of a session, else an empty one; and its size in bytes."""
    snapshot = await log.load_snapshot(session_id, VIEW)
    view = None if snapshot is None else decode_view(snapshot.body, snapshot.version)
    if snapshot is None or view is None:
        return View(), 0
    view.offset = snapshot.offset  # one that an older version kept does not say it
    return view, len(snapshot.body)


async def _keep_if_long(log: EventLog, session_id: SessionId, view: View, kept: int, limits: Limits) -> None:
    # A view is as long as its transcript. Keeping one each time the log has grown by half makes the work of
    # keeping them proportional to the log, and leaves at most a third of it to fold.
    if view.offset - kept >= max(limits.snapshot_events, kept // 2):
        await _keep(log, session_id, view)


async def _keep(log: EventLog, session_id: SessionId, view: View) -> None:
    await log.save_snapshot(session_id, Snapshot(VIEW, view.offset, VIEW_VERSION, encode_view(view)))


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
