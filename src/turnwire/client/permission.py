"""A permission request of the agent to its users, and how a short answer becomes the agent's answer.

A handler returns an option or its id, `reject`, or the whole answer as a dict; the JSON-RPC result is made of it.
A `reject` never becomes an approval: without an option that rejects, the agent hears `cancelled`. What is no
answer to this request is not passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Raw, Struct

from turnwire.client.arguments import to_json
from turnwire.core.events import PermissionRequested
from turnwire.core.permissions import ACTIONS
from turnwire.errors import InvalidOption, LocalProtocolError
from turnwire.ids import ChildId, PermissionId, PromptId, SessionId
from turnwire.wire.jsonrpc import raw
from turnwire.wire.methods import SESSION_REQUEST_PERMISSION

REJECT = "reject"
_REJECTING = ("reject_once", "reject_always")


class Option(Struct, frozen=True, rename="camel"):
    """One of the answers that the agent offers."""

    option_id: str
    name: str = ""
    kind: str = ""
    """`allow_once`, `allow_always`, `reject_once`, `reject_always`."""


Answer: TypeAlias = str | Option | Mapping[str, Any] | None


class _Outcome(Struct, rename="camel"):
    outcome: str
    option_id: str | None = None


class _Permission(Struct):
    outcome: _Outcome


class _Form(Struct):
    action: str


class _ToolCall(Struct, frozen=True):
    title: str = ""


class _Params(Struct, rename="camel"):
    options: list[Option] = []
    title: str = ""
    message: str = ""
    tool_call: _ToolCall = _ToolCall()


class Reply(NamedTuple):
    """What the daemon is told."""

    answer: Raw
    option_id: str | None = None


class PermissionRequest:
    """A permission request or a form, open until somebody answers or its turn ends."""

    def __init__(self, event: PermissionRequested, session_id: SessionId) -> None:
        self._event = event
        self.session_id = session_id

    @property
    def request_id(self) -> PermissionId:
        return self._event.request_id

    @property
    def prompt_id(self) -> PromptId | None:
        """The turn that waits for it."""
        return self._event.prompt_id

    @property
    def child(self) -> ChildId | None:
        """The child session that asks; none if the session itself does."""
        return self._event.child

    @property
    def method(self) -> str:
        """`session/request_permission` or `elicitation/create`."""
        return self._event.method

    @property
    def params(self) -> Raw:
        """What the agent asked, as JSON."""
        return self._event.params

    @property
    def title(self) -> str:
        """What it is about, as the agent calls it; empty if it has no name."""
        try:
            params = msgspec.json.decode(self._event.params, type=_Params)
        except msgspec.DecodeError:
            return ""
        return params.title or params.message or params.tool_call.title

    @property
    def options(self) -> list[Option]:
        """What may be selected; empty if the request takes a free answer."""
        try:
            return msgspec.json.decode(self._event.params, type=_Params).options
        except msgspec.DecodeError:
            return [Option(each) for each in self._event.options]

    def reply(self, answer: object) -> Reply:
        """The agent's answer for a handler's, which may be of any type: an `Answer` is taken.

        Raises `InvalidOption` for an option that was not offered, and `LocalProtocolError` for what is no answer.
        """
        if isinstance(answer, Mapping):
            return self._whole(cast("Mapping[str, Any]", answer))
        if isinstance(answer, Option):
            return self._select(answer.option_id)
        if not isinstance(answer, str):
            raise self._no_answer(type(answer).__name__)
        if answer != REJECT or answer in self._event.options:
            return self._select(answer)
        rejecting = self._rejecting()
        if rejecting is not None:
            return self._select(rejecting)
        is_permission = self.method == SESSION_REQUEST_PERMISSION
        return Reply(raw({"outcome": {"outcome": "cancelled"}} if is_permission else {"action": "decline"}))

    def _select(self, option_id: str) -> Reply:
        self._check_offered(option_id)
        return Reply(raw({"outcome": {"outcome": "selected", "optionId": option_id}}), option_id)

    def _whole(self, answer: Mapping[str, Any]) -> Reply:
        """What the agent hears is what was given, members that are not known here included."""
        said = to_json(dict(answer), "an answer")
        try:
            if self.method != SESSION_REQUEST_PERMISSION:
                if msgspec.json.decode(said, type=_Form).action not in ACTIONS:
                    raise self._no_answer("another action")
                return Reply(said)
            outcome = msgspec.json.decode(said, type=_Permission).outcome
        except msgspec.ValidationError:
            raise self._no_answer("another dict") from None
        if outcome.outcome == "selected" and outcome.option_id is not None:
            self._check_offered(outcome.option_id)
            return Reply(said, outcome.option_id)
        if outcome.outcome != "cancelled":
            raise self._no_answer("another outcome")
        return Reply(said)

    def _check_offered(self, option_id: str) -> None:
        if option_id not in self._event.options:
            raise InvalidOption(
                "the agent did not offer this option; return one of the offered ones",
                request_id=self.request_id,
                options=", ".join(self._event.options),
            )

    def _no_answer(self, given: str) -> LocalProtocolError:
        if self.method == SESSION_REQUEST_PERMISSION:
            takes = (
                'an option or its id, `"reject"`, or {"outcome": {"outcome": "selected", "optionId": …}} or'
                ' {"outcome": {"outcome": "cancelled"}}'
            )
        else:
            takes = '`"reject"`, or a dict whose "action" is "accept", "decline" or "cancel"'
        return LocalProtocolError(
            f"this is no answer to the permission request; return {takes}", request_id=self.request_id, given=given
        )

    def _rejecting(self) -> str | None:
        kinds = {each.kind: each.option_id for each in reversed(self.options)}
        return next((kinds[kind] for kind in _REJECTING if kind in kinds), None)
