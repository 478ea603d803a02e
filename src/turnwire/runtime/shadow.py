"""Sessions whose loops run on another node, or nowhere, for those who read them here.

A shadow is a session's tail, fed by reading the log when the bell says that it grew, and, as long as somebody wants
it, the session's state by the same fold. Readers know a tail and a log, so they are the same code on every node.
Nothing is claimed and nothing appended here.

    H1  Readers are free: of a session one read is under way at most, and each event is read once for all of them.
    H2  A page is shown only where it continues the ring. A session that is opened here feeds the same ring by
        itself from then on, and one that leaves goes on as a shadow, also for those who peeked at it before.
    H3  Who peeks sees at least what the log held when it asked: a client reads its own writes on any node.
    H4  A notice of the bell is a reason to look. What is followed is looked at in any case after a break, and once
        in a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Final
from weakref import WeakValueDictionary

from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from turnwire.core.codec import check_readable, decode, stored_prefix
from turnwire.core.events import SessionClosed
from turnwire.core.evolve import evolve
from turnwire.core.parties import Parties
from turnwire.core.state import Phase, SessionState
from turnwire.errors import LogCorrupt, LogError, LogTooNew, PositionLost, SessionNotFound
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.log.bell import DELETED
from turnwire.runtime.folds import FOLDED_AT_ONCE, open_state
from turnwire.runtime.session import Session
from turnwire.runtime.tail import Tail

logger = logging.getLogger(__name__)
_CLOSED: Final = stored_prefix(SessionClosed, any_version=True)


class Shadow:
    """A session for its readers, wherever its loop runs now."""

    def __init__(self, session_id: SessionId, tail: Tail, state: SessionState, offset: int) -> None:
        self.session_id = session_id
        self.tail = tail
        self.session: Session | None = None
        """The session, while it is here."""
        self._state = state
        self.offset = offset
        """The event up to which the state is folded while it is not."""

    @property
    def epoch(self) -> Epoch:
        return self.tail.epoch

    @property
    def head(self) -> int:
        return self.tail.head

    @property
    def state(self) -> SessionState:
        return self._state if self.session is None else self.session.state

    def fold_to(self, state: SessionState, offset: int) -> None:
        self._state, self.offset = state, offset

    def arrive(self, session: Session) -> None:
        """It is opened here."""
        self.session = session

    def leave(self) -> None:
        """It goes on elsewhere, from what was known here."""
        if self.session is not None:
            self.fold_to(self.session.state, self.session.head)
            self.session = None


class Shadows:
    """The shadows of a node. A `Follower` of the bell."""

    def __init__(
        self,
        log: EventLog,
        limits: Limits,
        tasks: TaskGroup,
        tails: MutableMapping[SessionId, Tail],
        loaded: Mapping[SessionId, Session],
        alone: Callable[[SessionId], AbstractAsyncContextManager[None]],
    ) -> None:
        """`tails`: rings of the node, which live as long as somebody holds them.

        `loaded`: sessions that feed theirs themselves. `alone`: held by who opens a session, here or as a shadow.
        """
        self._log = log
        self._limits = limits
        self._tasks = tasks
        self._tails = tails
        self._loaded = loaded
        self._alone = alone
        self._shadows: WeakValueDictionary[SessionId, Shadow] = WeakValueDictionary()
        self._recent: dict[SessionId, Shadow] = {}
        self._older: dict[SessionId, Shadow] = {}
        """Those that somebody peeked at since the bell last looked, and since the look before: a client that asks
        again and again is not to make them anew each time."""
        self._wanted: dict[SessionId, int] = {}
        """Sessions that are being read, and how far they are known to go."""

    # -- for readers ---------------------------------------------------------------------------------------

    async def peek(self, session_id: SessionId) -> Shadow:
        """The session as far as its log goes now (H3). Raises `SessionNotFound`."""
        shadow = self.known(session_id)
        if shadow is not None and shadow.session is not None:
            return shadow
        try:
            head = await self._log.head(session_id)
            async with self._alone(session_id):
                shadow = self.known(session_id)
                if shadow is None or shadow.epoch != head.epoch:
                    shadow = await self._open(session_id)
                while shadow.session is None and shadow.head < head.head:
                    if not await self._read_on(session_id, shadow.tail):
                        break
        except (SessionNotFound, PositionLost):
            self.end(session_id)
            raise
        self._recent[session_id] = shadow
        return shadow

    def known(self, session_id: SessionId) -> Shadow | None:
        """What is in memory of it."""
        shadow = self._shadows.get(session_id)
        session = self._loaded.get(session_id)
        if session is not None and (shadow is None or shadow.tail is not session.tail):
            shadow = self._shadows[session_id] = Shadow(session_id, session.tail, session.state, session.head)
            shadow.arrive(session)
        return shadow

    async def reach(self, session_id: SessionId, head: int) -> None:
        """Return once who reads the session here can see this event, which is in the log."""
        tail = self._tails.get(session_id)
        if tail is not None and session_id not in self._loaded:
            self._want(session_id, head)
            await tail.wait(head - 1)

    # -- for the node --------------------------------------------------------------------------------------

    def arrived(self, session: Session) -> None:
        """A session was opened here."""
        shadow = self._shadows.get(session.session_id)
        if shadow is not None:
            shadow.arrive(session)

    def left(self, session: Session) -> None:
        """Its loop has ended."""
        shadow = self._shadows.get(session.session_id)
        if shadow is not None and shadow.session is session:
            shadow.leave()

    def end(self, session_id: SessionId) -> None:
        """The session is no more, or is another one now: who follows it comes to an end."""
        if session_id in self._loaded:
            return
        for known in (self._recent, self._older, self._shadows):
            known.pop(session_id, None)
        tail = self._tails.pop(session_id, None)
        if tail is not None:
            tail.end()

    # -- for the bell --------------------------------------------------------------------------------------

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        for session_id, head in heads.items():
            tail = self._tails.get(session_id)
            if tail is not None and (head > tail.head or head == DELETED):
                self._want(session_id, tail.head + 1 if head == DELETED else head)

    def missed(self) -> None:
        """Whoever rings looks for all that is followed as well."""

    def followed(self) -> Collection[SessionId]:
        return [name for name, tail in self._tails.items() if name not in self._loaded and not tail.is_over]

    def found(self, heads: Mapping[SessionId, SessionHead | None]) -> None:
        self._older, self._recent = self._recent, {}
        for session_id, head in heads.items():
            tail = self._tails.get(session_id)
            if tail is None or session_id in self._loaded:
                continue
            if head is None or head.epoch != tail.epoch:
                self.end(session_id)
            elif head.head > tail.head:
                self._want(session_id, head.head)

    # -- feeding -------------------------------------------------------------------------------------------

    def _want(self, session_id: SessionId, head: int) -> None:
        is_read = session_id in self._wanted
        self._wanted[session_id] = max(self._wanted.get(session_id, 0), head)
        if not is_read:
            self._tasks.start_soon(self._feed, session_id)

    async def _feed(self, session_id: SessionId) -> None:
        """Read until the ring is where the log is known to be. What fails is found again by the next look."""
        try:
            async with self._alone(session_id):
                while (tail := self._tails.get(session_id)) is not None and tail.head < self._wanted[session_id]:
                    if session_id in self._loaded or not await self._read_on(session_id, tail):
                        return
        except (SessionNotFound, PositionLost, LogCorrupt, LogTooNew):
            # It does not get better by looking again. Whoever reads it comes anew, and hears what it is.
            self.end(session_id)
        except LogError:
            return
        except Exception:  # whatever it is, the node and other sessions go on, and who reads this one comes anew
            extra = {"event": "shadow_failed", "session": session_id}
            logger.exception("a session of another node could not be followed", extra=extra)
            self.end(session_id)
        finally:
            del self._wanted[session_id]

    async def _read_on(self, session_id: SessionId, tail: Tail) -> bool:
        """Show the next page, if there is one. Nobody opens the session meanwhile. Raises `LogCorrupt`."""
        before, limits = tail.head, self._limits
        try:
            page = await self._log.read(
                session_id,
                Position(tail.epoch, before),
                max_events=limits.page_events,
                max_bytes=limits.page_bytes,
            )
        except PositionLost as error:
            if error.context.get("why") != "trimmed":
                raise
            await self._skip(session_id, tail)
            return True
        bodies = [each.body for each in page]
        check_readable(bodies)
        shadow, state, offset = self._shadows.get(session_id), None, before + len(bodies)
        if shadow is not None and shadow.offset < before:
            # A loop that was ended here while it stored has shown more than the state that it left.
            opened = await open_state(self._log, session_id, limits)
            shadow.fold_to(opened.state, opened.head)
        if shadow is not None and shadow.offset < offset:
            state = await _folded(shadow.state, bodies[shadow.offset - before :])
        # Nothing waits from here on, so nobody sees a state without its events or the reverse.
        if shadow is not None and state is not None:
            shadow.fold_to(state, offset)
        if bodies:
            tail.publish(bodies)
        if any(each.startswith(_CLOSED) for each in bodies):
            tail.end()
        return bool(bodies)

    async def _skip(self, session_id: SessionId, tail: Tail) -> None:
        """What would follow in the ring is not kept any more."""
        opened = await open_state(self._log, session_id, self._limits)
        shadow = self._shadows.get(session_id)
        if shadow is not None:
            shadow.fold_to(opened.state, opened.head)
        tail.reopen(opened.head, Parties.of(opened.state))

    async def _open(self, session_id: SessionId) -> Shadow:
        """From the log, as a session is opened. A ring that somebody follows already goes on."""
        opened = await open_state(self._log, session_id, self._limits)
        tail = self._tails.get(session_id)
        if tail is not None and (tail.epoch != opened.epoch or tail.head > opened.head):
            self.end(session_id)
            tail = None
        if tail is None:
            tail = Tail(self._limits, opened.epoch, opened.head, Parties.of(opened.state))
            self._tails[session_id] = tail
        shadow = self._shadows[session_id] = Shadow(session_id, tail, opened.state, opened.head)
        while tail.head < opened.head and await self._read_on(session_id, tail):
            pass
        if opened.state.phase is Phase.CLOSED:
            tail.end()
        return shadow


async def _folded(state: SessionState, bodies: list[bytes]) -> SessionState:
    for number, body in enumerate(bodies, 1):
        if number % FOLDED_AT_ONCE == 0:
            await checkpoint()
        state = evolve(state, decode(body))
    return state
