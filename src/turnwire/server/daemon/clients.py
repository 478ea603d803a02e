"""The clients of sessions: client ids, presence, and the methods that clients run for agents.

The session's log has the client ids, so they outlive the daemon. A client id belongs to its holder only: the name
and role that the log stores with it. An observer's id is in no log and in no memory: the id itself proves its
holder, so that observers change nothing and use no room, however many come. It is valid until the daemon stops.
Presence is known from open streams and heartbeats and is not in the log.

A client may offer to run an agent's requests for files and terminals. Each request is sent on the client's stream,
and the client answers it with a request. If the client disconnects or the agent cancels its request, the wait ends,
and the node decides which client gets the work next.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from hashlib import blake2b
from typing import NamedTuple

import anyio
from msgspec import Raw, Struct

from turnwire import new_ids
from turnwire.clock import Clock
from turnwire.errors import Forbidden, NotFound, RequestRefused, SessionClosed, UnknownClient
from turnwire.ids import ClientId, SessionId
from turnwire.projections.envelope import stream_frame
from turnwire.runtime.node import Node
from turnwire.server.access.tokens import Identity, Role
from turnwire.session.inputs import Attach, Detach
from turnwire.session.state import Phase
from turnwire.wire.jsonrpc import INTERNAL_ERROR

PRESENT_S = 60.0
"""Seconds after a heartbeat during which a client counts as present; heartbeats come about every 15 s."""
LISTED_S = 900.0
"""Seconds after its last activity during which a client is listed; a longer silence counts as a disconnect."""
KEPT_BEATS = 4096
"""Maximum number of remembered heartbeats and other activity, newest first."""
KEPT_HOLDERS = 4096
"""Entries in the cache of client id holders; misses are looked up in the log."""


_MARK = "-"
"""Separator of the two parts of an observer's client id."""

ASKED = "service_request"
TAKEN_BACK = "service_cancelled"

Answer = Raw | RequestRefused
"""A client's answer: a result, or an error."""


class _Holder(NamedTuple):
    """The holder of a client id, as far as the log knows it."""

    name: str | None
    role: str


class There(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Presence in a session as seen by one node; nodes send it to each other in this form."""

    controllers: int = 0
    """Number of streams and heartbeats of clients that could answer now."""
    clients: tuple[ClientId, ...] = ()
    """Clients that are connected or were active recently."""


_NOBODY = There()


class Clients:
    """Attached clients by session."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._streams: Counter[SessionId] = Counter()
        self._beats: dict[tuple[SessionId, ClientId], float] = {}
        self._signs: dict[tuple[SessionId, ClientId], float] = {}
        """Time of each client's last activity of any kind."""
        self._connected: Counter[tuple[SessionId, ClientId]] = Counter()
        """Number of open connections and streams by client."""
        self._holders: dict[tuple[SessionId, ClientId], _Holder] = {}
        self._elsewhere: dict[int, tuple[float, dict[SessionId, There]]] = {}
        """Presence reported by other nodes, with its time, by incarnation."""
        self.changed: Callable[[], None] = _nobody_minds
        """Called when `there` may have changed."""
        self._key = secrets.token_bytes(32)
        """Authenticates observers' ids."""
        self.offers = Offers()
        """Client methods available to agents while their clients are connected."""
        self.are_editors = False
        """True if the daemon serves the editors of one user: a request that none of them can show is cancelled."""
        self._answering: list[Callable[[str, Raw], bool]] = []
        """One function per connected editor; it returns whether the editor can show a request to its user."""

    async def attach(self, session_id: SessionId, who: Identity, *, connected: bool = False) -> ClientId:
        """Return a new client id for this session. Raises `SessionNotFound`, `SessionClosed`.

        `connected`: the client has a connection, and is detached when that ends.
        """
        client_id = new_ids.client_id()
        if who.role is Role.OBSERVER:
            if (await self._node.peek(session_id)).state.phase is Phase.CLOSED:
                raise SessionClosed("the session is closed; create or load another one", session_id=session_id)
            return self._observers(session_id, client_id, who)
        holder = _holder(who)
        attach = Attach(at=self._clock.now_ms(), client_id=client_id, role=holder.role, author=holder.name)
        await self._node.submit(session_id, attach)
        self._remember(session_id, client_id, holder)
        self._sign(session_id, client_id)
        if connected:
            self._connected[session_id, client_id] += 1
        return client_id

    async def detach(self, session_id: SessionId, client_id: ClientId) -> None:
        """Detach the client. Its turns continue."""
        for known in (self._beats, self._signs, self._connected, self._holders):
            known.pop((session_id, client_id), None)
        self.changed()
        await self._node.submit(session_id, Detach(at=self._clock.now_ms(), client_id=client_id))

    async def known(self, session_id: SessionId, client_id: ClientId | None, who: Identity) -> ClientId | None:
        """Return the client id if it belongs to `who` in this session; `None` is an anonymous client. An owner may
        use every id.

        Raises `UnknownClient`, `Forbidden`, `SessionNotFound`.
        """
        state = (await self._node.peek(session_id)).state
        if client_id is None:
            return None
        if who.role is Role.OBSERVER and self._is_observers(session_id, client_id, who):
            return client_id
        if client_id in state.clients:
            if not who.role.covers(Role.OWNER) and await self._holder_of(session_id, client_id) != _holder(who):
                raise Forbidden("this client id was given to somebody else; resume the session to get your own")
            self._sign(session_id, client_id)
            return client_id
        if state.phase is Phase.CLOSED:
            # A closed session has no clients, and a resume would not help: the session itself decides which inputs
            # it still accepts.
            return None
        raise UnknownClient("the session does not know this client id; resume the session to get one")

    def _observers(self, session_id: SessionId, client_id: ClientId, who: Identity) -> ClientId:
        """Return the id with a signature that only this daemon can make for this session and this name."""
        text = f"{session_id}\0{client_id}\0{who.name}".encode("utf-8", "surrogatepass")
        return ClientId(f"{client_id}{_MARK}{blake2b(text, key=self._key, digest_size=16).hexdigest()}")

    def _is_observers(self, session_id: SessionId, client_id: ClientId, who: Identity) -> bool:
        plain = ClientId(client_id.partition(_MARK)[0])
        expected = self._observers(session_id, plain, who)
        return hmac.compare_digest(expected.encode(), client_id.encode("utf-8", "surrogatepass"))

    async def _holder_of(self, session_id: SessionId, client_id: ClientId) -> _Holder | None:
        known = self._holders.get((session_id, client_id))
        if known is None:
            # An earlier daemon process issued it: the log has the name and the role, but not the token.
            attached = (await self._node.newest(session_id))[0].clients.get(client_id)
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
        """Record a heartbeat and return its time."""
        is_new = self._beats.get((session_id, client_id), -math.inf) < self._clock.monotonic() - PRESENT_S
        self._note(self._beats, session_id, client_id)
        if is_new:
            self.changed()
        return self._clock.now_ms()

    def _sign(self, session_id: SessionId, client_id: ClientId) -> None:
        is_new = (session_id, client_id) not in self._signs
        self._note(self._signs, session_id, client_id)
        if is_new:
            self.changed()

    def _note(
        self, moments: dict[tuple[SessionId, ClientId], float], session_id: SessionId, client_id: ClientId
    ) -> None:
        moments.pop((session_id, client_id), None)
        moments[session_id, client_id] = self._clock.monotonic()
        while len(moments) > KEPT_BEATS:
            moments.pop(next(iter(moments)))

    def listed(self, session_id: SessionId, attached: Iterable[ClientId]) -> list[ClientId]:
        """Return those attached clients that are connected or were active recently, on any node.

        The log also has clients that are gone.
        """
        since = self._clock.monotonic() - LISTED_S
        far = {each for told in self._told_of(session_id) for each in told.clients}
        return [
            each
            for each in attached
            if self._connected[session_id, each]
            or self._signs.get((session_id, each), -math.inf) >= since
            or each in far
        ]

    @contextmanager
    def streaming(self, session_id: SessionId, who: Identity, client_id: ClientId | None = None) -> Generator[None]:
        """Count a reader of the session inside the block; a controller that reads counts as present."""
        self.stream_opened(session_id, who, client_id)
        try:
            yield
        finally:
            self.stream_ended(session_id, who, client_id)

    def stream_opened(self, session_id: SessionId, who: Identity, client_id: ClientId | None) -> None:
        """Record a new stream of the session."""
        self._streams[session_id] += who.role is not Role.OBSERVER
        if self._streams[session_id] == 1:
            self.changed()
        if client_id is not None:
            self._connected[session_id, client_id] += 1

    def stream_ended(self, session_id: SessionId, who: Identity, client_id: ClientId | None) -> None:
        """Record the end of a stream that `stream_opened` recorded."""
        if client_id is not None:
            self._disconnect(session_id, client_id)
        self._streams[session_id] -= who.role is not Role.OBSERVER
        if not self._streams[session_id]:
            del self._streams[session_id]
            self.changed()

    def _disconnect(self, session_id: SessionId, client_id: ClientId) -> None:
        """Record that one of the client's streams has ended. The client may be detached already."""
        left = self._connected.pop((session_id, client_id), 0) - 1
        if left >= 0:
            self._sign(session_id, client_id)
        if left > 0:
            self._connected[session_id, client_id] = left

    def attended(self, session_id: SessionId) -> bool:
        """Return whether a controller is present in the session, on any node."""
        if self._streams.get(session_id):
            return True
        since = self._clock.monotonic() - PRESENT_S
        if any(each == session_id and at >= since for (each, _), at in self._beats.items()):
            return True
        return any(told.controllers for told in self._told_of(session_id))

    def connect(self, can_answer: Callable[[str, Raw], bool]) -> None:
        """Register an ACP connection. `can_answer` returns whether its client can show such a request."""
        if self.are_editors:
            self._answering.append(can_answer)

    def disconnect(self, can_answer: Callable[[str, Raw], bool]) -> None:
        """Unregister a connection that has ended."""
        if self.are_editors:
            self._answering.remove(can_answer)

    def can_be_asked(self, method: str, params: Raw) -> bool:
        """Return whether a client that can show this agent request to a user is connected, or may still connect."""
        return not self._answering or any(each(method, params) for each in self._answering)

    def there(self) -> dict[SessionId, There]:
        """Return the presence in each session as seen by this node."""
        now = self._clock.monotonic()
        beating = Counter(session_id for (session_id, _), at in self._beats.items() if at >= now - PRESENT_S)
        controllers = self._streams + beating
        clients: dict[SessionId, set[ClientId]] = {}
        heard_of = [key for key, at in self._signs.items() if at >= now - LISTED_S]
        for session_id, client_id in (*self._connected, *heard_of):
            clients.setdefault(session_id, set()).add(client_id)
        return {
            each: There(controllers[each], tuple(sorted(clients.get(each, ()))))
            for each in {*controllers, *clients}
        }

    def hear_of(self, life: int, sessions: dict[SessionId, There], whole: bool) -> None:
        """Record the presence that another node reports, either the `whole` or only changes.

        Each node reports the whole again within `PRESENT_S`.
        """
        now = self._clock.monotonic()
        _, before = self._elsewhere.pop(life, (now, dict[SessionId, There]()))
        self._elsewhere = {each: told for each, told in self._elsewhere.items() if told[0] >= now - PRESENT_S}
        kept = sessions if whole else before | sessions
        self._elsewhere[life] = (now, {name: each for name, each in kept.items() if each != _NOBODY})

    def _told_of(self, session_id: SessionId) -> list[There]:
        """Return the recent reports of the other nodes about the session's presence."""
        if not self._elsewhere:
            return []
        since = self._clock.monotonic() - PRESENT_S
        return [told.get(session_id, _NOBODY) for at, told in self._elsewhere.values() if at >= since]


def _nobody_minds() -> None: ...


def _holder(who: Identity) -> _Holder:
    """Return the holder. A token that replaces one of the same name and role counts as the same holder."""
    role = Role.OBSERVER if who.role is Role.OBSERVER else Role.CONTROLLER
    return _Holder(who.name, role.value)


class _Waiting:
    """A request that was sent to a client."""

    def __init__(self, session_id: SessionId) -> None:
        self.session_id = session_id
        self.answered = anyio.Event()
        self.answer: Answer | None = None


class Offers:
    """The requests that wait for answers of clients, by id."""

    def __init__(self) -> None:
        self._open: dict[str, _Waiting] = {}

    def offer(self, session_id: SessionId, methods: frozenset[str], most: int) -> Offer:
        """Register a client that runs these methods for a session's agent, up to `most` at a time."""
        return Offer(self._open, session_id, methods, most)

    def answer(self, session_id: SessionId, request_id: str, answer: Answer) -> None:
        """Accept a client's answer, a result or an error. Raises `NotFound` if the request is no longer waiting."""
        waiting = self._open.get(request_id)
        if waiting is None or waiting.session_id != session_id or waiting.answer is not None:
            raise NotFound("nobody waits for this answer; the agent took it back, or it was answered before")
        waiting.answer = answer
        waiting.answered.set()


class Offer:
    """One client's offer while its stream is open. Implements `runtime.client_requests.Provider`."""

    def __init__(
        self, waiting: dict[str, _Waiting], session_id: SessionId, methods: frozenset[str], most: int
    ) -> None:
        self._waiting = waiting
        self._session_id = session_id
        self._methods = methods
        self._most = most
        self._open = 0
        self._frames: list[bytes] = []
        self._more = anyio.Event()

    @property
    def methods(self) -> frozenset[str]:
        return self._methods

    async def serve(self, method: str, params: Raw, after: int) -> Raw:
        """Send the request to the client and wait for its answer. Raises `RequestRefused`.

        The events are on another stream, so the request names the event after which it was sent.
        """
        if self._open >= self._most:
            raise RequestRefused(
                "the client has too much to do; ask again later", jsonrpc=INTERNAL_ERROR, reason="too_many"
            )
        request_id = f"r_{secrets.token_hex(10)}"
        waiting = self._waiting[request_id] = _Waiting(self._session_id)
        self._open += 1
        told = params if params else Raw(b"{}")
        self._write(ASKED, request_id, method=method, params=told, lastEventId=after)
        try:
            await waiting.answered.wait()
        finally:
            self._open -= 1
            del self._waiting[request_id]
            if waiting.answer is None:
                self._write(TAKEN_BACK, request_id)
        assert waiting.answer is not None, "whoever answers leaves an answer"
        if isinstance(waiting.answer, RequestRefused):
            raise waiting.answer
        return waiting.answer

    async def frames(self) -> bytes:
        """Wait for and return the next frames for the client's stream. Cancel-safe."""
        while not self._frames:
            self._more = anyio.Event()
            await self._more.wait()
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def _write(self, kind: str, request_id: str, **members: object) -> None:
        data = {"requestId": request_id, "sessionId": self._session_id, **members}
        self._frames.append(stream_frame(kind, data))
        self._more.set()
