"""How a client of each version is told: updates, the state of the foreground, the end of a turn.

Takes updates in the words of v2 and ends of turns; gives updates and frames in the client's version. A voice is
one session at one client, because translating needs to remember what that client was told. Never sends, never
decides when.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.agent.options import AgentOptions
from turnwire.agent.v2_updates import Json, for_v1, for_v2
from turnwire.core.dialect import VENDOR
from turnwire.core.translate.handshake import ClientProfile
from turnwire.core.translate.members import as_object, child
from turnwire.core.translate.offers import Options
from turnwire.core.translate.updates import UpdatesV2ToV1
from turnwire.ids import PromptId, RequestId
from turnwire.wire.jsonrpc import ErrorObject, Failure, Notification, Result, raw
from turnwire.wire.peek import peek_update

STOP_REASONS = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})
MARK = "turnComplete"

Told: TypeAlias = Raw | Notification | Result | Failure
"""A `session/update`, or another frame."""


class End(Struct, frozen=True, kw_only=True):
    """How a turn ended. Without a stop reason it failed, with an error."""

    prompt_id: PromptId
    request_id: RequestId | None
    """Of the prompt; None if the agent began the turn."""
    stop_reason: str | None = None
    error: ErrorObject | None = None
    usage: Json | UnsetType = UNSET

    def as_idle(self) -> Json:
        """In the words of v2."""
        idle: Json = {"sessionUpdate": "state_update", "state": "idle", "stopReason": self.stop_reason or "error"}
        if self.error is not None:
            idle["error"] = self.error
        return idle if self.usage is UNSET else {**idle, "usage": self.usage}

    def as_kept(self) -> Json:
        """As the history has it: with the names by which the prompt was known."""
        named = {name: value for name, value in self.as_mark(own=True).items() if name != "stopReason"}
        return {**self.as_idle(), "_meta": {VENDOR: named}}

    def as_mark(self, *, own: bool) -> Json:
        """As the drafts of `turn_complete` name it. A request id means something to its own connection only."""
        mark: Json = {"promptId": self.prompt_id}
        if own:
            mark["promptRequestId"] = self.request_id
        return mark if self.stop_reason is None else {**mark, "stopReason": self.stop_reason}


class Voice(Protocol):
    """One session at one client."""

    def update(self, update: Raw, kind: str, *, own: bool) -> list[Raw]:
        """An update. `own`: this client prompted the turn that it belongs to."""
        ...

    def part(self) -> list[Raw]:
        """Something that is no update comes next: what was held back."""
        ...

    def offers(self, offers: Raw) -> None:
        """What the session offers, as the answer that opened it says."""
        ...

    def options(self, options: Raw) -> Raw:
        """The options as a result lists them."""
        ...

    def accepted(self, request_id: RequestId, message_id: str) -> list[Told]:
        """The client's prompt is in the conversation."""
        ...

    def end(self, session_id: str, end: End, *, own: bool) -> list[Told]:
        """A turn has ended."""
        ...

    def replayed_end(self, idle: Raw) -> list[Raw]:
        """A turn had ended, long ago."""
        ...


def voice_for(client: ClientProfile, options: AgentOptions) -> Voice:
    """The voice for a client."""
    return VoiceV2(client, options) if client.version == 2 else VoiceV1(client, options)


class VoiceV2:
    """A turn is accepted by an answer, and ends with an idle state."""

    def __init__(self, client: ClientProfile, options: AgentOptions) -> None:
        self._tags = client.turn_complete and options.offers_turn_complete and options.drafts == "strict"

    def update(self, update: Raw, kind: str, *, own: bool) -> list[Raw]:
        return [for_v2(update)]

    def part(self) -> list[Raw]:
        return []

    def offers(self, offers: Raw) -> None:
        """An update always says all of it, so there is nothing to remember."""

    def options(self, options: Raw) -> Raw:
        return options

    def accepted(self, request_id: RequestId, message_id: str) -> list[Told]:
        return [Result(request_id, raw({"messageId": message_id}))]

    def end(self, session_id: str, end: End, *, own: bool) -> list[Told]:
        idle = raw(end.as_idle())
        if not self._tags or end.request_id is None:
            return [idle]
        return [raw({"sessionUpdate": "_turn_complete", **end.as_mark(own=own)}), idle]

    def replayed_end(self, idle: Raw) -> list[Raw]:
        return [idle]


class VoiceV1:
    """A turn ends with the answer to its prompt. Marks of the end come before it, as the client can take them."""

    def __init__(self, client: ClientProfile, options: AgentOptions) -> None:
        self._translator = UpdatesV2ToV1(boolean_options=client.boolean_options)
        self._withheld = client.withheld
        self._booleans = client.boolean_options
        self._has_asked = client.turn_complete
        self._policy = options.turn_complete if options.drafts != "off" else "off"
        self._is_strict = options.drafts == "strict"

    @property
    def _tags(self) -> bool:
        """Whether the client is sent the `turn_complete` update itself."""
        return not self._is_strict and (
            self._policy == "always" or (self._policy == "negotiated" and self._has_asked)
        )

    def update(self, update: Raw, kind: str, *, own: bool) -> list[Raw]:
        if kind == "state_update" or (own and kind == "user_message"):
            # The state is in the open request; a client knows its own prompt.
            return []
        told = [for_v1(each) for each in self._translator.take(update, turn=None)]
        if kind in self._withheld:
            # It may have become something that every client takes, such as a plan.
            told = [each for each in told if peek_update(each).kind not in self._withheld]
        return told

    def part(self) -> list[Raw]:
        return [for_v1(each) for each in self._translator.part()]

    def offers(self, offers: Raw) -> None:
        self._translator.offers(offers)

    def options(self, options: Raw) -> Raw:
        return Options(Counter(), raw({"configOptions": options}), booleans=self._booleans).listed()

    def accepted(self, request_id: RequestId, message_id: str) -> list[Told]:
        return []

    def end(self, session_id: str, end: End, *, own: bool) -> list[Told]:
        if end.request_id is None:
            return []
        marks = [] if self._policy == "off" else self._marks(session_id, end, own=own)
        return [*marks, self._answer(end, end.request_id)] if own else marks

    def _marks(self, session_id: str, end: End, *, own: bool) -> list[Told]:
        """In the order in which they are written."""
        mark = end.as_mark(own=own)
        told: list[Told] = []
        if self._policy == "always" or not self._has_asked or self._is_strict:
            told.append(raw({"sessionUpdate": "session_info_update", "_meta": {VENDOR: {MARK: mark}}}))
        if self._tags:
            # Our own name has no place among the members that the draft defines.
            defined = {name: value for name, value in mark.items() if name != "promptId"}
            if end.usage is not UNSET:
                # Where v2 has it on the idle state. A client that waits for the mark has ended the turn by then.
                defined["usage"] = end.usage
            told.append(raw({"sessionUpdate": "turn_complete", **defined, "_meta": {"promptId": end.prompt_id}}))
        told.append(Notification(f"_{VENDOR}/turn_complete", raw({"sessionId": session_id, **mark})))
        return told

    def _answer(self, end: End, request_id: RequestId) -> Told:
        if end.error is not None:
            return Failure(request_id, end.error)
        result: dict[str, Any] = {"stopReason": end.stop_reason}
        if end.usage is not UNSET:
            result["usage"] = end.usage
        if self._policy != "off":
            result["_meta"] = {VENDOR: {MARK: end.as_mark(own=True)}}
        return Result(request_id, raw(result))

    def replayed_end(self, idle: Raw) -> list[Raw]:
        if not self._tags:
            return []
        # Waiters for live prompts ignore it: it comes before the load is answered.
        given = as_object(idle)
        mark = child(given, "_meta", VENDOR)
        if given.get("stopReason") != "error":
            mark = {**mark, "stopReason": given.get("stopReason")}
        named = {"_meta": {"promptId": mark.pop("promptId", None)}}
        return [raw({"sessionUpdate": "turn_complete", **mark, **named})]
