"""A question of the agent to its users, and how a short answer becomes the agent's answer.

Takes the stored question and what a handler returned: an option id, `reject`, or a dict for a question that takes
free answers. Gives the JSON-RPC result. Never turns a `reject` into an approval: without an option that rejects,
the agent hears `cancelled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw, Struct

from turnwire.core.events import PermissionRequested
from turnwire.errors import InvalidOption
from turnwire.ids import PermissionId, PromptId, SessionId
from turnwire.wire.jsonrpc import raw

Answer: TypeAlias = str | Mapping[str, Any] | None
REJECT = "reject"
_REJECTING = ("reject_once", "reject_always")
_PERMISSION = "session/request_permission"


class Option(Struct, frozen=True, rename="camel"):
    """One of the answers that the agent offers."""

    option_id: str
    name: str = ""
    kind: str = ""
    """`allow_once`, `allow_always`, `reject_once`, `reject_always`."""


class _Params(Struct):
    options: list[Option] = []


class Reply(NamedTuple):
    """What the daemon is told."""

    answer: Raw
    option_id: str | None = None


class Question:
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
    def method(self) -> str:
        """`session/request_permission` or `elicitation/create`."""
        return self._event.method

    @property
    def params(self) -> Raw:
        """What the agent asked, as JSON."""
        return self._event.params

    @property
    def options(self) -> list[Option]:
        """What may be selected; empty if the question takes a free answer."""
        try:
            return msgspec.json.decode(self._event.params, type=_Params).options
        except msgspec.DecodeError:
            return [Option(each) for each in self._event.options]

    def reply(self, answer: str | Mapping[str, Any]) -> Reply:
        """The agent's answer for a handler's. Raises `InvalidOption` for an option that was not offered."""
        if not isinstance(answer, str):
            return Reply(raw(answer))
        option_id = answer if answer in self._event.options else self._rejecting() if answer == REJECT else answer
        if option_id is None:
            is_permission = self.method == _PERMISSION
            return Reply(raw({"outcome": {"outcome": "cancelled"}} if is_permission else {"action": "decline"}))
        if option_id not in self._event.options:
            raise InvalidOption(
                "the agent did not offer this option; return one of the offered ones",
                request_id=self.request_id,
                options=", ".join(self._event.options),
            )
        return Reply(raw({"outcome": {"outcome": "selected", "optionId": option_id}}), option_id)

    def _rejecting(self) -> str | None:
        kinds = {each.kind: each.option_id for each in reversed(self.options)}
        return next((kinds[kind] for kind in _REJECTING if kind in kinds), None)
