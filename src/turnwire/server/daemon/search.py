"""Search: which sessions have given words in what was said, in their title or their directory, and where.

Takes the log and the views folded from it; keeps the text index behind them. Never in the way of a session: what
happens is only noted here, and read from the log some time later, as every other reader does.

Theory of operation
-------------------
The hard parts are a daemon that dies between a fact and its place in the index, and a log that is written faster
than it is indexed. The strategy is that of the webhooks: there is no queue. The index keeps a cursor for each
session, written with the texts up to there; what is in memory is only which sessions may be behind. That is heard
from the node, and found again at the start by comparing every cursor with its head. A round looks at all that were
noted meanwhile, so a busy session costs one look a round, however much it says.

Turns come first: a round begins when nothing has happened for a moment, or when much waits. Whoever searches is not
to know of it, so a search lets a round begin at once and waits for its end, unless that takes too long. It does not
wait for what the index lacked when the daemon started: that may be everything.

Where nodes share the log, each has an index of all of it. Of sessions elsewhere it hears by the bell; what it may
have missed it finds as at the start.

Texts are items of the session's view, so a message is one text, however many chunks it came in. An item that
changed behind the cursor is written again.

    S1  What the log holds is found; also over SIGKILL, and after a while for a log that had no index.
    S2  A session that was deleted is not found, nor what was said in another one that had its id.
    S3  A title or a directory is found at once: sessions that may be behind are candidates; their entry decides.
    S4  Thoughts, and what tools give out, are not searched.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import unicodedata
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import anyio
from msgspec import Struct

from turnwire.core import events as ev
from turnwire.core.codec import STORED_UPDATE, stored_prefix
from turnwire.core.view import AnyItem, Message, MessageRole, ToolCall, View
from turnwire.core.view.transcript import Transcript, join_text
from turnwire.errors import LogError, PositionLost, SessionNotFound, TurnwireError
from turnwire.ids import ChildId, Epoch, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.runtime.clock import Clock
from turnwire.runtime.folds import KeptViews
from turnwire.server.daemon.text_index import Cursor, Text, TextIndex

logger = logging.getLogger(__name__)

QUIET_S: Final = 1.0
"""For how long nothing has happened before a round begins by itself."""
WAITING_S: Final = 30.0
"""How long a round waits for that at most."""
CATCH_UP_S: Final = 2.0
"""How long a search waits for a round: what the round has not read by then is not found."""
FAILED_S: Final = 30.0
"""Before the index is tried again that could not be written, such as on a full disk."""
MOST_MATCHES: Final = 3
"""Of one session."""
SNIPPET: Final = 160
"""Characters of a text that are shown, about."""
BEFORE: Final = 40
"""Of them before the first word."""
MOST_PLACES: Final = 1000
"""Of the words in one text, among which the best part is sought."""
_SLICE: Final = 256
"""Items that are looked at before others get a turn: a millisecond or two."""
_UNNUMBERED: Final = 1 << 31
"""Places of items that do not know their event, because an older version kept their view."""

_CHILD_PLACES: Final = 22
"""Bits of such a place in a child session."""
SPOKEN: Final = 8192
"""Updates of a running turn after which it is read although nothing else happens."""
MUCH: Final = 32 * SPOKEN
"""Events of all sessions after which a round begins although they go on: a burst is over sooner."""

Role: TypeAlias = Literal["user", "agent", "tool"]


class Match(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where the words of a search are in what was said."""

    role: Role
    """Whose words they are: a user's or the agent's, or the title of a tool call."""
    snippet: str
    marks: list[tuple[int, int]]
    """Where in the snippet each word begins and ends, counted in UTF-16 units as JavaScript does."""
    event_id: int | None = None
    """The event that it began with."""
    prompt_id: PromptId | None = None
    """The turn in which it was said."""
    child_id: ChildId | None = None
    """The child session in which it was said."""


class Candidates(NamedTuple):
    """Which sessions a search may find."""

    said: set[SessionId]
    """The words were said in them."""
    named: set[SessionId]
    """They are in their names, or may be: the entry decides."""


class Search:
    """The words of all sessions of a daemon."""

    def __init__(self, index: TextIndex | None, log: EventLog, clock: Clock, limits: Limits) -> None:
        """Without an index it finds nothing."""
        self._index = index
        self._log = log
        self._clock = clock
        self._limits = limits
        self._behind: dict[SessionId, int] = {}
        """Sessions of which something may not be in the index, and how often that was noted."""
        self._fresh: set[SessionId] = set()
        """Those of them to which something has happened since the last round began."""
        self._events = 0
        """What happened to them."""
        self._spoken: dict[SessionId, int] = {}
        """Updates of running turns since something was noted."""
        self._is_running = False
        self._begun = self._ended = 0
        """Rounds."""
        self._has_missed = False
        """Sessions may have grown on other nodes, unheard."""
        self._news = anyio.Event()
        self._due = anyio.Event()
        """A round shall begin now."""
        self._moved = anyio.Event()
        """A round has ended, or has read a session."""

    @property
    def is_on(self) -> bool:
        """Whether what was said is found."""
        return self._index is not None

    def take(self, session_id: SessionId, events: Sequence[ev.AnyEvent]) -> None:
        """A session has new events. A node's `watch`; what a running turn says waits for anything else."""
        if self._index is None:
            return
        spoken = self._spoken.pop(session_id, 0) + len(events)
        if spoken < SPOKEN and all(map(_is_speech, events)):
            self._spoken[session_id] = spoken
            return
        self._note(session_id)
        self._fresh.add(session_id)
        self._events += spoken
        if self._events >= MUCH:
            self._due.set()

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        """Other nodes have appended to these sessions, or deleted them. A `HeadListener` of the bell."""
        if self._index is not None:
            for session_id in heads:
                self._note(session_id)
            self._fresh.update(heads)
            self._events += len(heads)

    def missed(self) -> None:
        """They may have, unheard."""
        self._has_missed = self._index is not None
        self._news.set()

    async def begin(self) -> None:
        """Forget what the log does not have, and note what the index does not. Raises `LogError`."""
        if self._index is None:
            return
        lost = dict(self._index.cursors)
        after: SessionId | None = None
        while heads := await self._log.sessions(after=after):
            for head in heads:
                cursor = self._index.cursors.get(head.session_id)
                # A log that was restored, or lost its end with the power, is read anew.
                if cursor is not None and cursor.epoch == head.epoch and cursor.offset <= head.head:
                    del lost[head.session_id]
                if cursor is None or cursor.offset != head.head or cursor.epoch != head.epoch:
                    self._note(head.session_id)
            after = heads[-1].session_id
            await anyio.lowlevel.checkpoint()
        for session_id in lost:
            await self._forget(session_id)

    async def run(self, views: KeptViews) -> None:
        """Index what happens, for ever."""
        index = self._index
        if index is None:
            return
        self._is_running = True
        while True:
            while not (self._behind or self._has_missed or index.is_damaged):
                self._news = anyio.Event()
                await self._news.wait()
            try:
                if index.is_damaged:
                    await index.renew()
                    await self.begin()
                await self._find_missed()
                if len(self._behind) == len(self._fresh):
                    await self._pause()
                await self._round(index, views)
            except sqlite3.Error as error:
                self._failed("the text index cannot be written; it is tried again", error)
                await self._clock.sleep(0 if index.is_damaged else FAILED_S)

    async def _find_missed(self) -> None:
        if self._has_missed:
            self._has_missed = False
            try:
                await self.begin()
            except LogError:
                self._has_missed = True
                await self._clock.sleep(QUIET_S)

    async def settled(self) -> None:
        """Return once nothing that has happened is missing in the index."""
        while self._behind or self._has_missed:
            if self._fresh:
                self._due.set()
            await self._moved.wait()

    async def forget(self, session_id: SessionId) -> None:
        """A session was deleted from the log."""
        self._behind.pop(session_id, None)
        self._fresh.discard(session_id)
        await self._forget(session_id)

    # -- asking --------------------------------------------------------------------------------------------

    async def candidates(self, words: Sequence[str]) -> Candidates | None:
        """The sessions that may have the words. None if all of them may."""
        if self._index is None:
            return None
        with anyio.move_on_after(CATCH_UP_S):
            await self._catch_up()
        small = [each.casefold() for each in words]
        named = {name for name, each in self._index.cursors.items() if all(word in each.names for word in small)}
        try:
            said = await self._index.find(words)
        except sqlite3.Error as error:
            self._failed("the text index cannot be read; titles and directories are searched", error)
            return None
        return Candidates(said, named.union(self._behind))

    def epoch_of(self, session_id: SessionId) -> Epoch | None:
        """The life of the log whose words are known."""
        cursor = None if self._index is None else self._index.cursors.get(session_id)
        return None if cursor is None else cursor.epoch

    async def matches(self, words: Sequence[str], among: Collection[SessionId]) -> dict[SessionId, list[Match]]:
        """Where the words were said in each of these sessions, the newest first."""
        if self._index is None or not among:
            return {}
        try:
            found = await self._index.texts(words, among, MOST_MATCHES)
        except sqlite3.Error as error:
            self._failed("the text index cannot be read; where the words are is not told", error)
            return {}
        return await anyio.to_thread.run_sync(_matches, found, words)

    def _failed(self, words: str, error: sqlite3.Error) -> None:
        logger.warning(words, extra={"event": "text_index", "reason": type(error).__name__})
        self._news.set()  # it may be damaged

    # -- rounds --------------------------------------------------------------------------------------------

    async def _pause(self) -> None:
        """Return when nothing has happened for a moment, when it is time or when a round is wanted."""
        since = self._clock.monotonic()
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                seen = -1
                while seen != self._events and self._clock.monotonic() - since < WAITING_S:
                    seen = self._events
                    await self._clock.sleep(QUIET_S)
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait)
            await self._due.wait()
            tasks.cancel_scope.cancel()

    async def _round(self, index: TextIndex, views: KeptViews) -> None:
        """Index what has happened, and after it, one by one, what was lacking before. Raises `sqlite3.Error`."""
        self._begun += 1
        self._due = anyio.Event()
        self._events = 0
        fresh, self._fresh = self._fresh, set()
        try:
            for session_id in list(fresh):
                await self._index_session(index, session_id, views)
                fresh.remove(session_id)
        finally:
            self._fresh |= fresh
        self._ended = self._begun
        self._tell()
        for session_id in [each for each in self._behind if each not in self._fresh]:
            if self._due.is_set():
                return
            was_kept = views.has(session_id)
            await self._index_session(index, session_id, views)
            if not was_kept:
                # There may be thousands; to look through so many for garbage would hold the loop for long.
                views.forget(session_id)
            self._tell()

    def _tell(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    async def _catch_up(self) -> None:
        """Return once what had happened before this call is in the index; at once if nobody reads yet."""
        wanted = self._begun + bool(self._fresh)
        while self._is_running and self._ended < wanted:
            if self._begun < wanted:
                self._due.set()
            await self._moved.wait()

    # -- one session ---------------------------------------------------------------------------------------

    def _note(self, session_id: SessionId) -> None:
        self._behind[session_id] = self._behind.get(session_id, 0) + 1
        self._news.set()

    async def _index_session(self, index: TextIndex, session_id: SessionId, views: KeptViews) -> None:
        """Read on from the cursor. Raises `sqlite3.Error`; then it is still to be done."""
        noted = self._behind.get(session_id)
        try:
            await self._read_on(index, session_id, views)
            # It may have been deleted, or made again, while this was written.
            if (await self._log.head(session_id)).epoch != self.epoch_of(session_id):
                return
        except SessionNotFound:
            await self.forget(session_id)
        except TurnwireError as error:
            extra = {"event": "text_index", "session": session_id, "code": error.code}
            logger.warning("what was said in a session cannot be read for the search", extra=extra)
        if self._behind.get(session_id) == noted:
            self._behind.pop(session_id, None)

    async def _read_on(self, index: TextIndex, session_id: SessionId, views: KeptViews) -> None:
        head = await self._log.head(session_id)
        cursor = index.cursors.get(session_id)
        if cursor is not None and cursor.epoch != head.epoch:
            cursor = None  # another session has its id now
        if cursor is not None and not await self._tells(cursor, head):
            await index.write(session_id, head.epoch, head.head, cursor.names, ())
            return
        view, epoch = await views.newest(session_id)
        offset, names = view.offset, _names(view)
        after = 0 if cursor is None else cursor.offset
        # Others fold the view on meanwhile: what is in memory now is taken, and what they change comes again.
        newest, pages = list(_in_memory(view)), list(_pages(view, after))
        for each in pages:
            found = await views.read(session_id, partial(_on_page, each))
            await index.write(session_id, epoch, after, names, await _texts(found, after))
        await index.write(session_id, epoch, offset, names, await _texts(newest, after))

    async def _tells(self, cursor: Cursor, head: SessionHead) -> bool:
        """Whether an event behind the cursor may change a text or a name."""
        limits, offset = self._limits, cursor.offset
        while offset < head.head:
            try:
                page = await self._log.read(
                    head.session_id,
                    Position(head.epoch, offset),
                    max_events=limits.page_events,
                    max_bytes=limits.page_bytes,
                )
            except PositionLost:
                return True  # it was trimmed; the view knows more
            if any(_may_tell(each.body) for each in page):
                return True
            offset = page[-1].offset
        return False

    async def _forget(self, session_id: SessionId) -> None:
        if self._index is None:
            return
        try:
            await self._index.forget(session_id)
        except sqlite3.Error as error:
            # Its id and epoch are of no session of the log: nobody is shown it, and the next start tries again.
            extra = {"event": "text_index", "session": session_id, "reason": type(error).__name__}
            logger.warning("what was said in a deleted session is still in the text index", extra=extra)


@asynccontextmanager
async def open_search(path: Path | None, log: EventLog, clock: Clock, limits: Limits) -> AsyncGenerator[Search]:
    """The search over a log, whose index is in this file, or in memory. Raises `LogError`."""
    index = await TextIndex.open(path)
    try:
        search = Search(index, log, clock, limits)
        await search.begin()
        yield search
    finally:
        if index is not None:
            await index.aclose()


# -- what is text --------------------------------------------------------------------------------------------

_NAMES_SESSION: Final = "session_info_update"
_KINDS: Final = (b'_message"', b'_message_chunk"', b'"tool_call', f'"{_NAMES_SESSION}"'.encode())
_TELLING: Final = tuple(
    stored_prefix(each, any_version=True)
    for each in (ev.SessionCreated, ev.SessionRenamed, ev.UserMessage, ev.PermissionRequested)
)
_HEAD_BYTES: Final = 128
"""Where the kind of a stored update is, at the latest."""


def _is_speech(event: ev.AnyEvent) -> bool:
    """Whether it is one of the many updates of a running turn."""
    return isinstance(event, ev.SessionUpdated) and event.prompt_id is not None and event.kind != _NAMES_SESSION


def _may_tell(body: bytes) -> bool:
    if body.startswith(STORED_UPDATE):
        return any(each in body[:_HEAD_BYTES] for each in _KINDS)
    return body.startswith(_TELLING)


def _names(view: View) -> str:
    return f"{view.session.title or ''}\n{view.session.cwd}".casefold()


class _Placed(NamedTuple):
    """An item of a session, or of one of its children."""

    place: int
    item: AnyItem
    child_id: ChildId | None


async def _texts(items: Iterable[_Placed], after: int) -> list[Text]:
    """What is text among items and changed after an event; after none it is all of it."""
    found: list[Text] = []
    for number, (place, item, child_id) in enumerate(items, 1):
        if number % _SLICE == 0:
            await anyio.lowlevel.checkpoint()
        if not after or item.last_event_id > after:
            role, text = _text(item)
            if role is not None:
                found.append(Text(item.first_event_id or _UNNUMBERED + place, text, role, item.prompt_id, child_id))
    return found


def _transcripts(view: View) -> Iterator[tuple[ChildId | None, Transcript, int]]:
    """Each transcript, and the place of its first item among all of those without a number."""
    yield None, view.transcript, 1
    for number, (child_id, child) in enumerate(view.children.items(), 1):
        yield child_id, child.view.transcript, number << _CHILD_PLACES


def _in_memory(view: View) -> Iterator[_Placed]:
    for child_id, transcript, start in _transcripts(view):
        for place, item in enumerate(transcript.items, start + transcript.past.end):
            yield _Placed(place, item, child_id)


def _pages(view: View, after: int) -> Iterator[tuple[ChildId | None, int]]:
    """The pages on which something may have changed after an event."""
    for child_id, transcript, _ in _transcripts(view):
        for number, offset in enumerate(transcript.past.known.offsets):
            if offset > after:
                yield child_id, number


def _on_page(wanted: tuple[ChildId | None, int], view: View) -> list[_Placed]:
    for child_id, transcript, start in _transcripts(view):
        if child_id == wanted[0]:
            first = transcript.past.known.firsts[wanted[1]] + start
            transcript.settle()
            return [
                _Placed(place, item, child_id) for place, item in enumerate(transcript.past.page(wanted[1]), first)
            ]
    return []


def _text(item: AnyItem) -> tuple[Role | None, str]:
    if isinstance(item, ToolCall):
        return "tool", item.title or ""
    if isinstance(item, Message) and item.role is not MessageRole.THOUGHT:
        return ("user" if item.role is MessageRole.USER else "agent"), join_text(item.content)
    return None, ""


# -- where the words are -------------------------------------------------------------------------------------

_WORD: Final = re.compile(r"(?:[^\W_]|[\u0300-\u036f])+")
"""As the index parts a text."""


def fold(word: str) -> str:
    """A word as the index compares it: in small letters, without accents."""
    if word.isascii():
        return word.lower()
    parts = unicodedata.normalize("NFD", word.lower())
    return "".join(each for each in parts if not unicodedata.combining(each))


def _matches(found: dict[SessionId, list[Text]], words: Sequence[str]) -> dict[SessionId, list[Match]]:
    return {name: [_match(each, words) for each in texts] for name, texts in found.items()}


def _match(found: Text, words: Sequence[str]) -> Match:
    shown, marks = snippet(found.text, words)
    role: Role = "user" if found.role == "user" else "agent" if found.role == "agent" else "tool"
    return Match(
        role=role,
        snippet=shown,
        marks=marks,
        event_id=found.place if found.place < _UNNUMBERED else None,
        prompt_id=found.prompt_id,
        child_id=found.child_id,
    )


def snippet(text: str, words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """The part of a text with the most of the words, on one line, and where in it they are."""
    parts = [[fold(each) for each in _WORD.findall(word)] for word in words]
    wanted = {each for part in parts for each in part}
    beginning = parts[-1][-1] if parts and parts[-1] else None
    places = list(islice(_places(text, wanted, beginning), MOST_PLACES))
    start = 0
    if places:
        best = max(range(len(places)), key=lambda number: (_near(places, number), -number))
        start = max(0, places[best][0] - BEFORE)
    if start:
        # Not in the middle of a word, unless it is a long one.
        space = text.find(" ", start, start + BEFORE)
        start = space + 1 if space >= 0 else start
    end = min(len(text), start + SNIPPET)
    line = " ".join(text[start:end].split())
    shown = f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"
    return shown, [(_units(shown[:at]), _units(shown[:to])) for at, to, _ in _places(shown, wanted, beginning)]


def _places(text: str, wanted: set[str], beginning: str | None) -> Iterator[tuple[int, int, str]]:
    """Where each of the words begins and ends."""
    for found in _WORD.finditer(text):
        word = fold(found[0])
        if word in wanted:
            yield found.start(), found.end(), word
        elif beginning is not None and word.startswith(beginning):
            yield found.start(), found.end(), beginning


def _near(places: Sequence[tuple[int, int, str]], number: int) -> int:
    """How many of the words are within one snippet that begins with this place."""
    last = places[number][0] + SNIPPET - BEFORE
    near: set[str] = set()
    for _, end, word in islice(places, number, None):
        if end > last:
            break
        near.add(word)
    return len(near)


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
