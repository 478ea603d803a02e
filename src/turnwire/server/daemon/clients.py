"""The clients of sessions: ids that the daemon gives out, who is there now, and what they do for agents.

The session's log knows client ids, so they outlive the daemon. A client id is its holder's alone: the name and the
role that the log has beside it. An observer's is in no log and in no memory: it says itself whose it is, so that
observers change nothing and take nobody's place, however many come. It is good until the daemon stops. Who is there
now is known from open streams and heartbeats and is not in the log.

A client may offer to do an agent's requests for files and terminals. Each is told on the client's stream and
answered by another request of it; a client that leaves, or an agent that takes its request back, ends the waiting.
Who does the work then is decided by the node.
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
from msgspec import Raw

from turnwire.core.envelope import stream_frame
from turnwire.core.inputs import Attach, Detach
from turnwire.core.state import Phase
from turnwire.errors import Forbidden, NotFound, RequestRefused, SessionClosed, UnknownClient
from turnwire.ids import ClientId, PromptId, SessionId
from turnwire.runtime import new_ids
from turnwire.runtime.clock import Clock
from turnwire.runtime.node import Node
from turnwire.server.access.identity import Identity, Role
from turnwire.server.reached import Reached
from turnwire.wire.jsonrpc import INTERNAL_ERROR

PRESENT_S = 60.0
"""A client counts as there this long after a heartbeat; they come every 15 s or so."""
LISTED_S = 900.0
"""A client is listed this long after its last sign: whoever stays away longer has left without a word."""
KEPT_BEATS = 4096
"""Heartbeats and other signs that are remembered, newest kept."""
KEPT_HOLDERS = 4096
"""Holders of client ids that are remembered, newest kept; of the others the log is asked."""


HELD_S = 1.0
"""The end of a turn is held back this long at most for a client that has not read the answer to its prompt."""
SETTLED_S = 0.05
"""An answer that is on the other machine counts as read so long after its prompt came: a program that has been busy
for as long is a rare one, and turns take longer."""
FIRST_LOOK_S, LONGEST_LOOK_S = 0.001, 0.02
"""Between two looks at how far an answer has come."""

_MARK = "-"
"""Between the two parts of an observer's client id."""

ASKED = "service_request"
TAKEN_BACK = "service_cancelled"

Answer = Raw | RequestRefused
"""What a client answers: a result, or that it cannot."""


class _Holder(NamedTuple):
    """Whom a client id was given to, as far as the log tells it."""

    name: str | None
    role: str


class _Unread(NamedTuple):
    """A prompt whose answer its client may not have read."""

    session_id: SessionId
    client_id: ClientId
    since: float
    reached: Callable[[], Reached]
    """How far the answer has come."""


class Clients:
    """Who is attached to which session."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._streams: Counter[SessionId] = Counter()
        self._beats: dict[tuple[SessionId, ClientId], float] = {}
        self._signs: dict[tuple[SessionId, ClientId], float] = {}
        """When each client was last heard of, in whatever way."""
        self._connected: Counter[tuple[SessionId, ClientId]] = Counter()
        """Connections and streams of each that are open."""
        self._holders: dict[tuple[SessionId, ClientId], _Holder] = {}
        self._unread: dict[PromptId, _Unread] = {}
        """Of the last second."""
        self._key = secrets.token_bytes(32)
        """By which observers' ids are known."""
        self.offers = Offers()
        """What clients do for agents, while they are connected."""

    async def attach(self, session_id: SessionId, who: Identity, *, connected: bool = False) -> ClientId:
        """A new client id for this session. Raises `SessionNotFound`, `SessionClosed`.

        `connected`: it has a connection, and is detached when that ends.
        """
        client_id = new_ids.client_id()
        if who.role is Role.OBSERVER:
            if (await self._node.session(session_id)).state.phase is Phase.CLOSED:
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
        """The client leaves. What it began goes on."""
        for known in (self._beats, self._signs, self._connected, self._holders):
            known.pop((session_id, client_id), None)
        await self._node.submit(session_id, Detach(at=self._clock.now_ms(), client_id=client_id))

    async def known(self, session_id: SessionId, client_id: ClientId | None, who: Identity) -> ClientId | None:
        """The client id, if the session knows it as one of `who`; none is anonymous. An owner acts for everybody.

        Raises `UnknownClient`, `Forbidden`, `SessionNotFound`.
        """
        state = (await self._node.session(session_id)).state
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
            # It knows nobody any more, and no resume would help: the session itself says what it still takes.
            return None
        raise UnknownClient("the session does not know this client id; resume the session to get one")

    def _observers(self, session_id: SessionId, client_id: ClientId, who: Identity) -> ClientId:
        """The id with a mark that only this daemon can make, for this session and this name."""
        text = f"{session_id}\0{client_id}\0{who.name}".encode("utf-8", "surrogatepass")
        return ClientId(f"{client_id}{_MARK}{blake2b(text, key=self._key, digest_size=16).hexdigest()}")

    def _is_observers(self, session_id: SessionId, client_id: ClientId, who: Identity) -> bool:
        plain = ClientId(client_id.partition(_MARK)[0])
        expected = self._observers(session_id, plain, who)
        return hmac.compare_digest(expected.encode(), client_id.encode("utf-8", "surrogatepass"))

    async def _holder_of(self, session_id: SessionId, client_id: ClientId) -> _Holder | None:
        known = self._holders.get((session_id, client_id))
        if known is None:
            # A daemon before this one gave it out: the log has the name and the role, and not which token it was.
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
        """A sign of life; gives its time."""
        self._note(self._beats, session_id, client_id)
        return self._clock.now_ms()

    def _sign(self, session_id: SessionId, client_id: ClientId) -> None:
        self._note(self._signs, session_id, client_id)

    def _note(
        self, moments: dict[tuple[SessionId, ClientId], float], session_id: SessionId, client_id: ClientId
    ) -> None:
        moments.pop((session_id, client_id), None)
        moments[session_id, client_id] = self._clock.monotonic()
        while len(moments) > KEPT_BEATS:
            moments.pop(next(iter(moments)))

    def listed(self, session_id: SessionId, attached: Iterable[ClientId]) -> list[ClientId]:
        """Those of the attached who are connected, or were heard of not long ago. The log also has who is gone."""
        since = self._clock.monotonic() - LISTED_S
        return [
            each
            for each in attached
            if self._connected[session_id, each] or self._signs.get((session_id, each), -math.inf) >= since
        ]

    @contextmanager
    def streaming(self, session_id: SessionId, who: Identity, client_id: ClientId | None = None) -> Generator[None]:
        """Meanwhile somebody reads the session; a controller who does is there to answer."""
        self.stream_opened(session_id, who, client_id)
        try:
            yield
        finally:
            self.stream_ended(session_id, who, client_id)

    def stream_opened(self, session_id: SessionId, who: Identity, client_id: ClientId | None) -> None:
        """Somebody reads the session from now on."""
        self._streams[session_id] += who.role is not Role.OBSERVER
        if client_id is not None:
            self._connected[session_id, client_id] += 1

    def stream_ended(self, session_id: SessionId, who: Identity, client_id: ClientId | None) -> None:
        """What `stream_opened` was told is over."""
        if client_id is not None:
            self._disconnect(session_id, client_id)
        self._streams[session_id] -= who.role is not Role.OBSERVER
        if not self._streams[session_id]:
            del self._streams[session_id]

    def _disconnect(self, session_id: SessionId, client_id: ClientId) -> None:
        """One of its streams has ended. It may be detached already."""
        left = self._connected.pop((session_id, client_id), 0) - 1
        if left >= 0:
            self._sign(session_id, client_id)
        if left > 0:
            self._connected[session_id, client_id] = left

    def answering(
        self, session_id: SessionId, client_id: ClientId, prompt_id: PromptId, reached: Callable[[], Reached]
    ) -> None:
        """The client is about to be answered. It is told of the prompt's end when it has read that (`heard`)."""
        now = self._clock.monotonic()
        while self._unread and next(iter(self._unread.values())).since < now - HELD_S:
            del self._unread[next(iter(self._unread))]
        self._unread[prompt_id] = _Unread(session_id, client_id, now, reached)

    def unread(self, session_id: SessionId, client_id: ClientId | None) -> list[PromptId]:
        """The prompts whose answers this client may not have read."""
        if client_id is None or not self._unread:
            return []
        return [key for key, each in self._unread.items() if each[:2] == (session_id, client_id)]

    async def heard(self, prompt_id: PromptId) -> None:
        """Return once its client has read the answer to the prompt, as far as one can know, or has had time."""
        look_s = FIRST_LOOK_S
        while (each := self._unread.get(prompt_id)) is not None:
            age, at = self._clock.monotonic() - each.since, each.reached()
            if at is Reached.PROGRAM or age >= HELD_S or (at is Reached.MACHINE and age >= SETTLED_S):
                self._unread.pop(prompt_id, None)
                return
            await self._clock.sleep(look_s)
            look_s = min(2 * look_s, LONGEST_LOOK_S)

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


class _Waiting:
    """A request that a client has been asked to do."""

    def __init__(self, session_id: SessionId) -> None:
        self.session_id = session_id
        self.answered = anyio.Event()
        self.answer: Answer | None = None


class Offers:
    """The requests that wait for answers of clients, by id."""

    def __init__(self) -> None:
        self._open: dict[str, _Waiting] = {}

    def offer(self, session_id: SessionId, methods: frozenset[str], most: int) -> Offer:
        """A client does these for a session's agent, `most` at a time."""
        return Offer(self._open, session_id, methods, most)

    def answer(self, session_id: SessionId, request_id: str, answer: Answer) -> None:
        """A client has done it, or cannot. Raises `NotFound` if nobody waits for this any more."""
        waiting = self._open.get(request_id)
        if waiting is None or waiting.session_id != session_id or waiting.answer is not None:
            raise NotFound("nobody waits for this answer; the agent took it back, or it was answered before")
        waiting.answer = answer
        waiting.answered.set()


class Offer:
    """One client's offer, while its stream is open. Implements `runtime.client_requests.Provider`."""

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
        """Ask the client and wait. Raises `RequestRefused`.

        The events are on another stream, so the client is told behind which of them it was asked.
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
        """What to write to the client's stream next. Waits for something. Cancel-safe."""
        while not self._frames:
            self._more = anyio.Event()
            await self._more.wait()
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def _write(self, kind: str, request_id: str, **members: object) -> None:
        data = {"requestId": request_id, "sessionId": self._session_id, **members}
        self._frames.append(stream_frame(kind, data))
        self._more.set()
