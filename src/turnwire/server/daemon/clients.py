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
from msgspec import Raw, Struct

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


class There(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Who is at a session, by what comes to one node; nodes tell it to each other as it is."""

    controllers: int = 0
    """Those who could answer now: streams and heartbeats."""
    clients: tuple[ClientId, ...] = ()
    """Those who are connected, or were heard of not long ago."""


_NOBODY = There()


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
        self._elsewhere: dict[int, tuple[float, dict[SessionId, There]]] = {}
        """Whom other nodes told of, by life, and when."""
        self.changed: Callable[[], None] = _nobody_minds
        """Hears when it may not be the same any more who is `there`."""
        self._key = secrets.token_bytes(32)
        """By which observers' ids are known."""
        self.offers = Offers()
        """What clients do for agents, while they are connected."""
        self._only: list[Callable[[str, Raw], bool]] = []
        """Where nobody comes over a network: what each client that is there can put to its user."""

    async def attach(self, session_id: SessionId, who: Identity, *, connected: bool = False) -> ClientId:
        """A new client id for this session. Raises `SessionNotFound`, `SessionClosed`.

        `connected`: it has a connection, and is detached when that ends.
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
        """The client leaves. What it began goes on."""
        for known in (self._beats, self._signs, self._connected, self._holders):
            known.pop((session_id, client_id), None)
        self.changed()
        await self._node.submit(session_id, Detach(at=self._clock.now_ms(), client_id=client_id))

    async def known(self, session_id: SessionId, client_id: ClientId | None, who: Identity) -> ClientId | None:
        """The client id, if the session knows it as one of `who`; none is anonymous. An owner acts for everybody.

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
        """Those of the attached who are connected, or were heard of not long ago, on whichever node.

        The log also has who is gone.
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
        """Meanwhile somebody reads the session; a controller who does is there to answer."""
        self.stream_opened(session_id, who, client_id)
        try:
            yield
        finally:
            self.stream_ended(session_id, who, client_id)

    def stream_opened(self, session_id: SessionId, who: Identity, client_id: ClientId | None) -> None:
        """Somebody reads the session from now on."""
        self._streams[session_id] += who.role is not Role.OBSERVER
        if self._streams[session_id] == 1:
            self.changed()
        if client_id is not None:
            self._connected[session_id, client_id] += 1

    def stream_ended(self, session_id: SessionId, who: Identity, client_id: ClientId | None) -> None:
        """What `stream_opened` was told is over."""
        if client_id is not None:
            self._disconnect(session_id, client_id)
        self._streams[session_id] -= who.role is not Role.OBSERVER
        if not self._streams[session_id]:
            del self._streams[session_id]
            self.changed()

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
        """Whether a controller is at the session now, on whichever node."""
        if self._streams.get(session_id):
            return True
        since = self._clock.monotonic() - PRESENT_S
        if any(each == session_id and at >= since for (each, _), at in self._beats.items()):
            return True
        return any(told.controllers for told in self._told_of(session_id))

    @contextmanager
    def only(self, can_answer: Callable[[str, Raw], bool]) -> Generator[None]:
        """A client is there, and beside such clients nobody can come. `can_answer`: a method with its params."""
        self._only.append(can_answer)
        try:
            yield
        finally:
            self._only.remove(can_answer)

    def can_be_asked(self, method: str, params: Raw) -> bool:
        """Whether somebody is there, or may still come, who can put this request of an agent to a user."""
        return not self._only or any(each(method, params) for each in self._only)

    def there(self) -> dict[SessionId, There]:
        """Who is at each session, by what comes here."""
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
        """Another node tells who is there, of the `whole` or of what has changed.

        It tells the whole again before `PRESENT_S` are over.
        """
        now = self._clock.monotonic()
        _, before = self._elsewhere.pop(life, (now, dict[SessionId, There]()))
        self._elsewhere = {each: told for each, told in self._elsewhere.items() if told[0] >= now - PRESENT_S}
        kept = sessions if whole else before | sessions
        self._elsewhere[life] = (now, {name: each for name, each in kept.items() if each != _NOBODY})

    def _told_of(self, session_id: SessionId) -> list[There]:
        """Who is at the session, as each other node has told it not long ago."""
        if not self._elsewhere:
            return []
        since = self._clock.monotonic() - PRESENT_S
        return [told.get(session_id, _NOBODY) for at, told in self._elsewhere.values() if at >= since]


def _nobody_minds() -> None: ...


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
