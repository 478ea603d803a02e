"""The folds of a session, built from its log: the newest snapshot plus the events after it.

The log is read page by page, so memory is bounded by the fold's result and not by the length of the log. This
module appends nothing: the session itself decides later which events an interrupted session owes (`Recover`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from msgspec import Struct

from turnwire.errors import LogError, PartNeeded, SessionNotFound, TurnwireError
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead, Snapshot, Stored
from turnwire.projections.view import VIEW_VERSION, View, decode_view, encode_view
from turnwire.projections.view.paged import Paged
from turnwire.projections.view.transcript import Transcript
from turnwire.runtime.session import STATE, Opened
from turnwire.session.codec import decode, decode_chain, decode_state, encode_state
from turnwire.session.events import TerminalEvent
from turnwire.session.evolve import evolve
from turnwire.session.receipts import Chain
from turnwire.session.state import NOTHING, STATE_VERSION, SessionState

VIEW = "view"
"""Name of the snapshot that holds a session's view."""
VIEW_BYTES: Final = 64 * 1024 * 1024
"""Size of the cache of views, so that the next page of a recently read transcript needs no fold."""
FOLDED_AT_ONCE: Final = 256
"""Events that are folded into a cached view before other tasks run: two or three milliseconds."""


SAVED_EVENTS: Final = 2048
"""Events after which a view is saved again, which bounds the fold of the first reader after a restart."""
LONG_EVENTS: Final = 32_768
"""Interval, in events, of saving a view during a long fold, so that memory stays bounded."""
PAGE_ENTRIES: Final = 128
"""Turns or items of a page; less than a millisecond to read."""
PAGE_BYTES: Final = 256 * 1024
"""Size at which a page is full, whatever its number of entries."""
WRITTEN_AT_ONCE: Final = 16
"""Pages that are encoded and written together."""
SHORT: Final = 128
"""Events that are folded in less time than the log needs for an answer."""


T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
logger = logging.getLogger(__name__)


async def open_state(
    log: EventLog, session_id: SessionId, limits: Limits, head: SessionHead | None = None
) -> Opened:
    """Return the session's state at its head. Raises `SessionNotFound`, `LogCorrupt`, `LogVersionMismatch`.

    `head`: the head of an interrupted session. It was in use, so a short log of it has no snapshot.
    """
    is_short = head is not None and head.first == 1 and head.head <= SHORT
    head = head or await log.head(session_id)
    snapshot = None if is_short else await log.load_snapshot(session_id, STATE)
    state, offset, chain = NOTHING, 0, Chain()
    if snapshot is not None and (known := decode_state(snapshot.body, snapshot.version)) is not None:
        state, offset, chain = known, snapshot.offset, kept_chain(snapshot, head.first)
    if offset > head.head:
        # Its owner, another node, appended events since the head was read. A state is never ahead of its head.
        head = await log.head(session_id)
    while chain.offset < head.head:
        page = await log.read(
            head.session_id,
            Position(head.epoch, chain.offset),
            max_events=min(limits.page_events, head.head - chain.offset),
            max_bytes=limits.page_bytes,
        )
        state, chain = await _fold_states(state, chain, page, offset)
    if head.head - offset >= limits.snapshot_events:
        # The snapshot was lost or never made. Save one, so that the next opening is fast.
        with suppress(LogError, SessionNotFound):
            await log.save_snapshot(
                session_id, Snapshot(STATE, head.head, STATE_VERSION, encode_state(state, chain))
            )
    return Opened(session_id, head.epoch, state, head.head, chain)


def kept_chain(snapshot: Snapshot, first: int = 1) -> Chain:
    """Return the receipt chain of a state's snapshot, or a chain that begins after the snapshot if it has none.

    Opening the session reads the events after its offset. `first`: the oldest event in the log.
    """
    mark = decode_chain(snapshot.body)
    return Chain(snapshot.offset + 1) if mark is None or mark.first < first else Chain(mark.first, mark.previous)


async def _fold_states(
    state: SessionState, chain: Chain, page: list[Stored], known: int
) -> tuple[SessionState, Chain]:
    """Return the state and the chain after the events of a page. The state already has those up to `known`."""
    begin = 0
    for number, each in enumerate(page, 1):
        if number % FOLDED_AT_ONCE == 0:
            await checkpoint()
        if each.offset <= known:
            continue
        event = decode(each.body)
        state = evolve(state, event)
        if isinstance(event, TerminalEvent):
            chain = Chain(each.offset + 1, "" if event.receipt is None else event.receipt.hash)
            begin = number
    chain.take([each.body for each in page[begin:]])
    return state, chain


class KeptViews:
    """A cache of the most recently read views, so that the next read folds only the new events.

    A view is shared by all its readers and grows: callers must copy the data they need before the next await. Only
    the view's end is in memory, whatever the length of the log (`projections.view.paged`). There is one instance
    per log. It writes evicted parts to the log: first the pages, then the view that refers to them. If nodes share
    the log, each node has an instance. Pages are named by their event, and a node that finds a view saved by
    another node continues from that view. So two nodes that save at one event began with the same view and write
    the same pages.
    """

    def __init__(
        self, log: EventLog, limits: Limits, tasks: TaskGroup | None = None, *, is_shared: bool = False
    ) -> None:
        """`tasks`: the task group that saves views to the log, so that readers need not wait for it."""
        self._is_shared = is_shared
        self._log = log
        self._limits = limits
        self._tasks = tasks
        self._saved_events = min(SAVED_EVENTS, limits.snapshot_events)
        self._kept: OrderedDict[SessionId, _KeptView] = OrderedDict()
        """Cached views; the most recently read one is last."""
        self._size = 0
        """Total size of all cached views."""

    async def newest(self, session_id: SessionId) -> tuple[View, Epoch]:
        """Return the view up to the newest event, and its epoch. Raises `SessionNotFound`."""
        kept = await self._newest(session_id)
        return kept.view, kept.epoch

    async def read(self, session_id: SessionId, look: Callable[[View], T]) -> T:
        """Return the result of `look` on the newest view. `look` may read any part and must not change the view.

        `look` restarts each time it needs a part that is not in memory. Raises `SessionNotFound`.
        """
        while True:
            kept = await self._newest(session_id)
            view = kept.view
            try:
                found = look(view)
            except PartNeeded as needed:
                async with kept.folding:
                    if kept.view is view and not await _load(self._log, session_id, needed):
                        kept.begin_anew()
                continue
            _let_pages_go(view)
            return found

    async def whole(self, session_id: SessionId) -> View:
        """Return a complete view, held in memory, for the caller alone. The time grows with the transcript."""
        head = await self._log.head(session_id)
        view = await _begin_view(self._log, session_id)
        if head.head - view.offset >= self._saved_events:
            await self.newest(session_id)
            view = await _begin_view(self._log, session_id)
        try:
            await _fold(self._log, head, view, self._limits)
            for needed in view.missing():
                if not await _load(self._log, session_id, needed):
                    raise needed
        except PartNeeded:
            view = View()
            await _fold(self._log, head, view, self._limits)
        view.make_whole()
        return view

    def has(self, session_id: SessionId) -> bool:
        """Return true if a view of the session is in memory."""
        return session_id in self._kept

    def forget(self, session_id: SessionId) -> None:
        """Evict the view of a session, unless it is in use. The caller expects no read soon."""
        kept = self._kept.get(session_id)
        if kept is not None and not kept.folding.locked():
            self._take_out(session_id)

    async def keep(self, session_id: SessionId) -> int:
        """Save the current view to the log; return the event up to which the saved view goes."""
        kept = await self._newest(session_id)
        async with kept.folding:
            if kept.view.offset > kept.saved:
                await self._save(session_id, kept)
        return kept.saved

    async def _newest(self, session_id: SessionId) -> _KeptView:
        try:
            head = await self._log.head(session_id)
            kept = self._kept.get(session_id)
            if kept is None or kept.epoch != head.epoch:
                self._take_out(session_id)
                kept = self._kept[session_id] = _KeptView(head.epoch)
            self._kept.move_to_end(session_id)
            async with kept.folding:
                await self._go_on(kept, head)
        except TurnwireError:
            # The session is deleted, or the events that the view needs next are trimmed. The next reader starts
            # from scratch.
            self._take_out(session_id)
            raise
        if self._kept.get(session_id) is kept:
            self._size += kept.size - kept.counted
            kept.counted = kept.size
        self._let_go()
        return kept

    async def _go_on(self, kept: _KeptView, head: SessionHead) -> None:
        if not kept.has_begun:
            kept.view = await _begin_view(self._log, head.session_id)
            kept.saved, kept.has_begun = kept.view.offset, True
        while kept.view.offset < head.head or kept.view.offset - kept.tried >= self._saved_events:
            if kept.view.offset >= head.head or kept.view.offset - kept.tried >= LONG_EVENTS:
                await self._try_to_save(head.session_id, kept)
                continue
            try:
                kept.size += await _fold_page(self._log, head, kept.view, self._limits)
            except PartNeeded:
                kept.begin_anew()  # the saved part is lost; fold the log again
                continue
            if kept.view.offset - kept.tried >= LONG_EVENTS:
                await self._try_to_save(head.session_id, kept)
        if kept.view.offset - kept.tried < self._saved_events:
            return
        if self._tasks is None:
            await self._try_to_save(head.session_id, kept)
        else:
            kept.tried = kept.view.offset
            self._tasks.start_soon(self._save_later, head.session_id, kept)

    async def _save_later(self, session_id: SessionId, kept: _KeptView) -> None:
        try:
            async with kept.folding:
                # A session created with the same id meanwhile is a different one.
                if (await self._log.head(session_id)).epoch == kept.epoch:
                    await self._try_to_save(session_id, kept)
        except SessionNotFound:
            pass
        except Exception:  # any error: the log still has the events
            logger.exception("a view was not kept", extra={"event": "snapshot_not_kept"})

    async def _try_to_save(self, session_id: SessionId, kept: _KeptView) -> None:
        """Save the view. After a failure the data stays in memory; only time is lost."""
        kept.tried = kept.view.offset
        try:
            await self._save(session_id, kept)
        except (LogError, SessionNotFound) as error:
            logger.warning("a view was not kept", extra={"event": "snapshot_not_kept", "code": error.code})

    async def _save(self, session_id: SessionId, kept: _KeptView) -> None:
        if self._is_shared:
            stored = await _begin_view(self._log, session_id)
            if stored.offset > kept.saved:
                kept.go_on_from(stored)
                return
        view = kept.view
        saving = _Saving(self._log, session_id, view)
        # Items first: while a turn is in memory, it is known at once if it has ended.
        for transcript in list(view.transcripts()):
            await saving.put_items_away(transcript)
        await saving.put_turns_away()
        body = encode_view(view)
        await self._log.save_snapshot(session_id, Snapshot(VIEW, view.offset, VIEW_VERSION, body))
        kept.saved = kept.tried = view.offset
        kept.size = len(body)

    def _let_go(self) -> None:
        """Evict the least recently read views until the cache fits its bound. The newest one always stays."""
        # There may be tens of thousands of views, and this runs for each read: its cost must not grow with their
        # number.
        for _ in range(len(self._kept) - 1):
            if self._size <= VIEW_BYTES:
                return
            session_id = next(iter(self._kept))
            if self._kept[session_id].folding.locked():
                self._kept.move_to_end(session_id)
            else:
                self._take_out(session_id)

    def _take_out(self, session_id: SessionId) -> None:
        kept = self._kept.pop(session_id, None)
        if kept is not None:
            self._size -= kept.counted


class _KeptView:
    """A view in memory."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.view = View()
        self.has_begun = False
        """True once the saved view has been requested from the log."""
        self.size = 0
        """Size of the saved view plus bytes folded into it since: an upper bound on its memory, roughly."""
        self.counted = 0
        """This view's share of the cache size."""
        self.saved = 0
        """The event up to which the view is saved in the log."""
        self.tried = 0
        """The event up to which saving was tried last."""
        self.folding = anyio.Lock()

    def go_on_from(self, view: View) -> None:
        """Continue from the view that another node has saved."""
        self.view, self.has_begun, self.size = view, True, 0
        self.saved = self.tried = view.offset

    def begin_anew(self) -> None:
        """Start over with an empty view, to fold the whole log."""
        self.view, self.has_begun, self.size, self.saved, self.tried = View(), True, 0, 0, 0


class _Saving:
    """Moves the oldest part of one view to the log. The view is not folded meanwhile."""

    def __init__(self, log: EventLog, session_id: SessionId, view: View) -> None:
        self._log = log
        self._session_id = session_id
        self._view = view

    async def put_items_away(self, transcript: Transcript) -> None:
        past, offset = transcript.past, self._view.offset
        transcript.settle()
        for number, page in transcript.changed_pages():
            await self._write({past.page_name(number, offset): _encode(page)})
            past.written_again(number, offset)
        left = await self._may_go(transcript)
        while pages := self._pages(past, transcript.stored, left):
            await self._write({name: body for name, body, _ in pages})
            for _, _, count in pages:
                transcript.put_away(count, offset)
                left -= count
        await self._write_keys(past)

    async def put_turns_away(self) -> None:
        past, left = self._view.past, self._view.turns_to_put_away()
        while pages := self._pages(past, self._view.turns.values(), left):
            await self._write({name: body for name, body, _ in pages})
            for _, _, count in pages:
                self._view.put_turns_away(count)
                left -= count
        await self._write_keys(past)

    def _pages(self, past: Paged[Any], entries: Iterable[Struct], most: int) -> list[tuple[str, bytes, int]]:
        """Return the next few full pages: name, body and number of entries."""
        waiting, number = islice(entries, most), len(past.known.firsts)
        found: list[tuple[str, bytes, int]] = []
        while len(found) < WRITTEN_AT_ONCE:
            body, count = _full_page(waiting)
            if not count:
                break
            found.append((past.page_name(number + len(found), self._view.offset), body, count))
        return found

    async def _may_go(self, transcript: Transcript) -> int:
        while True:
            try:
                return self._view.items_to_put_away(transcript)
            except PartNeeded as needed:
                if not await _load(self._log, self._session_id, needed):
                    return 0

    async def _write_keys(self, past: Paged[Any]) -> None:
        full = past.full_part(self._view.offset)
        if full is not None:
            await self._write(dict([full]))
            past.part_written(self._view.offset)

    async def _write(self, parts: dict[str, bytes]) -> None:
        """Write the pages concurrently, so that they share a commit."""
        async with anyio.create_task_group() as tasks:
            for name, body in parts.items():
                snapshot = Snapshot(name, self._view.offset, VIEW_VERSION, body)
                tasks.start_soon(self._log.save_snapshot, self._session_id, snapshot)


def _full_page(entries: Iterator[Struct]) -> tuple[bytes, int]:
    """Return the next entries as a page, and their count; `None` if they do not fill a page."""
    parts: list[bytes] = []
    size = 0
    for entry in entries:
        parts.append(_encode(entry))
        size += len(parts[-1])
        if len(parts) == PAGE_ENTRIES or size >= PAGE_BYTES:
            return b"[%b]" % b",".join(parts), len(parts)
    return b"", 0


def _let_pages_go(view: View) -> None:
    for transcript in view.transcripts():
        transcript.let_go(transcript.past.many())
    for number in view.past.many():
        view.past.let_go(number)


async def _load(log: EventLog, session_id: SessionId, needed: PartNeeded) -> bool:
    """Load the part that a view needs. Return false if the log does not have it any more."""
    part = await log.load_snapshot(session_id, needed.name)
    if part is None:
        return False
    try:
        needed.take(part.body)
    except msgspec.DecodeError:
        return False
    return True


async def _begin_view(log: EventLog, session_id: SessionId) -> View:
    """Return the saved view of a session, or an empty one."""
    snapshot = await log.load_snapshot(session_id, VIEW)
    view = None if snapshot is None else decode_view(snapshot.body, snapshot.version)
    return view or View()


async def _fold(log: EventLog, head: SessionHead, view: View, limits: Limits) -> None:
    while view.offset < head.head:
        await _fold_page(log, head, view, limits)


async def _fold_page(log: EventLog, head: SessionHead, view: View, limits: Limits) -> int:
    """Fold the next events, let other tasks run, and return the size of the events.

    Raises `PartNeeded` for a part that is lost.
    """
    page = await log.read(
        head.session_id,
        Position(head.epoch, view.offset),
        max_events=limits.page_events,
        max_bytes=limits.page_bytes,
    )
    for number, each in enumerate(page, 1):
        if number % FOLDED_AT_ONCE == 0:
            await checkpoint()
        event = decode(each.body)
        while True:
            try:
                view.apply(event)
                break
            except PartNeeded as needed:
                if not await _load(log, head.session_id, needed):
                    raise
    await checkpoint()
    return sum(len(each.body) for each in page)


async def stored_view(log: EventLog, session_id: SessionId) -> View | None:
    """Return the session's saved view, complete, as of some event in the past."""
    view = await _begin_view(log, session_id)
    for needed in view.missing():
        if not await _load(log, session_id, needed):
            return None
    view.make_whole()
    return view if view.offset else None
