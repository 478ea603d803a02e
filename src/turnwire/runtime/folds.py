"""The folds of a session, from its log: the newest snapshot, then what came after it.

The log is read page by page, so memory is bounded by what is folded and not by the length of the log. Nothing is
appended here: what an interrupted session owes is decided afterwards by the session itself (`Recover`).
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

from turnwire.core.codec import decode, decode_chain, decode_state, encode_state
from turnwire.core.events import TerminalEvent
from turnwire.core.evolve import evolve
from turnwire.core.receipts import Chain
from turnwire.core.state import NOTHING, STATE_VERSION, SessionState
from turnwire.core.view import PAGED_VERSION, VIEW_VERSION, View, decode_view, encode_view
from turnwire.core.view.paged import Paged
from turnwire.core.view.transcript import Transcript
from turnwire.errors import LogError, PartNeeded, SessionNotFound, TurnwireError
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead, Snapshot, Stored
from turnwire.runtime.session import STATE, Opened

VIEW = "view"
"""Name of the snapshot that holds a session's view."""
FOLDED_AT_ONCE: Final = 256
"""Events that are folded into a kept view before others get a turn: two or three milliseconds."""


SAVED_EVENTS: Final = 2048
"""Events after which a view is saved again: whoever reads it after a restart folds no more than these."""
LONG_EVENTS: Final = 32_768
"""Events of a long fold after which its view is saved in between, so that memory stays bounded."""
PAGE_ENTRIES: Final = 128
"""Turns or items of a page; less than a millisecond to read."""
PAGE_BYTES: Final = 256 * 1024
"""Bytes at which a page is full, however few they are."""
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
    """The session's state at its head. Raises `SessionNotFound`, `LogCorrupt`, `LogTooNew`.

    `head`: where a session stands that was left open. It was in use, so a short log of it has no snapshot.
    """
    is_short = head is not None and head.first == 1 and head.head <= SHORT
    head = head or await log.head(session_id)
    snapshot = None if is_short else await log.load_snapshot(session_id, STATE)
    state, offset, chain = NOTHING, 0, Chain()
    if snapshot is not None and (known := decode_state(snapshot.body, snapshot.version)) is not None:
        state, offset, chain = known, snapshot.offset, kept_chain(snapshot, head.first)
    if offset > head.head:
        # Its owner, another node, went on since the head was asked for. A state is never ahead of its place.
        head = await log.head(session_id)
    while chain.offset < head.head:
        page = await log.read(
            head.session_id,
            Position(head.epoch, chain.offset),
            max_events=min(limits.page_events, head.head - chain.offset),
            max_bytes=limits.page_bytes,
        )
        state = await _fold_states(state, chain, page, offset)
    if head.head - offset >= limits.snapshot_events:
        # It was lost, or never made: the next opening is not to take as long.
        with suppress(LogError, SessionNotFound):
            await log.save_snapshot(
                session_id, Snapshot(STATE, head.head, STATE_VERSION, encode_state(state, chain))
            )
    return Opened(session_id, head.epoch, state, head.head, chain)


def kept_chain(snapshot: Snapshot, first: int = 1) -> Chain:
    """The chain in the snapshot of a state; one that begins behind it if there is none to go on with.

    What is behind its offset is read to open the session. `first`: the oldest event that the log has.
    """
    mark = decode_chain(snapshot.body)
    if mark is None or mark.offset < first - 1:
        return Chain(snapshot.offset + 1)
    return Chain.at(mark)


async def _fold_states(state: SessionState, chain: Chain, page: list[Stored], known: int) -> SessionState:
    """The state behind the events of a page, of which it has those up to `known`. The chain takes all of them."""
    begin = 0
    for number, each in enumerate(page, 1):
        if number % FOLDED_AT_ONCE == 0:
            await checkpoint()
        if each.offset <= known:
            continue
        event = decode(each.body)
        state = evolve(state, event)
        if isinstance(event, TerminalEvent):
            chain.pass_end(each.offset, event.receipt)
            begin = number
    chain.take([each.body for each in page[begin:]])
    return state


class KeptViews:
    """The views of the sessions that were read last, so that the next look folds only what came since.

    A view is shared by all who read it, and grows: what is taken of it is taken before the next await. Only its end
    is in memory, whatever the length of the log (`core.view.paged`). There is one instance per log: it writes what
    it puts away, first the pages, then the view that refers to them. Where nodes share the log, each has one. Pages
    are named by their event, and who finds that another node has saved goes on from that: so two who save at one
    event began with the same, and write the same.
    """

    def __init__(
        self, log: EventLog, limits: Limits, tasks: TaskGroup | None = None, *, is_shared: bool = False
    ) -> None:
        """`tasks`: where a view is put into the log, so that whoever reads it need not wait for that."""
        self._is_shared = is_shared
        self._log = log
        self._limits = limits
        self._tasks = tasks
        self._saved_events = min(SAVED_EVENTS, limits.snapshot_events)
        self._kept: OrderedDict[SessionId, _KeptView] = OrderedDict()
        """The one that was read last at the end."""
        self._size = 0
        """Of all of them."""

    async def newest(self, session_id: SessionId) -> tuple[View, Epoch]:
        """The view up to the newest event, and the life of the log it is of. Raises `SessionNotFound`."""
        kept = await self._newest(session_id)
        return kept.view, kept.epoch

    async def read(self, session_id: SessionId, look: Callable[[View], T]) -> T:
        """What `look` finds in the newest view, which it may ask for anything; it changes nothing.

        Each time it needs a part that is not in memory, it begins again. Raises `SessionNotFound`.
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
        """A view with everything in memory, for the caller alone. It takes as long as the transcript is."""
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
        """Whether a view of the session is in memory."""
        return session_id in self._kept

    def forget(self, session_id: SessionId) -> None:
        """Let a view go that nobody will look at soon, unless somebody does now."""
        kept = self._kept.get(session_id)
        if kept is not None and not kept.folding.locked():
            self._take_out(session_id)

    async def keep(self, session_id: SessionId) -> int:
        """Put the view into the log as it is now; returns the event up to which the log holds one."""
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
            # It is deleted, or what the view would go on with is trimmed: whoever comes next begins anew.
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
                kept.begin_anew()  # what it needs is lost; the log has all of it
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
                # A session that got this id meanwhile is another one.
                if (await self._log.head(session_id)).epoch == kept.epoch:
                    await self._try_to_save(session_id, kept)
        except SessionNotFound:
            pass
        except Exception:  # whatever it is, the log has the events
            logger.exception("a view was not kept", extra={"event": "snapshot_not_kept"})

    async def _try_to_save(self, session_id: SessionId, kept: _KeptView) -> None:
        """What cannot be saved stays in memory: it is a matter of time only."""
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
        # Items first: whether the turn of one has ended is known at once while that is in memory.
        for transcript in list(view.transcripts()):
            await saving.put_items_away(transcript)
        await saving.put_turns_away()
        version = VIEW_VERSION if view.is_whole else PAGED_VERSION
        body = encode_view(view)
        await self._log.save_snapshot(session_id, Snapshot(VIEW, view.offset, version, body))
        kept.saved = kept.tried = view.offset
        kept.size = len(body)

    def _let_go(self) -> None:
        """Those that were read longest ago, until the others are few enough; never the one that was read now."""
        # There may be tens of thousands, and this is done for each read: nothing here may grow with them.
        for _ in range(len(self._kept) - 1):
            if self._size <= self._limits.view_bytes:
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
        """Whether what the log keeps of it was asked for."""
        self.size = 0
        """Bytes that were folded into it since it was saved, and what that took: it holds about as many at most."""
        self.counted = 0
        """What of it is in the size of all."""
        self.saved = 0
        """The event up to which the log keeps it."""
        self.tried = 0
        """The event up to which that was tried last."""
        self.folding = anyio.Lock()

    def go_on_from(self, view: View) -> None:
        """What another node has saved."""
        self.view, self.has_begun, self.size = view, True, 0
        self.saved = self.tried = view.offset

    def begin_anew(self) -> None:
        """Fold the whole log."""
        self.view, self.has_begun, self.size, self.saved, self.tried = View(), True, 0, 0, 0


class _Saving:
    """Puts the front of one view away. Nothing else folds it meanwhile."""

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
        """The next few full pages: name, body and number of entries."""
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
        """Together, so that they share a commit."""
        async with anyio.create_task_group() as tasks:
            for name, body in parts.items():
                snapshot = Snapshot(name, self._view.offset, PAGED_VERSION, body)
                tasks.start_soon(self._log.save_snapshot, self._session_id, snapshot)


def _full_page(entries: Iterator[Struct]) -> tuple[bytes, int]:
    """The next entries as a page, and how many; none if they do not fill one."""
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
    """Give a view the part that it needs. False if the log does not have it any more."""
    part = await log.load_snapshot(session_id, needed.name)
    if part is None:
        return False
    try:
        needed.take(part.body)
    except msgspec.DecodeError:
        return False
    return True


async def _begin_view(log: EventLog, session_id: SessionId) -> View:
    """The view that the log keeps of a session, else an empty one."""
    snapshot = await log.load_snapshot(session_id, VIEW)
    view = None if snapshot is None else decode_view(snapshot.body, snapshot.version)
    if snapshot is None or view is None:
        return View()
    view.offset = snapshot.offset  # one that an older version kept does not say it
    return view


async def _fold(log: EventLog, head: SessionHead, view: View, limits: Limits) -> None:
    while view.offset < head.head:
        await _fold_page(log, head, view, limits)


async def _fold_page(log: EventLog, head: SessionHead, view: View, limits: Limits) -> int:
    """Fold the next events, and give others a turn; returns their size. Raises `PartNeeded` for what is lost."""
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


async def open_view(log: EventLog, session_id: SessionId, limits: Limits) -> tuple[View, int]:
    """The session's whole view and the offset it is folded to, where nobody keeps views."""
    view = await KeptViews(log, limits).whole(session_id)
    return view, view.offset


async def stored_view(log: EventLog, session_id: SessionId) -> View | None:
    """The whole view that the log keeps of a session, as of some event in the past."""
    view = await _begin_view(log, session_id)
    for needed in view.missing():
        if not await _load(log, session_id, needed):
            return None
    view.make_whole()
    return view if view.offset else None
