"""One session at one client: updates pass the ready gate and are translated into the client's ACP version.

Updates in v2, requests and turn ends become frames in the client's outbox, in order. Nothing passes the gate before
the answer that opens the session, so nothing can overtake it. After it, frames wait for `session/ready`, a prompt
or a time limit, if the agent offers to wait. The gate has no clock and sends nothing itself; it drops only a
complete state that a later one replaces.
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
from turnwire.errors import LimitExceeded
from turnwire.ids import PromptId, RequestId
from turnwire.projections.encoder import Answer, EndedTurn, Fail, Outgoing, Tell, encoder_for
from turnwire.projections.encoder.encoder import FAILED_REASON, NOT_INSERTED, state_change, turn_complete_update
from turnwire.projections.translate.sessions import translate_setting_result
from turnwire.projections.translate.updates import NO_OFFERS, translator_for
from turnwire.wire.jsonrpc import Failure, Notification, Request, Result, encode, encode_failure, raw
from turnwire.wire.methods import CANCEL_REQUEST, SESSION_SET_CONFIG_OPTION
from turnwire.wire.schema.update import FULL_STATE, update_head

logger = logging.getLogger(__name__)
_OF_THE_DRAFT = frozenset({"user_message", "state_update"})
"""Updates that v1 lacks and the lifecycle draft has."""
Readiness: TypeAlias = Literal["ready", "prompt", "timeout", "answer"]
"""The reason why a client counts as ready for a session: it sent `session/ready`, it prompted, its time ran out, or
it is not asked to be ready and the answer that opened the session suffices.
"""
REQUEST_S = 2.0
"""Time after which a request goes out to a client that never reports ready, so that no turn hangs."""


class SessionClient:
    """One session at one client."""

    def __init__(self, client: ConnectedClient, session_id: str, on_ready: Callable[[Readiness], None]) -> None:
        """`on_ready` is called once, when the gate has released what it held."""
        self.connected = client
        self.session_id = session_id
        self._on_ready = on_ready
        profile = client.profile
        self._dialect = client.definition.options.dialect_for(profile)
        self._encoder = encoder_for(self._dialect)
        # Updates are v2 inside, so a v2 client needs no translation.
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
        """Mark the client as ready to receive everything."""
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
        """Send an update as it happens."""
        told = self._told(update, kind, own=own)
        if is_late:
            # Nothing of an ended turn is held back, and each chunk is marked late.
            told = [_late(each) for each in [*told, *self._held_back()]]
        for each in told:
            self._pass(kind, self._update(each))

    def tell_plain(self, update: Raw) -> None:
        """Send an update that is in the client's version already."""
        self._pass(_kind(update), self._update(update))

    def _told(self, update: Raw, kind: str, *, own: bool) -> list[Raw]:
        """Return an update in the client's version. `own`: this client prompted its turn."""
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
            # The translation may have made an update that every client accepts, such as a plan.
            told = [each for each in told if _kind(each) not in self._withheld]
        return told

    def _held_back(self) -> list[Raw]:
        """Return what the translation held back, before a frame that is not an update."""
        return [] if self._translator is None else [for_v1(each) for each in self._translator.part()]

    # -- opening -------------------------------------------------------------------------------------------------

    def opened_with(self, offers: Raw) -> None:
        """Adopt the offers in the answer that opened the session."""
        if self._translator is not None:
            self._translator.offers(offers)

    def setting_result(self, result: Raw) -> Raw:
        """Return the answer to a setting, which lists the options in the client's version."""
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
        """Return the marker for a turn end in the history."""
        if self._translator is None:
            return [idle]
        told = [raw(state_change(msgspec.json.decode(idle)))] if self._dialect.lifecycle else []
        if self._dialect.turn_complete:
            ended = read_end(idle)
            reason = ended.stop_reason or FAILED_REASON
            # No request id: the client that loads may be using the same number for its own prompt.
            told.append(raw(turn_complete_update(ended.prompt_id, None, reason, own=False)))
        return told

    def snapshot(self, state: Raw) -> list[bytes]:
        """Return frames with the current state, sent before that answer."""
        return [self._update(each) for each in self._told(state, "state_update", own=False)]

    # -- turns ---------------------------------------------------------------------------------------------------

    def accepted(self, request_id: RequestId, prompt_id: PromptId, message_id: str) -> None:
        """The client's prompt is in the conversation."""
        self._send(self._encoder.accepted(prompt_id, message_id), request_id)

    def end(self, ended: EndedTurn, *, own: bool) -> None:
        """Report the end of a turn. Only the client that sent the prompt sees its request id."""
        told = ended if own else msgspec.structs.replace(ended, request_id=None)
        self._end(self._encoder.end(told, own=own), told)

    def take_back(self, ended: EndedTurn, *, is_refused: bool) -> None:
        """Answer a prompt that never entered the conversation. `is_refused`: its request was cancelled."""
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
        """Send the encoder's frames. `request_id` is that of their prompt."""
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
        """Send a request and wait for its answer. Cancelled with its caller. Raises `LinkBroken`.

        `begun` is called with its id before the answer.
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
    """Stages of opening a session."""

    OPENING = "opening"
    """The answer that opens it is not written."""
    WAITING = "waiting"
    """Opened, and the client has not reported ready."""
    OPEN = "open"


class Gate:
    """The gate of one session at one client."""

    def __init__(self, max_held: int) -> None:
        self.stage = GateStage.OPENING
        self._max_held = max_held
        self._held: list[tuple[str, bytes]] = []

    @property
    def holds(self) -> int:
        """Return the number of held frames."""
        return len(self._held)

    def check(self, kind: str) -> None:
        """Raise `LimitExceeded` if too many frames are held and none can be replaced."""
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
        """Return whether the frame may go out now, else hold it. Ends and requests are held beyond the bound."""
        if self.stage is GateStage.OPEN:
            return True
        self._held.append((kind, frame))
        return False

    def answered(self, *, waits: bool) -> list[bytes]:
        """Note that the answer that opens the session is written. `waits`: until the client is ready."""
        if self.stage is not GateStage.OPENING:
            return []
        self.stage = GateStage.WAITING
        return [] if waits else self.open()

    def open(self) -> list[bytes]:
        """Return the frames that may be sent now that the client is ready. While opening there are none."""
        if self.stage is not GateStage.WAITING:
            return []
        self.stage = GateStage.OPEN
        frames, self._held = [frame for _, frame in self._held], []
        return frames

    def discard(self) -> None:
        """Drop held frames of a client that disconnected; nothing waits any more."""
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
