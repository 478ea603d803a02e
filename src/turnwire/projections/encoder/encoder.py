"""The frames of a turn for a client of each version: its prompt, its states, its end.

The daemon and the agents of the SDK share these rules. An encoder is for one session at one client; it knows the
agreement with the client and no state of the turn, so it has no memory. Pure.

On v1 a turn ends with the answer to its prompt. The `turn_complete` update precedes the answer, if it was offered
to the client. Other clients are only notified of the ends of turns: a prompt that never became a turn, or that
joined one, must not look like the end of the running turn.

On v2 a prompt is answered when its message is in the conversation, and the state reports the rest: running,
requires_action, idle with the outcome. The order is: message, answer, running.

The frames have no JSON-RPC id and no stream yet, and their names are ours (`promptId`, `requestId`): the connection
maps them to the JSON-RPC ids of the client.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.ids import ChildId, PermissionId, PromptId, RequestId
from turnwire.session.json_members import read_members
from turnwire.wire.jsonrpc import INTERNAL_ERROR, REQUEST_CANCELLED, ErrorObject, raw
from turnwire.wire.methods import VENDOR
from turnwire.wire.schema.common import STOP_REASONS

# -- frames for a client -------------------------------------------------------------------------------------


class Tell(NamedTuple):
    """A `session/update`."""

    update: Raw
    beside: Raw | UnsetType = UNSET
    """All members of its params except the update, as an object."""
    child: ChildId | None = None
    """The child session of the update; `None` for the session itself."""


class TellBlocked(NamedTuple):
    """A `session/update` that reports that the turn waits for its users; its writer adds the requests."""

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
    """The question is settled; a client that received it need not answer any more."""

    request_id: PermissionId


Outgoing: TypeAlias = Tell | TellBlocked | Answer | Fail | Ask | Withdraw


Json: TypeAlias = dict[str, Any]
Background: TypeAlias = Raw | UnsetType
"""An agent's list of background work, unchanged."""

MARK: Final = "turnComplete"
"""The end of a turn among our members of `_meta`."""
NOT_INSERTED: Final = ErrorObject(REQUEST_CANCELLED, "the prompt was cancelled before it entered the conversation")
FAILED_REASON: Final = "refusal"
"""The stop reason in `turn_complete` for a turn that failed. Its `error` has the details."""
_UNKNOWN_REASON: Final = ErrorObject(INTERNAL_ERROR, "the turn ended for a reason that ACP v1 does not have")


# -- the dialect --------------------------------------------------------------------------------------------------


class Dialect(Struct, frozen=True, kw_only=True):
    """The dialect of a client. It does not change after the handshake: one connection has one dialect."""

    version: int
    turn_complete: bool = False
    """True if the client was offered the `turn_complete` update, and is sent it."""
    lifecycle: bool = False
    """True for v1 with the names of the lifecycle draft: `user_message`, `state_change`, `stop_reason`."""
    usage_in_mark: bool = False
    """True if the `turn_complete` update includes the usage, for clients that have ended the turn before the
    answer.
    """
    boolean_options: bool = True
    """True if it accepts boolean config options."""
    children: bool = False
    """True for v1 with child sessions. Every v2 client knows them."""
    terminals: bool = False
    """True for a v1 client that shows an agent's terminals by the `_meta` of tool calls."""


# -- the end of a turn --------------------------------------------------------------------------------------------


class EndedTurn(Struct, frozen=True, kw_only=True):
    """The end of a turn, independent of the version. Without a stop reason it failed, with an error."""

    prompt_id: PromptId
    request_id: RequestId | None = None
    """The id with which its client sent the prompt, if over ACP. Another connection may use the same id."""
    by_agent: bool = False
    """True if the agent began it, so that no client waits for its end."""
    stop_reason: str | None = None
    error: Raw | ErrorObject | None = None
    usage: Raw | Json | UnsetType = UNSET
    assumed: bool = False
    """True if the agent reported no reason."""
    beside: Raw | UnsetType = UNSET
    """Members of the agent's end that no version defines, and its `_meta`, as an object."""


def refusal(ended: EndedTurn) -> Fail:
    """Return the error of a prompt that ended before its message was inserted: the only late rejection."""
    return Fail(ended.prompt_id, raw(NOT_INSERTED if ended.error is None else ended.error))


def state_change(update: Json) -> Json:
    """Return a state in the form of the lifecycle draft."""
    named = {("stop_reason" if name == "stopReason" else name): value for name, value in update.items()}
    return {**named, "sessionUpdate": "state_change"}


def state_update(state: str, background: Background = UNSET, **members: Any) -> Json:
    """Return the foreground state in the form of v2."""
    update: Json = {"sessionUpdate": "state_update", "state": state, **members}
    return update if background is UNSET else {**update, "background": background}


def idle_update(ended: EndedTurn, background: Background = UNSET) -> Json:
    """Return the end of a turn in the form of v2."""
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
    """Return the draft's update. A prompt without a JSON-RPC request is named by our id of it."""
    update: Json = {
        "sessionUpdate": "turn_complete",
        "promptRequestId": prompt_id if request_id is None else request_id,
    }
    if stop_reason is not None:
        update["stopReason"] = stop_reason
    return {**update, **members, "_meta": {VENDOR: {"promptId": prompt_id, "own": own}}}


# -- the encoders -------------------------------------------------------------------------------------------------


def encoder_for(dialect: Dialect, losses: Counter[str] | None = None) -> Encoder:
    """Return the encoder for a client. `losses` counts values that the client's version cannot express."""
    counted = Counter[str]() if losses is None else losses
    return EncoderV2() if dialect.version == 2 else EncoderV1(dialect, counted)


class EncoderV1:
    """v1: a turn ends with the answer to its prompt, after the `turn_complete` update."""

    tells_background = False

    def __init__(self, dialect: Dialect, losses: Counter[str]) -> None:
        self._dialect = dialect
        self._losses = losses

    def shows_prompt(self, *, own: bool) -> bool:
        """True if the client is sent the message of a prompt."""
        # Prompts of other clients are shown; the sender knows its prompts, unless it requested all of them.
        return self._dialect.lifecycle or not own

    def user_message(self, prompt_id: PromptId, message_id: str, blocks: list[Raw], *, own: bool) -> list[Outgoing]:
        """Return the frames of a prompt that is in the conversation."""
        if not self.shows_prompt(own=own):
            return []
        if self._dialect.lifecycle:
            return [_tell("user_message", messageId=message_id, content=blocks)]
        return [_tell("user_message_chunk", content=each, messageId=message_id) for each in blocks]

    def accepted(self, prompt_id: PromptId, message_id: str, beside: Raw | UnsetType = UNSET) -> list[Outgoing]:
        """Return the answer to the client's prompt, if due now, with the agent's other members."""
        # The lifecycle draft answers a prompt on acceptance, without members of its own.
        if self._dialect.lifecycle:
            return [Answer(prompt_id, raw(_others(beside)))]
        self._losses["accepted_members"] += beside is not UNSET
        return []

    def state(self, state: str, background: Background = UNSET) -> list[Outgoing]:
        """Return the frames of a new foreground state: running, or waiting for the user."""
        return self._state_change(state_update(state))

    def _state_change(self, update: Json) -> list[Outgoing]:
        # v1 cannot express it: the state is in the open request. Only the lifecycle draft can.
        return [Tell(raw(state_change(update)))] if self._dialect.lifecycle else []

    def standing(self, state: str, last: EndedTurn | None, background: Background = UNSET) -> list[Outgoing]:
        """Return the current state for a client that has received the history. `last`: the end of its last turn."""
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
        """Return the frames of a prompt's end; the one that ends the turn comes last.

        `is_inserted`: its message was in the conversation. `is_foreground`: the foreground's work ends with it, in
        contrast to a prompt that had joined another turn, or that was never inserted.
        """
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
        """True if the client is sent an end marker: not for a prompt that the agent rejected."""
        if not self._dialect.turn_complete or ended.by_agent or not (own or is_foreground):
            return False
        return is_inserted or ended.stop_reason is not None

    def _turn_complete(self, ended: EndedTurn, reason: str | None, *, own: bool) -> Outgoing:
        more: Json = {"usage": ended.usage} if self._dialect.usage_in_mark and ended.usage is not UNSET else {}
        if reason is None:
            # v1 has no stop reason for a failure. Clients with a closed list of reasons can decode the nearest one.
            # Without usage: a reader of both may accept the marker as the complete end and miss the error response.
            reason = FAILED_REASON
            more = {"error": _UNKNOWN_REASON if ended.error is None else ended.error}
        return Tell(raw(turn_complete_update(ended.prompt_id, ended.request_id, reason, own=own, **more)))

    def _answer(self, ended: EndedTurn, reason: str | None) -> Outgoing:
        if reason is None:
            return Fail(ended.prompt_id, raw(_UNKNOWN_REASON if ended.error is None else ended.error))
        result: Json = {**_others(ended.beside), "stopReason": reason}
        if ended.usage is not UNSET:
            result["usage"] = ended.usage
        # For readers that store answers: the prompt's ids in all interfaces.
        names = {"promptId": ended.prompt_id, "promptRequestId": ended.request_id}
        meta = read_members(result["_meta"]) if "_meta" in result else None
        result["_meta"] = {**(meta or {}), VENDOR: {MARK: {**names, "stopReason": reason}}}
        return Answer(ended.prompt_id, raw(result))

    def _stop_reason(self, reason: str | None) -> str | None:
        """Return one of v1's five reasons. An agent-specific reason is not a success; one of a later ACP is a
        normal end.
        """
        if reason is None or reason in STOP_REASONS:
            return reason
        self._losses["stop_reason"] += 1
        return None if reason.startswith("_") else "end_turn"


class EncoderV2:
    """v2: a prompt is answered when its message is in the conversation, and a turn ends with an idle state."""

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


Encoder: TypeAlias = EncoderV1 | EncoderV2
"""The encoder of one session at one client. `own`: for a prompt that this client sent."""


def _others(beside: Raw | UnsetType) -> Json:
    """Return the members of an agent's message that turnwire does not decode."""
    return {} if beside is UNSET else {**(read_members(beside) or {})}


def _tell(kind: str, **members: Any) -> Tell:
    return Tell(raw({"sessionUpdate": kind, **members}))
