"""What a client of each version is told of a turn: its prompt, its states, its one end.

The daemon and the agents of the SDK speak to clients by these rules and no others. An encoder is one session at one
client; it knows what was agreed with the client and nothing of the turn's course, so it has no memory. Pure.

On v1 a turn ends with the answer to its prompt. Before the answer comes the `turn_complete` update, if the client
was offered it. Others than the sender are told of the ends of turns alone: a prompt that never became a turn, or
that joined one, must not look like the end of the turn that runs.
On v2 a prompt is answered when its message is in the conversation, and the state tells the rest: running,
requires_action, idle with how it ended. Written in this order: message, answer, running.

What a client is sent has no JSON-RPC id and no stream yet, and the names in it are ours (`promptId`, `requestId`):
the connection knows the JSON-RPC ids that the client gave and got.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.json_members import read_members
from turnwire.ids import ChildId, PermissionId, PromptId, RequestId
from turnwire.wire.jsonrpc import INTERNAL_ERROR, REQUEST_CANCELLED, ErrorObject, raw
from turnwire.wire.methods import VENDOR
from turnwire.wire.schema.common import STOP_REASONS

# -- what a client is sent -----------------------------------------------------------------------------------


class Tell(NamedTuple):
    """A `session/update`."""

    update: Raw
    beside: Raw | UnsetType = UNSET
    """What its params have beside the update, as an object."""
    child: ChildId | None = None
    """The child session that it is of; none if it is of the session itself."""


class TellBlocked(NamedTuple):
    """A `session/update` that says that the turn waits for its users; whoever writes it adds for what."""

    update: Raw
    waits: tuple[tuple[PermissionId, str], ...]
    """The open permission requests, each with its kind."""


class Answer(NamedTuple):
    """The result of the `session/prompt` that became this prompt, if this connection sent it."""

    prompt_id: PromptId
    result: Raw


class Fail(NamedTuple):
    """The error answer to that `session/prompt`."""

    prompt_id: PromptId
    error: Raw


class Ask(NamedTuple):
    """A question of the agent for the client's user."""

    request_id: PermissionId
    method: str
    params: Raw


class Withdraw(NamedTuple):
    """The question is settled; a client that was asked need not answer any more."""

    request_id: PermissionId


Outgoing: TypeAlias = Tell | TellBlocked | Answer | Fail | Ask | Withdraw


Json: TypeAlias = dict[str, Any]
Background: TypeAlias = Raw | UnsetType
"""An agent's list of what runs in its background, as it came."""

MARK: Final = "turnComplete"
"""The end of a turn among our members of `_meta`."""
NOT_INSERTED: Final = ErrorObject(REQUEST_CANCELLED, "the prompt was cancelled before it entered the conversation")
_UNKNOWN_REASON: Final = ErrorObject(INTERNAL_ERROR, "the turn ended for a reason that ACP v1 does not have")


# -- what was agreed ----------------------------------------------------------------------------------------------


class Dialect(Struct, frozen=True, kw_only=True):
    """How to speak to a client. Does not change after the handshake: one connection speaks one dialect."""

    version: int
    turn_complete: bool = False
    """It is sent the `turn_complete` update, and was offered it."""
    lifecycle: bool = False
    """v1 with the names of the lifecycle draft: `user_message`, `state_change`, `stop_reason`."""
    usage_in_mark: bool = False
    """The `turn_complete` update has the usage too, for clients that have ended the turn before the answer."""
    boolean_options: bool = True
    """It takes config options that are on or off."""
    children: bool = False
    """v1 that knows child sessions. On v2 every client does."""


# -- how a turn ended ---------------------------------------------------------------------------------------------


class EndedTurn(Struct, frozen=True, kw_only=True):
    """How a turn ended, in the words of neither version. Without a stop reason it failed, with an error."""

    prompt_id: PromptId
    request_id: RequestId | None = None
    """By which its client sent the prompt, if it came over ACP. Another connection may have the same id."""
    by_agent: bool = False
    """The agent began it, so that no client waits for its end."""
    stop_reason: str | None = None
    error: Raw | ErrorObject | None = None
    usage: Raw | Json | UnsetType = UNSET
    assumed: bool = False
    """The agent gave no reason."""
    beside: Raw | UnsetType = UNSET
    """What the agent said with the end and no version has, and its `_meta`: the other members, as an object."""


def refusal(ended: EndedTurn) -> Fail:
    """A prompt ended before its message was inserted: the only case in which one is refused after it was taken."""
    return Fail(ended.prompt_id, raw(NOT_INSERTED if ended.error is None else ended.error))


def state_change(update: Json) -> Json:
    """A state in the words of the lifecycle draft."""
    named = {("stop_reason" if name == "stopReason" else name): value for name, value in update.items()}
    return {**named, "sessionUpdate": "state_change"}


def state_update(state: str, background: Background = UNSET, **members: Any) -> Json:
    """What the foreground does, in the words of v2."""
    update: Json = {"sessionUpdate": "state_update", "state": state, **members}
    return update if background is UNSET else {**update, "background": background}


def idle_update(ended: EndedTurn, background: Background = UNSET) -> Json:
    """The end of a turn, in the words of v2."""
    members: Json = _others(ended.beside)
    if not ended.assumed:
        members["stopReason"] = ended.stop_reason or "error"
    if ended.error is not None:
        members["error"] = ended.error
    if ended.usage is not UNSET:
        members["usage"] = ended.usage
    return state_update("idle", background, **members)


def turn_complete_update(
    prompt_id: str, request_id: RequestId | None, stop_reason: str | None, *, own: bool, **members: Any
) -> Json:
    """The draft's own update. A prompt that was no request of JSON-RPC is named by our id of it."""
    update: Json = {
        "sessionUpdate": "turn_complete",
        "promptRequestId": prompt_id if request_id is None else request_id,
    }
    if stop_reason is not None:
        update["stopReason"] = stop_reason
    return {**update, **members, "_meta": {VENDOR: {"promptId": prompt_id, "own": own}}}


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

    def accepted(self, prompt_id: PromptId, message_id: str, beside: Raw | UnsetType = UNSET) -> list[Outgoing]:
        """The answer to the client's own prompt, if it is answered by now, with what the agent said beside it."""
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


def encoder_for(dialect: Dialect, losses: Counter[str] | None = None) -> Encoder:
    """The encoder for a client. `losses`: where it counts what its version has no words for."""
    counted = Counter[str]() if losses is None else losses
    return EncoderV2() if dialect.version == 2 else EncoderV1(dialect, counted)


class EncoderV1:
    """A turn ends with the answer to its prompt, behind the `turn_complete` update."""

    tells_background = False

    def __init__(self, dialect: Dialect, losses: Counter[str]) -> None:
        self._dialect = dialect
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

    def accepted(self, prompt_id: PromptId, message_id: str, beside: Raw | UnsetType = UNSET) -> list[Outgoing]:
        # The lifecycle draft answers a prompt when it is taken, and has nothing of its own to say with it.
        if self._dialect.lifecycle:
            return [Answer(prompt_id, raw(_others(beside)))]
        self._losses["accepted_members"] += beside is not UNSET
        return []

    def state(self, state: str, background: Background = UNSET) -> list[Outgoing]:
        return self._state_change(state_update(state))

    def _state_change(self, update: Json) -> list[Outgoing]:
        # v1 has no word for it: the state is in the open request. Only the lifecycle draft has one.
        return [Tell(raw(state_change(update)))] if self._dialect.lifecycle else []

    def standing(self, state: str, last: EndedTurn | None, background: Background = UNSET) -> list[Outgoing]:
        return self._state_change(
            idle_update(last) if state == "idle" and last is not None else state_update(state)
        )

    def end(
        self,
        ended: EndedTurn,
        *,
        own: bool,
        is_inserted: bool = True,
        is_foreground: bool = True,
        background: Background = UNSET,
    ) -> list[Outgoing]:
        frames: list[Outgoing] = self._state_change(idle_update(ended)) if is_foreground else []
        stop_reason = self._stop_reason(ended.stop_reason)
        if self._gets_mark(ended, own=own, is_inserted=is_inserted, is_foreground=is_foreground):
            frames.append(self._turn_complete(ended, stop_reason, own=own))
        if not own or ended.by_agent:
            return frames
        if not self._dialect.lifecycle:
            frames.append(self._answer(ended, stop_reason))
        elif not is_inserted:
            frames.append(refusal(ended))
        return frames

    def _gets_mark(self, ended: EndedTurn, *, own: bool, is_inserted: bool, is_foreground: bool) -> bool:
        """Whether the end is marked for the client: not that of a prompt which the agent refused (R24)."""
        if not self._dialect.turn_complete or ended.by_agent or not (own or is_foreground):
            return False
        return is_inserted or ended.stop_reason is not None

    def _turn_complete(self, ended: EndedTurn, reason: str | None, *, own: bool) -> Outgoing:
        usage = {"usage": ended.usage} if self._dialect.usage_in_mark and ended.usage is not UNSET else {}
        return Tell(raw(turn_complete_update(ended.prompt_id, ended.request_id, reason, own=own, **usage)))

    def _answer(self, ended: EndedTurn, reason: str | None) -> Outgoing:
        if reason is None:
            return Fail(ended.prompt_id, raw(_UNKNOWN_REASON if ended.error is None else ended.error))
        result: Json = {**_others(ended.beside), "stopReason": reason}
        if ended.usage is not UNSET:
            result["usage"] = ended.usage
        # For those who keep answers: which prompt it was, in the names of every surface.
        names = {"promptId": ended.prompt_id, "promptRequestId": ended.request_id}
        meta = read_members(result["_meta"]) if "_meta" in result else None
        result["_meta"] = {**(meta or {}), VENDOR: {MARK: {**names, "stopReason": reason}}}
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

    def shows_prompt(self, *, own: bool) -> bool:
        return True

    def user_message(self, prompt_id: PromptId, message_id: str, blocks: list[Raw], *, own: bool) -> list[Outgoing]:
        return [_tell("user_message", messageId=message_id, content=blocks)]

    def accepted(self, prompt_id: PromptId, message_id: str, beside: Raw | UnsetType = UNSET) -> list[Outgoing]:
        return [Answer(prompt_id, raw({**_others(beside), "messageId": message_id}))]

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
            frames.append(refusal(ended))
        if is_foreground:
            frames.append(Tell(raw(idle_update(ended, background))))
        return frames


def _others(beside: Raw | UnsetType) -> Json:
    """What an agent said beside the members that we read."""
    return {} if beside is UNSET else {**(read_members(beside) or {})}


def _tell(kind: str, **members: Any) -> Tell:
    return Tell(raw({"sessionUpdate": kind, **members}))
