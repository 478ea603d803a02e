"""What a client of each version is told of a turn: its prompt, its states, its one end.

The daemon and the agents of the SDK speak to clients by these rules and no others. An encoder is one session at one
client; it knows what was agreed with the client and nothing of the turn's course, so it has no memory. Pure.

On v1 a turn ends with the answer to its prompt. Before the answer come the marks of the end, in the forms that the
client can take: the `turn_complete` update if it asked for it, a notification and a `_meta` member for the others.
On v2 a prompt is answered when its message is in the conversation, and the state tells the rest: running,
requires_action, idle with how it ended. Written in this order: message, answer, running.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.encoder.outgoing import Answer, Fail, Notify, Outgoing, Tell
from turnwire.ids import PromptId, RequestId, SessionId
from turnwire.wire.jsonrpc import INTERNAL_ERROR, REQUEST_CANCELLED, ErrorObject, raw
from turnwire.wire.methods import TURN_COMPLETE, VENDOR
from turnwire.wire.schema.common import STOP_REASONS

Json: TypeAlias = dict[str, Any]
Background: TypeAlias = Raw | UnsetType
"""An agent's list of what runs in its background, as it came."""

MARK: Final = "turnComplete"
"""The end of a turn among our members of `_meta`."""
NOT_INSERTED: Final = ErrorObject(REQUEST_CANCELLED, "the prompt was cancelled before it entered the conversation")
_UNKNOWN_REASON: Final = ErrorObject(INTERNAL_ERROR, "the turn ended for a reason that ACP v1 does not have")


# -- what was agreed ----------------------------------------------------------------------------------------------


class Emission(StrEnum):
    """Towards which v1 clients the end of a turn is marked. An operator decides."""

    NEGOTIATED = "negotiated"
    ALWAYS = "always"
    OFF = "off"


class Dialect(Struct, frozen=True, kw_only=True):
    """How to speak to a client. Does not change after the handshake: one connection speaks one dialect."""

    version: int
    turn_complete: bool = False
    """It asked for the `turn_complete` update."""
    emission: Emission = Emission.NEGOTIATED
    lifecycle: bool = False
    """v1 with the names of the lifecycle draft: `user_message`, `state_change`, `stop_reason`."""
    strict: bool = False
    """What is only a draft of ACP is told in `_meta` and under names that begin with `_`, nowhere else."""
    usage_in_mark: bool = False
    """The `turn_complete` update has the usage too, for clients that have ended the turn before the answer."""
    boolean_options: bool = True
    """It takes config options that are on or off."""

    @property
    def marks(self) -> bool:
        """Whether the client is sent the `turn_complete` update itself."""
        if self.strict:
            return False
        return self.emission is Emission.ALWAYS or (self.emission is Emission.NEGOTIATED and self.turn_complete)


# -- how a turn ended ---------------------------------------------------------------------------------------------


class EndedTurn(Struct, frozen=True, kw_only=True):
    """How a turn ended, in the words of neither version. Without a stop reason it failed, with an error."""

    prompt_id: PromptId
    request_id: RequestId | None = None
    """By which its client sent the prompt. Means something on that client's connection only."""
    by_agent: bool = False
    """The agent began it, so that no client waits for its end."""
    stop_reason: str | None = None
    error: Raw | ErrorObject | None = None
    usage: Raw | Json | UnsetType = UNSET
    assumed: bool = False
    """The agent gave no reason."""


def state_update(state: str, background: Background = UNSET, **members: Any) -> Json:
    """What the foreground does, in the words of v2."""
    update: Json = {"sessionUpdate": "state_update", "state": state, **members}
    return update if background is UNSET else {**update, "background": background}


def idle_update(ended: EndedTurn, background: Background = UNSET) -> Json:
    """The end of a turn, in the words of v2."""
    members: Json = {} if ended.assumed else {"stopReason": ended.stop_reason or "error"}
    if ended.error is not None:
        members["error"] = ended.error
    if ended.usage is not UNSET:
        members["usage"] = ended.usage
    return state_update("idle", background, **members)


def turn_complete_update(mark: Json, **members: Any) -> Json:
    """The draft's own update."""
    # Our own name has no place among the members that the draft defines.
    defined = {name: value for name, value in mark.items() if name != "promptId"}
    named = {"_meta": {"promptId": mark.get("promptId")}}
    return {"sessionUpdate": "turn_complete", **defined, **members, **named}


def _mark(ended: EndedTurn, stop_reason: str | None, *, own: bool) -> Json:
    """As the drafts of `turn_complete` name an end."""
    mark: Json = {"promptId": ended.prompt_id}
    if own and ended.request_id is not None:
        # Request ids are local to a connection: to another one the same number is a request of its own.
        mark["promptRequestId"] = ended.request_id
    return mark if stop_reason is None else {**mark, "stopReason": stop_reason}


# -- the encoders -------------------------------------------------------------------------------------------------


class Encoder(Protocol):
    """One session at one client. `own`: it is about a prompt that this client sent."""

    tells_background: bool
    """Whether the client has a word for what runs in the background."""

    def shows_prompt(self, *, own: bool) -> bool:
        """Whether the client is told the message of a prompt."""
        ...

    def user_message(self, prompt_id: PromptId, message_id: str, blocks: list[Raw], *, own: bool) -> list[Outgoing]:
        """A prompt is in the conversation."""
        ...

    def accepted(self, prompt_id: PromptId, message_id: str) -> list[Outgoing]:
        """The answer to the client's own prompt, if it is answered by now."""
        ...

    def state(self, state: str, background: Background = UNSET) -> list[Outgoing]:
        """The foreground has begun to do something else: it runs, or waits for the user."""
        ...

    def standing(self, state: str, last: EndedTurn | None, background: Background = UNSET) -> list[Outgoing]:
        """Where the session stands, for a client that has heard its history. `last`: how its last turn ended."""
        ...

    def end(
        self,
        ended: EndedTurn,
        *,
        own: bool,
        is_inserted: bool = True,
        is_foreground: bool = True,
        background: Background = UNSET,
    ) -> list[Outgoing]:
        """A prompt has ended; what ends the turn comes last.

        `is_inserted`: its message was in the conversation. `is_foreground`: the foreground's work ends with it, as
        it does not for a prompt that had joined another turn, or that was never inserted.
        """
        ...


def encoder_for(dialect: Dialect, session_id: SessionId, losses: Counter[str] | None = None) -> Encoder:
    """The encoder for a client. `losses`: where it counts what its version has no words for."""
    counted = Counter[str]() if losses is None else losses
    return EncoderV2(dialect) if dialect.version == 2 else EncoderV1(dialect, session_id, counted)


class EncoderV1:
    """A turn ends with the answer to its prompt. Marks of the end come before it, as the client can take them."""

    tells_background = False

    def __init__(self, dialect: Dialect, session_id: SessionId, losses: Counter[str]) -> None:
        self._dialect = dialect
        self._session_id = session_id
        self._losses = losses

    def shows_prompt(self, *, own: bool) -> bool:
        # Others' prompts are shown (R55); the sender knows its own, unless it asked to have all of them told.
        return self._dialect.lifecycle or not own

    def user_message(self, prompt_id: PromptId, message_id: str, blocks: list[Raw], *, own: bool) -> list[Outgoing]:
        if not self.shows_prompt(own=own):
            return []
        if self._dialect.lifecycle:
            return [_tell("user_message", messageId=message_id, content=blocks)]
        return [_tell("user_message_chunk", content=each, messageId=message_id) for each in blocks]

    def accepted(self, prompt_id: PromptId, message_id: str) -> list[Outgoing]:
        return []

    def state(self, state: str, background: Background = UNSET) -> list[Outgoing]:
        return self._state_change(state)

    def _state_change(self, state: str, **members: Any) -> list[Outgoing]:
        # v1 has no word for it: the state is in the open request. Only the lifecycle draft has one.
        return [_tell("state_change", state=state, **members)] if self._dialect.lifecycle else []

    def standing(self, state: str, last: EndedTurn | None, background: Background = UNSET) -> list[Outgoing]:
        return self.state(state)

    def end(
        self,
        ended: EndedTurn,
        *,
        own: bool,
        is_inserted: bool = True,
        is_foreground: bool = True,
        background: Background = UNSET,
    ) -> list[Outgoing]:
        frames: list[Outgoing] = []
        if is_foreground:
            reason = {} if ended.stop_reason is None else {"stop_reason": ended.stop_reason}
            frames += self._state_change("idle", **reason)
        stop_reason = self._stop_reason(ended.stop_reason)
        mark = _mark(ended, stop_reason, own=own)
        frames += self._marks(ended, mark)
        if own and not ended.by_agent:
            frames.append(self._answer(ended, stop_reason, mark))
        return frames

    def _marks(self, ended: EndedTurn, mark: Json) -> list[Outgoing]:
        """The end in all its forms, in the order in which they are written (R22)."""
        dialect = self._dialect
        if dialect.emission is Emission.OFF or ended.by_agent:
            return []
        frames: list[Outgoing] = []
        if dialect.emission is Emission.ALWAYS or dialect.strict or not dialect.turn_complete:
            frames.append(_tell("session_info_update", _meta={VENDOR: {MARK: mark}}))
        if dialect.marks:
            usage = {"usage": ended.usage} if dialect.usage_in_mark and ended.usage is not UNSET else {}
            frames.append(Tell(raw(turn_complete_update(mark, **usage))))
        frames.append(Notify(TURN_COMPLETE, raw({"sessionId": self._session_id, **mark})))
        return frames

    def _answer(self, ended: EndedTurn, reason: str | None, mark: Json) -> Outgoing:
        if reason is None:
            return Fail(ended.prompt_id, raw(_UNKNOWN_REASON if ended.error is None else ended.error))
        result: Json = {"stopReason": reason}
        if ended.usage is not UNSET:
            result["usage"] = ended.usage
        if self._dialect.emission is not Emission.OFF:
            result["_meta"] = {VENDOR: {MARK: mark}}
        return Answer(ended.prompt_id, raw(result))

    def _stop_reason(self, reason: str | None) -> str | None:
        """One of v1's five. An agent's own reason is none of them and no success; one of a later ACP is an end."""
        if reason is None or reason in STOP_REASONS:
            return reason
        self._losses["stop_reason"] += 1
        return None if reason.startswith("_") else "end_turn"


class EncoderV2:
    """A prompt is answered when its message is in the conversation, and a turn ends with an idle state."""

    tells_background = True

    def __init__(self, dialect: Dialect) -> None:
        self._tags = dialect.strict and dialect.turn_complete and dialect.emission is not Emission.OFF

    def shows_prompt(self, *, own: bool) -> bool:
        return True

    def user_message(self, prompt_id: PromptId, message_id: str, blocks: list[Raw], *, own: bool) -> list[Outgoing]:
        return [_tell("user_message", messageId=message_id, content=blocks)]

    def accepted(self, prompt_id: PromptId, message_id: str) -> list[Outgoing]:
        return [Answer(prompt_id, raw({"messageId": message_id}))]

    def state(self, state: str, background: Background = UNSET) -> list[Outgoing]:
        return [Tell(raw(state_update(state, background)))]

    def standing(self, state: str, last: EndedTurn | None, background: Background = UNSET) -> list[Outgoing]:
        if state == "idle" and last is not None:
            return [Tell(raw(idle_update(last, background)))]
        return self.state(state, background)

    def end(
        self,
        ended: EndedTurn,
        *,
        own: bool,
        is_inserted: bool = True,
        is_foreground: bool = True,
        background: Background = UNSET,
    ) -> list[Outgoing]:
        frames: list[Outgoing] = []
        if own and not is_inserted:
            # Ended before its message was inserted: that is the only case in which v2 refuses what was accepted.
            frames.append(Fail(ended.prompt_id, raw(NOT_INSERTED if ended.error is None else ended.error)))
        if is_foreground and self._tags and not ended.by_agent:
            frames.append(_tell("_turn_complete", **_mark(ended, ended.stop_reason, own=own)))
        if is_foreground:
            frames.append(Tell(raw(idle_update(ended, background))))
        return frames


def _tell(kind: str, **members: Any) -> Tell:
    return Tell(raw({"sessionUpdate": kind, **members}))
