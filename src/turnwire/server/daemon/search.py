"""Search: find sessions by the text of their messages and tool calls, by title and by directory.

Theory of operation
-------------------
A session is indexed at the end of a turn. The node calls `take` with new events, which only marks the session as
pending; a worker then reads the events after the session's cursor in the text index and stores the texts with the
new cursor in one transaction. So there is no queue to lose: at the start, and when another node may have appended
unnoticed, the cursors are compared with the log, and sessions that differ are pending.

The worker waits a moment first, so that it does not compete with a busy session. A search does not wait for the
worker: it indexes pending sessions itself, up to `CATCH_UP_S`. Newest first, because a full rebuild may be pending.

Texts are items of the session's view, so a message is one text, however many chunks it came in. Thoughts and tool
output are not indexed. Pending sessions count as candidates by name, so a new title is found at once.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias, cast

import anyio
from msgspec import Struct

from turnwire.clock import Clock
from turnwire.errors import LogError, PositionLost, SessionNotFound, TurnwireError
from turnwire.ids import ChildId, Epoch, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.projections.view import AnyItem, Message, MessageRole, ToolCall, View
from turnwire.projections.view.transcript import Transcript, join_text
from turnwire.runtime.folds import KeptViews
from turnwire.server.daemon import text_index
from turnwire.server.daemon.text_index import MARK, SNIPPET_CHARACTERS, UNMARK, Cursor, Text, TextIndex
from turnwire.session import events as ev
from turnwire.session.codec import STORED_UPDATE, stored_prefix

logger = logging.getLogger(__name__)

PAUSE_S: Final = 1.0
"""The worker waits this long before it indexes, and indexes a busy session at most this often."""
CATCH_UP_S: Final = 2.0
"""Longest time that a search spends on indexing before it looks."""
FAILED_S: Final = 30.0
"""Wait before an index that failed is built again, such as on a full disk."""
MAX_MATCHES: Final = 3
"""Matches that are shown of one session."""
_SLICE: Final = 256
"""Items that are read before other tasks run: about two milliseconds."""

Role: TypeAlias = Literal["user", "agent", "tool"]


class Match(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A place in a message or title where the words of a search were found."""

    role: Role
    """The author of the text: `user` or the agent, or the title of a tool call."""
    snippet: str
    marks: list[tuple[int, int]]
    """Start and end of each matching word in the snippet, counted in UTF-16 units as in JavaScript."""
    event_id: int | None = None
    """The first event of the text."""
    prompt_id: PromptId | None = None
    """The turn of the text."""
    child_id: ChildId | None = None
    """The child session of the text."""


class Candidates(NamedTuple):
    """Sessions that a search may find."""

    said: set[SessionId]
    """Sessions with the words in a message or tool call."""
    named: set[SessionId]
    """Sessions that have the words in their title or directory, or may have them: the entry decides."""


class Search:
    """The text index of a daemon, and the sessions that are not indexed yet."""

    def __init__(
        self, index: TextIndex | None, path: Path | None, log: EventLog, clock: Clock, limits: Limits
    ) -> None:
        self._index = index
        """`None` without FTS5: then only titles and directories are found."""
        self._path = path
        self._log = log
        self._clock = clock
        self._limits = limits
        self._views: KeptViews | None = None
        self._pending: dict[SessionId, bool] = {}
        """Sessions to index, the newest last, and whether each is in use."""
        self._current: set[SessionId] = set()
        """The session that is being indexed, if any."""
        self._must_compare = False
        """True if sessions may have changed without a call of `take`."""
        self._has_failed = False
        self._work = anyio.Event()
        self._indexing = anyio.Lock()

    @property
    def is_on(self) -> bool:
        """Return whether messages are found, not only titles."""
        return self._index is not None

    # -- what happens --------------------------------------------------------------------------------------

    def take(self, session_id: SessionId, events: Sequence[ev.AnyEvent]) -> None:
        """Mark the session as pending if a turn has ended, or something happened outside of turns."""
        if any(map(_ends_turn, events)):
            self._mark(session_id)

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        """Mark sessions to which other nodes have appended. Part of `HeadListener`."""
        for session_id in heads:
            self._mark(session_id)

    def missed(self) -> None:
        """Compare all sessions: notifications of other nodes were lost. Part of `HeadListener`."""
        self._must_compare = True
        self._work.set()

    def _mark(self, session_id: SessionId, *, in_use: bool = True) -> None:
        if self._index is not None:
            self._pending[session_id] = self._pending.pop(session_id, False) or in_use
            self._work.set()

    async def forget(self, session_id: SessionId) -> None:
        """Remove a session that was deleted from the log."""
        self._pending.pop(session_id, None)
        if self._index is None:
            return
        try:
            await self._index.forget(session_id)
        except sqlite3.Error as error:
            # No session of the log has its epoch, so it is never shown.
            self._failed(error)

    # -- asking --------------------------------------------------------------------------------------------

    async def candidates(self, words: Sequence[str]) -> Candidates | None:
        """Return the sessions that may have the words, or `None` if every session may."""
        if self._index is None:
            return None
        try:
            with anyio.move_on_after(CATCH_UP_S):
                await self.catch_up()
            said = await self._index.find(words)
        except LogError:
            return None  # the worker tries again
        except sqlite3.Error as error:
            self._failed(error)
            return None
        small = [each.casefold() for each in words]
        named = {name for name, each in self._index.cursors.items() if all(word in each.names for word in small)}
        return Candidates(said, named.union(self._pending, self._current))

    def epoch_of(self, session_id: SessionId) -> Epoch | None:
        """Return the epoch of the log whose texts are indexed under this session id."""
        cursor = None if self._index is None else self._index.cursors.get(session_id)
        return None if cursor is None else cursor.epoch

    async def matches(self, words: Sequence[str], among: Collection[SessionId]) -> dict[SessionId, list[Match]]:
        """Return the matches of the words in each of these sessions, the newest first."""
        if self._index is None:
            return {}
        try:
            return {
                each: [_match(text) for text in await self._index.matches(words, each, MAX_MATCHES)]
                for each in among
            }
        except sqlite3.Error as error:
            self._failed(error)
            return {}

    # -- indexing ------------------------------------------------------------------------------------------

    async def run(self, views: KeptViews) -> None:
        """Index pending sessions until cancelled."""
        self._views = views
        self._work.set()
        while self._index is not None:
            await self._work.wait()
            await self._clock.sleep(PAUSE_S)
            self._work = anyio.Event()
            try:
                await self.catch_up()
            except LogError:
                self._work.set()
            except sqlite3.Error as error:
                self._failed(error)
            if self._has_failed:
                await self._clock.sleep(FAILED_S)
                await self._rebuild()

    async def catch_up(self) -> None:
        """Index everything that is pending. Does nothing before `run`. Raises `sqlite3.Error`, `LogError`."""
        async with self._indexing:
            while self._index is not None and self._views is not None:
                if self._must_compare:
                    await self.compare()
                    self._must_compare = False
                if not self._pending:
                    return
                session_id, in_use = self._pending.popitem()
                self._current.add(session_id)
                try:
                    await self._index_session(self._index, session_id, self._views)
                except BaseException:
                    self._mark(session_id, in_use=in_use)
                    raise
                finally:
                    self._current.clear()
                if not in_use:
                    # After a start there may be thousands, and no client has asked for them.
                    self._views.forget(session_id)

    async def compare(self) -> None:
        """Mark sessions that are not indexed up to their head; remove those that the log does not have.

        Runs at the start before anything is appended: it finds logs that are shorter than their cursor.
        """
        index = self._index
        if index is None:
            return
        gone = set(index.cursors)
        after: SessionId | None = None
        while heads := await self._log.sessions(after=after):
            for head in heads:
                cursor = index.cursors.get(head.session_id)
                # A log that was restored from a backup, or lost its end in a power cut, is indexed from scratch.
                if cursor is not None and cursor.epoch == head.epoch and cursor.offset <= head.head:
                    gone.discard(head.session_id)
                if cursor is None or (cursor.epoch, cursor.offset) != (head.epoch, head.head):
                    self._mark(head.session_id, in_use=self._views is not None and self._views.has(head.session_id))
            after = heads[-1].session_id
            await anyio.lowlevel.checkpoint()
        for session_id in gone:
            await index.forget(session_id)

    async def _index_session(self, index: TextIndex, session_id: SessionId, views: KeptViews) -> None:
        try:
            await self._read_on(index, session_id, views)
            # It may have been deleted, and created again, in the meantime.
            if (await self._log.head(session_id)).epoch != self.epoch_of(session_id):
                self._mark(session_id)
        except SessionNotFound:
            await index.forget(session_id)
        except TurnwireError as error:
            extra = {"event": "text_index", "session": session_id, "code": error.code}
            logger.warning("a session cannot be read for the search", extra=extra)

    async def _read_on(self, index: TextIndex, session_id: SessionId, views: KeptViews) -> None:
        head = await self._log.head(session_id)
        cursor = index.cursors.get(session_id)
        if cursor is not None and cursor.epoch != head.epoch:
            await index.forget(session_id)
            cursor = None
        if cursor is not None and not await self._has_text(cursor, head):
            await index.save(session_id, head.epoch, head.head, cursor.names, ())
            return
        view, epoch = await views.newest(session_id)
        offset, names = view.offset, f"{view.session.title or ''}\n{view.session.cwd}".casefold()
        after = 0 if cursor is None else cursor.offset
        # The view grows in the meantime: read the part in memory first. Later changes are marked again.
        newest, pages = list(_in_memory(view)), list(_pages(view, after))
        for each in pages:
            found = await views.read(session_id, partial(_on_page, each))
            await index.save(session_id, epoch, after, names, await _texts(found, after))
        await index.save(session_id, epoch, offset, names, await _texts(newest, after))

    async def _has_text(self, cursor: Cursor, head: SessionHead) -> bool:
        """Return whether an event after the cursor may change a text or a name. If not, no fold is needed."""
        limits, offset = self._limits, cursor.offset
        while offset < head.head:
            at = Position(head.epoch, offset)
            try:
                page = await self._log.read(
                    head.session_id, at, max_events=limits.page_events, max_bytes=limits.page_bytes
                )
            except PositionLost:
                return True  # trimmed; the view knows more
            if any(each.body.startswith(_TEXT_EVENTS) for each in page):
                return True
            offset = page[-1].offset
        return False

    def _failed(self, error: Exception) -> None:
        logger.warning(
            "the text index failed; it is built again, and meanwhile search finds titles and directories",
            extra={"event": "text_index", "reason": type(error).__name__},
        )
        self._has_failed = True
        self._work.set()

    async def _rebuild(self) -> None:
        async with self._indexing:
            if self._index is not None:
                await self._index.aclose()
                text_index.remove(self._path)
            self._index = await TextIndex.open(self._path)
            self._has_failed = False
            self.missed()

    async def aclose(self) -> None:
        if self._index is not None:
            with anyio.CancelScope(shield=True):
                await self._index.aclose()


@asynccontextmanager
async def open_search(path: Path | None, log: EventLog, clock: Clock, limits: Limits) -> AsyncGenerator[Search]:
    """Open the search over a log, with its index in a file, or in memory if `path` is None. Raises `LogError`."""
    search = Search(await TextIndex.open(path), path, log, clock, limits)
    try:
        await search.compare()
        yield search
    finally:
        await search.aclose()


# -- texts ---------------------------------------------------------------------------------------------------

_ENDS: Final = (ev.TurnCompleted, ev.TurnFailed, ev.SessionCreated, ev.SessionRenamed)
_TEXT_EVENTS: Final = (
    STORED_UPDATE,
    *map(stored_prefix, (ev.SessionCreated, ev.SessionRenamed, ev.UserMessage, ev.PermissionRequested)),
)


def _ends_turn(event: ev.AnyEvent) -> bool:
    return isinstance(event, _ENDS) or (isinstance(event, ev.SessionUpdated) and event.prompt_id is None)


class _Found(NamedTuple):
    item: AnyItem
    child_id: ChildId | None


async def _texts(found: Sequence[_Found], after: int) -> list[Text]:
    """Return the texts among items that changed after an event."""
    texts: list[Text] = []
    for number, (item, child_id) in enumerate(found, 1):
        if number % _SLICE == 0:
            await anyio.lowlevel.checkpoint()
        if item.last_event_id <= after:
            continue
        if isinstance(item, ToolCall):
            texts.append(Text(item.first_event_id, item.title or "", "tool", item.prompt_id, child_id))
        elif isinstance(item, Message) and item.role is not MessageRole.THOUGHT:
            role = "user" if item.role is MessageRole.USER else "agent"
            texts.append(Text(item.first_event_id, join_text(item.content), role, item.prompt_id, child_id))
    return texts


def _transcripts(view: View) -> Iterator[tuple[ChildId | None, Transcript]]:
    yield None, view.transcript
    for child_id, child in view.children.items():
        yield child_id, child.view.transcript


def _in_memory(view: View) -> Iterator[_Found]:
    for child_id, transcript in _transcripts(view):
        for item in transcript.items:
            yield _Found(item, child_id)


def _pages(view: View, after: int) -> Iterator[tuple[ChildId | None, int]]:
    """Return the stored pages that may have changed after an event."""
    for child_id, transcript in _transcripts(view):
        for number, offset in enumerate(transcript.past.known.offsets):
            if offset > after:
                yield child_id, number


def _on_page(wanted: tuple[ChildId | None, int], view: View) -> list[_Found]:
    for child_id, transcript in _transcripts(view):
        if child_id == wanted[0]:
            transcript.settle()
            return [_Found(item, child_id) for item in transcript.past.page(wanted[1])]
    return []


def _match(found: Text) -> Match:
    snippet, marks = unmarked(found.text)
    return Match(
        role=cast("Role", found.role),
        snippet=snippet,
        marks=marks,
        event_id=found.event_id,
        prompt_id=found.prompt_id,
        child_id=found.child_id,
    )


def unmarked(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a snippet on one line without marks, and where they were in UTF-16 units."""
    line = " ".join(marked.split())
    first = line.find(MARK)
    if first > SNIPPET_CHARACTERS // 2:
        line = "…" + line[first - SNIPPET_CHARACTERS // 2 :]
    parts = [""]
    for each in line.replace(UNMARK, MARK).split(MARK):
        parts.append(each[: max(0, SNIPPET_CHARACTERS - sum(map(len, parts)))])
    ends = [_utf16_units("".join(parts[:number])) for number in range(1, len(parts) + 1)]
    # Parts alternate: plain text, then a match.
    return "".join(parts), [(start, end) for start, end in list(pairwise(ends))[1::2] if end > start]


def _utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
