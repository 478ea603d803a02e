"""The clients of sessions: ids that the daemon gives out, and who is there now.

Takes an identity that attaches, shows signs of life or leaves; gives client ids that the session's log knows, so
they outlive the daemon. A client id is its holder's alone: the name and the role that the log has beside it. Who is
there now is known from open streams and heartbeats and is not in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from turnwire.core.inputs import Attach, Detach
from turnwire.core.state import Phase
from turnwire.errors import Forbidden, UnknownClient
from turnwire.ids import ClientId, SessionId
from turnwire.runtime import new_ids
from turnwire.runtime.clock import Clock
from turnwire.runtime.node import Node
from turnwire.server.door.identity import Identity, Role

PRESENT_S = 60.0
"""A client counts as there this long after a heartbeat; they come every 15 s or so."""
KEPT_BEATS = 4096
"""Heartbeats that are remembered, newest kept."""
KEPT_HOLDERS = 4096
"""Holders of client ids that are remembered, newest kept; of the others the log is asked."""


class _Holder(NamedTuple):
    """Whom a client id was given to, as far as the log tells it."""

    name: str | None
    role: str


class Clients:
    """Who is attached to which session."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._streams: Counter[SessionId] = Counter()
        self._beats: dict[tuple[SessionId, ClientId], float] = {}
        self._holders: dict[tuple[SessionId, ClientId], _Holder] = {}

    async def attach(self, session_id: SessionId, who: Identity) -> ClientId:
        """A new client id for this session. Raises `SessionNotFound`, `SessionClosed`."""
        client_id = new_ids.client_id()
        holder = _holder(who)
        given = Attach(at=self._clock.now_ms(), client_id=client_id, role=holder.role, author=holder.name)
        await self._node.submit(session_id, given)
        self._remember(session_id, client_id, holder)
        return client_id

    async def detach(self, session_id: SessionId, client_id: ClientId) -> None:
        """The client leaves. What it began goes on."""
        self._beats.pop((session_id, client_id), None)
        self._holders.pop((session_id, client_id), None)
        await self._node.submit(session_id, Detach(at=self._clock.now_ms(), client_id=client_id))

    async def known(self, session_id: SessionId, client_id: ClientId | None, who: Identity) -> ClientId | None:
        """The client id, if the session knows it as one of `who`; none is anonymous. An owner acts for everybody.

        Raises `UnknownClient`, `Forbidden`, `SessionNotFound`.
        """
        state = (await self._node.session(session_id)).state
        if client_id is None:
            return None
        if client_id in state.clients:
            if not who.role.covers(Role.OWNER) and await self._holder_of(session_id, client_id) != _holder(who):
                raise Forbidden("this client id was given to somebody else; resume the session to get your own")
            return client_id
        if state.phase is Phase.CLOSED:
            # It knows nobody any more, and no resume would help: the session itself says what it still takes.
            return None
        raise UnknownClient("the session does not know this client id; resume the session to get one")

    async def _holder_of(self, session_id: SessionId, client_id: ClientId) -> _Holder | None:
        known = self._holders.get((session_id, client_id))
        if known is None:
            # A daemon before this one gave it out: the log has the name and the role, and not which token it was.
            attached = (await self._node.view(session_id)).clients.get(client_id)
            if attached is None:
                return None
            known = _Holder(attached.author, attached.role)
            self._remember(session_id, client_id, known)
        return known

    def _remember(self, session_id: SessionId, client_id: ClientId, holder: _Holder) -> None:
        self._holders[session_id, client_id] = holder
        while len(self._holders) > KEPT_HOLDERS:
            self._holders.pop(next(iter(self._holders)))

    def beat(self, session_id: SessionId, client_id: ClientId) -> int:
        """A sign of life; gives its time."""
        self._beats.pop((session_id, client_id), None)
        self._beats[session_id, client_id] = self._clock.monotonic()
        while len(self._beats) > KEPT_BEATS:
            self._beats.pop(next(iter(self._beats)))
        return self._clock.now_ms()

    @contextmanager
    def streaming(self, session_id: SessionId, who: Identity) -> Generator[None]:
        """Meanwhile somebody reads the session; a controller who does is there to answer."""
        counts = who.role is not Role.OBSERVER
        self._streams[session_id] += counts
        try:
            yield
        finally:
            self._streams[session_id] -= counts
            if not self._streams[session_id]:
                del self._streams[session_id]

    def attended(self, session_id: SessionId) -> bool:
        """Whether a controller is at the session now."""
        if self._streams.get(session_id):
            return True
        since = self._clock.monotonic() - PRESENT_S
        return any(each == session_id and at >= since for (each, _), at in self._beats.items())


def _holder(who: Identity) -> _Holder:
    """A token that replaces one of the same name and role goes on where that one was."""
    role = Role.OBSERVER if who.role is Role.OBSERVER else Role.CONTROLLER
    return _Holder(who.name, role.value)
