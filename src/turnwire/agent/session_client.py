"""One session at one client: what the session tells passes the ready gate, in the words of that client.

Takes updates in the words of v2, requests and ends of turns; puts frames into the client's outbox, in order. Before
the answer that opens the session nothing passes the gate, so nothing can overtake it. After it, frames wait for
`session/ready`, a prompt or a time limit, if the agent offers to wait. The gate itself holds no clock and sends
nothing; it drops nothing but a full state that a later one replaces.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from turnwire.agent.connected_client import ConnectedClient, Outbox
from turnwire.agent.v2_updates import Json, marked_late
from turnwire.agent.voice import End, Told, voice_for
from turnwire.errors import LimitExceeded
from turnwire.ids import RequestId
from turnwire.wire.jsonrpc import Failure, Notification, Request, Result, encode, raw

logger = logging.getLogger(__name__)
REQUEST_S = 2.0
"""A request to a client that never says it is ready goes out after this, so that no turn hangs on it."""


class SessionClient:
    """One session at one client."""

    def __init__(self, client: ConnectedClient, session_id: str) -> None:
        self.connected = client
        self.session_id = session_id
        self.voice = voice_for(client.profile, client.definition.options)
        self.is_left = False
        self._gate = Gate(client.definition.options.held)
        self._head = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%b,"update":' % (
            msgspec.json.encode(session_id)
        )
        self._timer: anyio.CancelScope | None = None

    @property
    def outbox(self) -> Outbox:
        return self.connected.outbox

    # -- the gate ------------------------------------------------------------------------------------------------

    def answered(self) -> None:
        """The answer that opens the session is in the outbox."""
        options = self.connected.definition.options
        self._put_all(self._gate.answered(waits=options.offers_ready))
        if self._gate.stage is Stage.WAITING and options.ready_s is not None:
            self._start_timer(options.ready_s)

    def be_ready(self) -> None:
        """The client can take everything."""
        self._put_all(self._gate.open())
        if self._gate.stage is Stage.OPEN and self._timer is not None:
            self._timer.cancel()

    def leave(self) -> None:
        """Nothing more goes to this client for this session."""
        self.is_left = True
        self._gate.discard()
        if self._timer is not None:
            self._timer.cancel()

    def _start_timer(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = anyio.CancelScope()
            self.connected.tasks.start_soon(self._expire, self._timer, seconds)

    async def _expire(self, scope: anyio.CancelScope, seconds: float) -> None:
        with scope:
            await self.connected.definition.clock.sleep(seconds)
            logger.warning(
                "a client did not say that it is ready for session %s within %s s; it is told now",
                self.session_id,
                seconds,
            )
            self._put_all(self._gate.open())

    # -- telling -------------------------------------------------------------------------------------------------

    def check_room(self, kind: str) -> None:
        """Raise `LimitExceeded` if the client does not read, or is not ready and too much waits for it."""
        self.outbox.check_room()
        self._gate.check(kind)

    def tell(self, update: Raw, kind: str, *, own: bool, is_late: bool = False) -> None:
        """An update, live."""
        told = self.voice.update(update, kind, own=own)
        if is_late:
            # Nothing of an ended turn is held back for later, and each piece says what it is.
            told = [_late(each) for each in [*told, *self.voice.part()]]
        for each in told:
            self._pass(kind, self._update(each))

    def tell_plain(self, update: Raw) -> None:
        """An update that is in the client's words already."""
        self._pass(_kind(update), self._update(update))

    def replayed(self, history: Iterable[bytes]) -> list[bytes]:
        """Frames with the history, for before the answer that opens the session."""
        told: list[Raw] = []
        for each in history:
            kind = _kind(each)
            if kind == "state_update":
                told += [*self.voice.part(), *self.voice.replayed_end(Raw(each))]
            else:
                told += self.voice.update(Raw(each), kind, own=False)
        return [self._update(each) for each in [*told, *self.voice.part()]]

    def snapshot(self, state: Raw) -> list[bytes]:
        """Frames with what holds now, for before that answer."""
        return [self._update(each) for each in self.voice.update(state, "state_update", own=False)]

    def accepted(self, request_id: RequestId, message_id: str) -> None:
        """The client's prompt is in the conversation."""
        self._put_told(self.voice.accepted(request_id, message_id))

    def end(self, end: End, *, own: bool) -> None:
        """A turn has ended."""
        self._put_told([*self.voice.part(), *self.voice.end(self.session_id, end, own=own)])

    async def request(self, method: str, params: Json) -> Result | Failure:
        """Ask the client and wait. Taken back if nobody waits any more. Raises `LinkBroken`."""
        for each in self.voice.part():
            self._pass("", self._update(each))
        request_id, answer = self.connected.calls.begin()
        self._pass("", encode(Request(request_id, method, raw(params))))
        if self._gate.stage is Stage.WAITING:
            self._start_timer(REQUEST_S)
        try:
            return await answer.wait()
        except BaseException:
            if self.connected.calls.withdraw(request_id):
                self._pass("", encode(Notification("$/cancel_request", raw({"requestId": request_id}))))
            raise

    def _put_told(self, told: Iterable[Told]) -> None:
        for each in told:
            self._pass("", self._update(each) if isinstance(each, Raw) else encode(each))

    def _pass(self, kind: str, frame: bytes) -> None:
        if not self.is_left and self._gate.take(kind, frame):
            self.outbox.put(frame)

    def _put_all(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            self.outbox.put(frame)

    def _update(self, update: Raw) -> bytes:
        return b"%b%b}}" % (self._head, bytes(update))


class _Kind(msgspec.Struct, rename="camel"):
    session_update: str = ""


_read_kind = msgspec.json.Decoder(_Kind).decode


def _kind(update: bytes | Raw) -> str:
    return _read_kind(update).session_update


def _late(update: Raw) -> Raw:
    given: dict[str, Any] = msgspec.json.decode(update)
    return raw(marked_late(given))


# -- the ready gate: what nobody asked for waits until the client can take it ----------------------------------


FULL_STATE = frozenset(
    {"available_commands_update", "config_option_update", "current_mode_update", "usage_update"},
)
"""Updates that say all there is to say, so that a later one replaces an earlier one."""


class Stage(Enum):
    """Where a session is in its opening."""

    OPENING = "opening"
    """The answer that opens it is not written."""
    WAITING = "waiting"
    """It is, and the client has not said that it is ready."""
    OPEN = "open"


class Gate:
    """One session at one client."""

    def __init__(self, max_held: int) -> None:
        self.stage = Stage.OPENING
        self._max_held = max_held
        self._held: list[tuple[str, bytes]] = []

    @property
    def holds(self) -> int:
        """How many wait."""
        return len(self._held)

    def check(self, kind: str) -> None:
        """Raise `LimitExceeded` if too many wait already and none of them can be replaced."""
        if self.stage is Stage.OPEN or len(self._held) < self._max_held:
            return
        self._coalesce(kind)
        if len(self._held) >= self._max_held:
            raise LimitExceeded(
                "too many updates wait for the client to be ready; send fewer before the first prompt",
                limit="held",
                value=self._max_held,
            )

    def take(self, kind: str, frame: bytes) -> bool:
        """Whether the frame may go now; else it is held. An end or a request is held whatever the bound is."""
        if self.stage is Stage.OPEN:
            return True
        self._held.append((kind, frame))
        return False

    def answered(self, *, waits: bool) -> list[bytes]:
        """The answer that opens the session is written. `waits`: the client is to say when it is ready."""
        if self.stage is not Stage.OPENING:
            return []
        self.stage = Stage.WAITING
        return [] if waits else self.open()

    def open(self) -> list[bytes]:
        """What may go now, because the client can take it all. While it is opening it cannot, whoever says so."""
        if self.stage is not Stage.WAITING:
            return []
        self.stage = Stage.OPEN
        frames, self._held = [frame for _, frame in self._held], []
        return frames

    def discard(self) -> None:
        """The client has left: what waits for it is forgotten, and nothing waits any more."""
        self._held.clear()
        self.stage = Stage.OPEN

    def _coalesce(self, coming: str) -> None:
        """Drop each full state that a later one replaces."""
        kept: list[tuple[str, bytes]] = []
        later = {coming} & FULL_STATE
        for kind, frame in reversed(self._held):
            if kind in later:
                continue
            later |= {kind} & FULL_STATE
            kept.append((kind, frame))
        self._held = kept[::-1]
