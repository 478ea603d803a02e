"""Read access to sessions whose loops run on another node, or on none.

A shadow is a session's tail, fed from the log when the bell reports new events, and, as long as a reader needs it,
the session's state by the same fold. Readers need only a tail and a log, so their code is the same on every node. A
shadow claims no session and appends nothing.

    H1  Readers are free: each session has at most one read under way, and each event is read once for all readers.
    H2  A page is published only if it continues the ring. A session that is opened here feeds the same ring itself
        from then on, and one that moves away continues as a shadow, including for earlier callers of `peek`.
    H3  A caller of `peek` sees at least the log's content at the time of the call: a client reads its own writes on
        any node.
    H4  A notice of the bell is only a reason to read the log. Followed sessions are also checked after a connection
        loss, and periodically.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Final
from weakref import WeakValueDictionary

from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from turnwire.errors import LogCorrupt, LogError, LogVersionMismatch, PositionLost, SessionNotFound
from turnwire.ids import Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position, SessionHead
from turnwire.log.bell import DELETED
from turnwire.projections.envelope import Parties
from turnwire.runtime.folds import FOLDED_AT_ONCE, open_state
from turnwire.runtime.session import Session
from turnwire.runtime.tail import Tail
from turnwire.session.codec import check_readable, decode, stored_prefix
from turnwire.session.events import SessionClosed
from turnwire.session.evolve import evolve
from turnwire.session.state import Phase, SessionState

logger = logging.getLogger(__name__)
_CLOSED: Final = stored_prefix(SessionClosed)


class Shadow:
    """A session for its readers, wherever its loop runs now."""

    def __init__(self, session_id: SessionId, tail: Tail, state: SessionState, offset: int) -> None:
        self.session_id = session_id
        self.tail = tail
        self.session: Session | None = None
        """The session, while it is loaded here."""
        self._state = state
        self.offset = offset
        """The event up to which the state is folded while it is not loaded here."""

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
        """The session was opened here."""
        self.session = session

    def leave(self) -> None:
        """The loop here has ended: continue from its last state."""
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
        """`tails`: rings of the node, which live as long as they are referenced.

        `loaded`: sessions that feed their rings themselves. `alone`: the lock for opening a session, here or as a
        shadow.
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
        """Shadows that were peeked at since the bell's last check, and since the one before. They are retained
        because a client that polls should not cause a new shadow each time.
        """
        self._wanted: dict[SessionId, int] = {}
        """Sessions that are being read, with their known heads."""

    # -- for readers ---------------------------------------------------------------------------------------

    async def peek(self, session_id: SessionId) -> Shadow:
        """Return the session up to the current head of its log (H3). Raises `SessionNotFound`."""
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
        """Return the shadow in memory, if any."""
        shadow = self._shadows.get(session_id)
        session = self._loaded.get(session_id)
        if session is not None and (shadow is None or shadow.tail is not session.tail):
            shadow = self._shadows[session_id] = Shadow(session_id, session.tail, session.state, session.head)
            shadow.arrive(session)
        return shadow

    async def reach(self, session_id: SessionId, head: int) -> None:
        """Return once readers of the session on this node can see this event, which is in the log."""
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
        """The session's loop here has ended."""
        shadow = self._shadows.get(session.session_id)
        if shadow is not None and shadow.session is session:
            shadow.leave()

    def end(self, session_id: SessionId) -> None:
        """The session was deleted or recreated: end its followers."""
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
        """Do nothing: the bell checks all followed sessions as well."""

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
        """Read until the ring reaches the log's known head. After a failure the next check retries."""
        try:
            async with self._alone(session_id):
                while (tail := self._tails.get(session_id)) is not None and tail.head < self._wanted[session_id]:
                    if session_id in self._loaded or not await self._read_on(session_id, tail):
                        return
        except (SessionNotFound, PositionLost, LogCorrupt, LogVersionMismatch):
            # Retrying would not help. Readers reopen the session and receive the error.
            self.end(session_id)
        except LogError:
            return
        except Exception:  # any error: other sessions continue, and readers reopen this one
            extra = {"event": "shadow_failed", "session": session_id}
            logger.exception("a session of another node could not be followed", extra=extra)
            self.end(session_id)
        finally:
            del self._wanted[session_id]

    async def _read_on(self, session_id: SessionId, tail: Tail) -> bool:
        """Publish the next page, if there is one. The session cannot be opened meanwhile. Raises `LogCorrupt`."""
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
            # A loop that was ended here during an append has published events after the state it left.
            opened = await open_state(self._log, session_id, limits)
            shadow.fold_to(opened.state, opened.head)
        if shadow is not None and shadow.offset < offset:
            state = await _folded(shadow.state, bodies[shadow.offset - before :])
        # There is no await from here on, so no reader sees a state without its events or the reverse.
        if shadow is not None and state is not None:
            shadow.fold_to(state, offset)
        if bodies:
            tail.publish(bodies)
        if any(each.startswith(_CLOSED) for each in bodies):
            tail.end()
        return bool(bodies)

    async def _skip(self, session_id: SessionId, tail: Tail) -> None:
        """Restart the ring at the head: the events that would follow were trimmed."""
        opened = await open_state(self._log, session_id, self._limits)
        shadow = self._shadows.get(session_id)
        if shadow is not None:
            shadow.fold_to(opened.state, opened.head)
        tail.reopen(opened.head, Parties.of(opened.state))

    async def _open(self, session_id: SessionId) -> Shadow:
        """Open the session from the log. A ring that has followers is continued."""
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
