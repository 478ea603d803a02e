"""A permission request of the agent to its users, and the conversion of a short answer to the agent's answer.

A handler returns an option or its id, `reject`, or the whole answer as a dict; the JSON-RPC result is made of it. A
`reject` never becomes an approval: without a rejecting option, the agent gets `cancelled`. An invalid answer is not
forwarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Raw, Struct

from turnwire.client.arguments import to_json
from turnwire.client.form import Form, read_form
from turnwire.client.tool_call import FileDiff, ToolCall, ToolCalls, asked_call
from turnwire.errors import InvalidOption, LocalProtocolError
from turnwire.ids import ChildId, PermissionId, PromptId, SessionId
from turnwire.projections.view import Terminal
from turnwire.projections.view import ToolCall as FoldedCall
from turnwire.session.events import PermissionRequested
from turnwire.session.json_members import members, text_of
from turnwire.session.permissions import ACTIONS
from turnwire.wire.jsonrpc import raw
from turnwire.wire.methods import ELICITATION_CREATE, SESSION_REQUEST_PERMISSION

REJECT = "reject"
_REJECTING = ("reject_once", "reject_always")


class Option(Struct, frozen=True, rename="camel"):
    """One of the options that the agent offers."""

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


class _Action(Struct):
    action: str


class _Offered(Struct):
    options: list[Option] = []


class Reply(NamedTuple):
    """The answer for the daemon."""

    answer: Raw
    option_id: str | None = None


class PermissionRequest:
    """A permission request or a form, open until a client answers or its turn ends."""

    def __init__(
        self,
        event: PermissionRequested,
        session_id: SessionId,
        known: FoldedCall | None = None,
        terminals: Mapping[str, Terminal] | None = None,
    ) -> None:
        """`known` is the tool call as the agent described it before, `terminals` its terminals."""
        self._event = event
        self.session_id = session_id
        self._known = known
        self._terminals = terminals

    def __repr__(self) -> str:
        call, offered = self.tool_call, "|".join(self._event.options)
        parts = [f"PermissionRequest {self.request_id}", repr(self.title or self.method)]
        parts += [] if call is None else [call.kind]
        parts += [f"command={self.command!r}"] if self.command else []
        parts += [f"changes={[each.path for each in self.diffs]!r}"] if self.diffs else []
        parts += [f"fields={[each.name for each in self.form.fields]!r}"] if self.form is not None else []
        return f"<{' '.join(parts)}{f' options={offered}' if offered else ''}>"

    @property
    def request_id(self) -> PermissionId:
        return self._event.request_id

    @property
    def prompt_id(self) -> PromptId | None:
        """The waiting turn."""
        return self._event.prompt_id

    @property
    def child(self) -> ChildId | None:
        """The child session that sent the request; `None` for the session itself."""
        return self._event.child

    @property
    def method(self) -> str:
        """`session/request_permission` or `elicitation/create`."""
        return self._event.method

    @property
    def params(self) -> Raw:
        """The agent's request parameters as JSON."""
        return self._event.params

    @property
    def title(self) -> str:
        """The agent's title of the request; empty if it has none."""
        asked, call = members(self._event.params), self.tool_call
        return text_of(asked, "title") or text_of(asked, "message") or ("" if call is None else call.title)

    @property
    def description(self) -> str:
        """The description that an agent of v2 may add to the title; empty if absent."""
        return text_of(members(self._event.params), "description") or ""

    @property
    def options(self) -> list[Option]:
        """The options to select from; empty if the request accepts a free answer."""
        try:
            return msgspec.json.decode(self._event.params, type=_Offered).options
        except msgspec.DecodeError:
            return [Option(each) for each in self._event.options]

    @property
    def tool_call(self) -> ToolCall | None:
        """The tool call in question, with its earlier updates; `None` if there is none."""
        told, is_v2 = self._told_of_call()
        if not told:
            return None
        return asked_call(told, self._known, self._terminals, null_clears=is_v2)

    @property
    def tool_call_id(self) -> str | None:
        """The agent's id of that tool call."""
        return text_of(self._told_of_call()[0], "toolCallId")

    def _told_of_call(self) -> tuple[dict[str, Raw], bool]:
        """Return the tool call in this request, and whether it is in v2's form: v2 has it in a subject."""
        asked = members(self._event.params)
        call = members(asked.get("subject")).get("toolCall")
        return (members(asked.get("toolCall")), False) if call is None else (members(call), True)

    @property
    def command(self) -> str | None:
        """The command to be run; `None` if there is none or it is unknown."""
        call = self.tool_call
        return text_of(self._subject_command(), "command") or (None if call is None else call.command)

    @property
    def cwd(self) -> str | None:
        """Working directory of the command, if the agent reports it."""
        call = self.tool_call
        return text_of(self._subject_command(), "cwd") or (None if call is None else call.cwd)

    @property
    def diffs(self) -> list[FileDiff]:
        """The proposed changes of files."""
        return [] if self.tool_call is None else self.tool_call.diffs

    @property
    def diff(self) -> str:
        """The same as one unified diff; empty without known file changes."""
        return "" if self.tool_call is None else self.tool_call.diff

    @property
    def form(self) -> Form | None:
        """The form to fill in, if the request is one."""
        return read_form(self._event.params) if self.method == ELICITATION_CREATE else None

    @property
    def url(self) -> str | None:
        """The page that the agent asks the user to visit, if any."""
        asked = members(self._event.params)
        return text_of(asked, "url") if self.method == ELICITATION_CREATE else None

    def _subject_command(self) -> dict[str, Raw]:
        """Return the command of a v2 request that is not about a tool call."""
        subject = members(members(self._event.params).get("subject"))
        return subject if text_of(subject, "type") == "command" else {}

    def reply(self, answer: object) -> Reply:
        """Return the agent's answer for a handler's result, which may have any type; a valid one is an `Answer`.

        Raises `InvalidOption` for an option that was not offered, and `LocalProtocolError` for an invalid answer.
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
        """The agent gets the answer as it is, including members that are unknown here."""
        said = to_json(dict(answer), "an answer")
        try:
            if self.method != SESSION_REQUEST_PERMISSION:
                if msgspec.json.decode(said, type=_Action).action not in ACTIONS:
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
                f"the agent did not offer this option; it offers {', '.join(self._event.options) or 'none'}",
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


def asked(event: PermissionRequested, session_id: SessionId, calls: ToolCalls) -> PermissionRequest:
    """Return the permission request of an event, with the known data of its tool call."""
    request = PermissionRequest(event, session_id)
    known = None if event.child is not None else calls.folded(request.tool_call_id)
    return PermissionRequest(event, session_id, known, calls.terminals)
