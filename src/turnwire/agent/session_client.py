"""One session at one client: what the session tells passes the ready gate, in the words of that client.

Updates in the words of v2, requests and ends of turns become frames in the client's outbox, in order. Before the
answer that opens the session nothing passes the gate, so nothing can overtake it. After it, frames wait for
`session/ready`, a prompt or a time limit, if the agent offers to wait. The gate itself holds no clock and sends
nothing; it drops nothing but a full state that a later one replaces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Literal, TypeAlias

import anyio
import msgspec
from msgspec import Raw

from turnwire.agent.connected_client import BegunRequest, ConnectedClient, Outbox
from turnwire.agent.history import read_end
from turnwire.agent.v2_updates import Json, for_v1, for_v2, marked_late
from turnwire.core.correlation import spellings
from turnwire.core.encoder import Answer, EndedTurn, Fail, Outgoing, Tell, encoder_for
from turnwire.core.encoder.encoder import NOT_INSERTED, state_change, turn_complete_update
from turnwire.core.translate.sessions import translate_setting_result
from turnwire.core.translate.updates import NO_OFFERS, translator_for
from turnwire.errors import LimitExceeded
from turnwire.ids import PromptId, RequestId
from turnwire.wire.jsonrpc import Failure, Notification, Request, Result, encode, encode_failure, raw
from turnwire.wire.methods import CANCEL_REQUEST, SESSION_SET_CONFIG_OPTION
from turnwire.wire.schema.update import FULL_STATE, update_head

logger = logging.getLogger(__name__)
_OF_THE_DRAFT = frozenset({"user_message", "state_update"})
"""What v1 has no word for and the lifecycle draft has."""
Readiness: TypeAlias = Literal["ready", "prompt", "timeout", "answer"]
"""Why a client counts as ready for a session: it said so, it prompted, it took too long to say so, or it is not
asked to say so, and then the answer that opened the session is all there is to wait for."""
REQUEST_S = 2.0
"""A request to a client that never says it is ready goes out after this, so that no turn hangs on it."""


class SessionClient:
    """One session at one client."""

    def __init__(self, client: ConnectedClient, session_id: str, on_ready: Callable[[Readiness], None]) -> None:
        """`on_ready` is called once, when the gate has let through what it held."""
        self.connected = client
        self.session_id = session_id
        self._on_ready = on_ready
        profile = client.profile
        self._dialect = client.definition.options.dialect_for(profile)
        self._encoder = encoder_for(self._dialect)
        # What is said inside is v2, so a v2 client needs no translation.
        self._translator = translator_for(2, profile.version, NO_OFFERS, boolean_options=profile.boolean_options)
        self._withheld = profile.withheld
        self.is_left = False
        self._gate = Gate(client.definition.options.held)
        self._head = update_head(session_id)
        self._timer: anyio.CancelScope | None = None

    @property
    def outbox(self) -> Outbox:
        return self.connected.outbox

    # -- the gate ------------------------------------------------------------------------------------------------

    def answered(self) -> None:
        """The answer that opens the session is in the outbox."""
        options, client = self.connected.definition.options, self.connected
        self._put_all(self._gate.answered(waits=options.awaits(client.profile) and not client.was_late))
        if self._gate.stage is GateStage.WAITING and options.ready_s is not None:
            self._start_timer(options.ready_s)
        if self._gate.stage is GateStage.OPEN and not self.is_left:
            self._on_ready("answer")

    def be_ready(self, how: Readiness) -> None:
        """The client can take everything."""
        self._open_gate(how)
        if self._gate.stage is GateStage.OPEN and self._timer is not None:
            self._timer.cancel()

    def _open_gate(self, how: Readiness) -> None:
        if self._gate.stage is GateStage.WAITING:
            self._put_all(self._gate.open())
            self._on_ready(how)

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
            if not self.connected.was_late:
                logger.warning(
                    "a client did not say that it is ready for session %s within %s s; it is told now",
                    self.session_id,
                    seconds,
                )
            self.connected.was_late = not self.connected.says_ready
            self._open_gate("timeout")

    # -- telling -------------------------------------------------------------------------------------------------

    def check_room(self, kind: str) -> None:
        """Raise `LimitExceeded` if the client does not read, or is not ready and too much waits for it."""
        self.outbox.check_room()
        self._gate.check(kind)

    def tell(self, update: Raw, kind: str, *, own: bool, is_late: bool = False) -> None:
        """An update, live."""
        told = self._told(update, kind, own=own)
        if is_late:
            # Nothing of an ended turn is held back for later, and each piece says what it is.
            told = [_late(each) for each in [*told, *self._held_back()]]
        for each in told:
            self._pass(kind, self._update(each))

    def tell_plain(self, update: Raw) -> None:
        """An update that is in the client's words already."""
        self._pass(_kind(update), self._update(update))

    def _told(self, update: Raw, kind: str, *, own: bool) -> list[Raw]:
        """An update in the client's words. `own`: this client prompted the turn that it belongs to."""
        if kind == "user_message" and not self._encoder.shows_prompt(own=own):
            return []
        if self._translator is None:
            return [for_v2(update)]
        if self._dialect.lifecycle and kind in _OF_THE_DRAFT:
            fields: Json = msgspec.json.decode(update)
            told = raw(state_change(fields)) if kind == "state_update" else for_v1(update)
            return [*self._held_back(), told]
        told = [for_v1(each) for each in self._translator.take(update, turn=None)]
        if kind in self._withheld:
            # It may have become something that every client takes, such as a plan.
            told = [each for each in told if _kind(each) not in self._withheld]
        return told

    def _held_back(self) -> list[Raw]:
        """Something that is no update comes next: what the translation held back."""
        return [] if self._translator is None else [for_v1(each) for each in self._translator.part()]

    # -- opening -------------------------------------------------------------------------------------------------

    def opened_with(self, offers: Raw) -> None:
        """What the session offers, as the answer that opened it says."""
        if self._translator is not None:
            self._translator.offers(offers)

    def setting_result(self, result: Raw) -> Raw:
        """The answer to a setting, which lists the options in the client's words."""
        profile = self.connected.profile
        return translate_setting_result(
            SESSION_SET_CONFIG_OPTION,
            NO_OFFERS,
            result,
            2,
            profile.version,
            NO_OFFERS,
            boolean_options=profile.boolean_options,
        )

    def replayed(self, history: Iterable[bytes]) -> list[bytes]:
        """Frames with the history, for before the answer that opens the session."""
        told: list[Raw] = []
        for each in history:
            kind = _kind(each)
            if kind == "state_update":
                told += [*self._held_back(), *self._replayed_end(Raw(each))]
            else:
                told += self._told(Raw(each), kind, own=False)
        return [self._update(each) for each in [*told, *self._held_back()]]

    def _replayed_end(self, idle: Raw) -> list[Raw]:
        """A turn had ended, long ago."""
        if self._translator is None:
            return [idle]
        told = [raw(state_change(msgspec.json.decode(idle)))] if self._dialect.lifecycle else []
        if self._dialect.turn_complete:
            ended = read_end(idle)
            request_id = self._foreign(ended.request_id)
            # Waiters for live prompts ignore it: it comes before the load is answered.
            told.append(raw(turn_complete_update(ended.prompt_id, request_id, ended.stop_reason, own=False)))
        return told

    def _foreign(self, request_id: RequestId | None) -> RequestId | None:
        """The id of a request of another client, unless this one has a prompt of the same id open."""
        if request_id is None or any(map(self.connected.is_prompting, spellings(request_id))):
            return None
        return request_id

    def snapshot(self, state: Raw) -> list[bytes]:
        """Frames with what holds now, for before that answer."""
        return [self._update(each) for each in self._told(state, "state_update", own=False)]

    # -- turns ---------------------------------------------------------------------------------------------------

    def accepted(self, request_id: RequestId, prompt_id: PromptId, message_id: str) -> None:
        """The client's prompt is in the conversation."""
        self._send(self._encoder.accepted(prompt_id, message_id), request_id)

    def end(self, ended: EndedTurn, *, own: bool) -> None:
        """A turn has ended."""
        told = ended if own else msgspec.structs.replace(ended, request_id=self._foreign(ended.request_id))
        self._end(self._encoder.end(told, own=own), told)

    def take_back(self, ended: EndedTurn, *, is_refused: bool) -> None:
        """The client's prompt never entered the conversation. `is_refused`: its request was cancelled."""
        told = self._encoder.end(ended, own=True, is_inserted=False, is_foreground=False)
        refusals = [each for each in told if isinstance(each, Fail)]
        assert ended.request_id is not None, "a prompt of a client is a request"
        if is_refused or refusals:
            # A refusal is of no use to the session, so it does not wait for its gate.
            self.connected.fail(ended.request_id, refusals[0].error if refusals else raw(NOT_INSERTED))
        else:
            self._end(told, ended)

    def _end(self, told: Iterable[Outgoing], ended: EndedTurn) -> None:
        for each in self._held_back():
            self._pass("", self._update(each))
        self._send(told, ended.request_id)

    def _send(self, told: Iterable[Outgoing], request_id: RequestId | None) -> None:
        """What the encoder says. `request_id`: of the prompt that it is about."""
        for each in told:
            match each:
                case Tell(update):
                    self._pass("", self._update(update))
                case Answer(_, result):
                    assert request_id is not None, "only a request is answered"
                    self._pass("", encode(Result(request_id, result)))
                case Fail(_, error):
                    assert request_id is not None, "only a request is refused"
                    self._pass("", encode_failure(request_id, error))
                case _:
                    raise AssertionError("an agent asks its client by `request`")

    # -- asking --------------------------------------------------------------------------------------------------

    async def request(self, method: str, params: Json, begun: BegunRequest | None = None) -> Result | Failure:
        """Ask the client and wait. Taken back if nobody waits any more. Raises `LinkBroken`.

        `begun`: by which id, if somebody had to know that before.
        """
        for each in self._held_back():
            self._pass("", self._update(each))
        request_id, answer = begun or self.connected.calls.begin()
        self._pass("", encode(Request(request_id, method, raw(params))))
        if self._gate.stage is GateStage.WAITING:
            self._start_timer(REQUEST_S)
        try:
            return await answer.wait()
        except BaseException:
            if self.connected.calls.withdraw(request_id):
                self._pass("", encode(Notification(CANCEL_REQUEST, raw({"requestId": request_id}))))
            raise

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
    fields: dict[str, Any] = msgspec.json.decode(update)
    return raw(marked_late(fields))


# -- the ready gate: what nobody asked for waits until the client can take it ----------------------------------


class GateStage(Enum):
    """Where a session is in its opening."""

    OPENING = "opening"
    """The answer that opens it is not written."""
    WAITING = "waiting"
    """It is, and the client has not said that it is ready."""
    OPEN = "open"


class Gate:
    """One session at one client."""

    def __init__(self, max_held: int) -> None:
        self.stage = GateStage.OPENING
        self._max_held = max_held
        self._held: list[tuple[str, bytes]] = []

    @property
    def holds(self) -> int:
        """How many wait."""
        return len(self._held)

    def check(self, kind: str) -> None:
        """Raise `LimitExceeded` if too many wait already and none of them can be replaced."""
        if self.stage is GateStage.OPEN or len(self._held) < self._max_held:
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
        if self.stage is GateStage.OPEN:
            return True
        self._held.append((kind, frame))
        return False

    def answered(self, *, waits: bool) -> list[bytes]:
        """The answer that opens the session is written. `waits`: the client is to say when it is ready."""
        if self.stage is not GateStage.OPENING:
            return []
        self.stage = GateStage.WAITING
        return [] if waits else self.open()

    def open(self) -> list[bytes]:
        """What may go now, because the client can take it all. While it is opening it cannot, whoever says so."""
        if self.stage is not GateStage.WAITING:
            return []
        self.stage = GateStage.OPEN
        frames, self._held = [frame for _, frame in self._held], []
        return frames

    def discard(self) -> None:
        """The client has left: what waits for it is forgotten, and nothing waits any more."""
        self._held.clear()
        self.stage = GateStage.OPEN

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
