"""What a turn asks its client: permission, answers to a form, a visit to a page, anything else.

Takes a question; gives the answer. While one is open, a v2 client sees that the turn waits for its user. Never
takes anything but a selected allow option for consent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Raw

from turnwire.agent.course import Course
from turnwire.agent.seat import Seat
from turnwire.agent.tool_call import ToolCall
from turnwire.agent.words import Json, for_v1, for_v2
from turnwire.core.translate.members import as_object, child
from turnwire.errors import LocalProtocolError, NotOffered, RequestRefused
from turnwire.wire.jsonrpc import METHOD_NOT_FOUND, Failure, Result, raw
from turnwire.wire.methods import SESSION_REQUEST_PERMISSION

ELICITATION = "elicitation/create"


@dataclass(frozen=True)
class PermissionOption:
    """Something the user may answer."""

    id: str
    name: str
    kind: str
    """allow_once, allow_always, reject_once or reject_always."""


USUAL = (
    PermissionOption("allow_once", "Allow", "allow_once"),
    PermissionOption("allow_always", "Always allow", "allow_always"),
    PermissionOption("reject_once", "Reject", "reject_once"),
)


@dataclass(frozen=True)
class Choice:
    """What the user answered. True if that allows it."""

    option_id: str | None = None
    kind: str | None = None

    def __bool__(self) -> bool:
        return self.kind in {"allow_once", "allow_always"}

    @property
    def always(self) -> bool:
        """It was meant for all that is like it, too."""
        return self.kind in {"allow_always", "reject_always"}


class Asking:
    """The part of a turn that asks."""

    def __init__(self, course: Course) -> None:
        self._course = course

    async def ask(
        self,
        about: ToolCall | str,
        options: Sequence[PermissionOption] | None = None,
        description: str | None = None,
    ) -> Choice:
        """Ask for permission. Granted, the tool call starts; refused, it fails when it is left."""
        offered = tuple(USUAL if options is None else options)
        if not offered or len({each.id for each in offered}) < len(offered):
            raise LocalProtocolError("a question needs at least one option, and each its own id")
        if isinstance(about, ToolCall):
            about.announce()
        course = self._course
        with course.blocked():
            seat = course.hearer
            answer = None
            if seat is not None:
                answer = await seat.request(
                    SESSION_REQUEST_PERMISSION, self._question(seat, about, offered, description)
                )
        if course.is_cancelled:
            await checkpoint()
        choice = _read_choice(answer, offered)
        if isinstance(about, ToolCall):
            if choice:
                about.start()
            else:
                about.deny()
        return choice

    def _question(
        self, seat: Seat, about: ToolCall | str, offered: Sequence[PermissionOption], description: str | None
    ) -> Json:
        options = [{"optionId": each.id, "name": each.name, "kind": each.kind} for each in offered]
        asked: Json = {"sessionId": seat.session_id, "options": options}
        described = about.described if isinstance(about, ToolCall) else None
        if seat.client.profile.version == 2:
            asked["title"] = about.title if isinstance(about, ToolCall) else about
            if description is not None:
                asked["description"] = description
            if described is not None:
                asked["subject"] = {"type": "tool_call", "toolCall": _items(described, for_v2)}
            return asked
        if described is None:
            made = {"toolCallId": self._course.new_id("q"), "title": about, "kind": "other", "status": "pending"}
            shown = [] if description is None else [{"type": "text", "text": description}]
            described = {**made, "content": [{"type": "content", "content": each} for each in shown]}
        return {**asked, "toolCall": _items(described, for_v1)}

    async def elicit(self, message: str, schema: Json) -> Json | None:
        """Have the user fill in a form; None if they did not. Raises `NotOffered`."""
        seat = self._asked()
        if not seat.client.profile.elicitation_form:
            raise NotOffered("the client shows no forms; ask in words instead", what="elicitation.form")
        answer = await self._elicit(seat, {"message": message, "mode": "form", "requestedSchema": schema})
        content = answer.get("content")
        if answer.get("action") != "accept":
            return None
        return content if isinstance(content, dict) else {}  # pyright: ignore[reportUnknownVariableType]  JSON

    async def elicit_url(self, message: str, url: str) -> bool:
        """Have the user visit a page; whether they agreed to. Raises `NotOffered`."""
        seat = self._asked()
        if not seat.client.profile.elicitation_url:
            raise NotOffered("the client opens no pages; ask in words instead", what="elicitation.url")
        named = {"elicitationId": self._course.new_id("e"), "url": url}
        answer = await self._elicit(seat, {"message": message, "mode": "url", **named})
        return answer.get("action") == "accept"

    async def _elicit(self, seat: Seat, params: Json) -> Json:
        with self._course.blocked():
            answer = await seat.request(ELICITATION, {"sessionId": seat.session_id, **params})
        return _result(answer, ELICITATION)

    async def request(self, method: str, params: Json | None = None) -> Json:
        """Ask the client anything. `sessionId` is added. Raises `NotOffered` and `RequestRefused`."""
        seat = self._asked()
        return _result(await seat.request(method, {"sessionId": seat.session_id, **(params or {})}), method)

    def _asked(self) -> Seat:
        seat = self._course.hearer
        if seat is None:
            raise NotOffered("no client has this session open, so there is nobody to ask", what="client")
        return seat


def _items(described: Json, written: Any) -> Json:
    """A tool call with its content in the words of the client."""
    told: Raw = written(raw({"sessionUpdate": "tool_call_update", **described}))
    call = msgspec.json.decode(told, type=dict[str, Any])
    del call["sessionUpdate"]
    return call


def _read_choice(answer: Result | Failure | None, offered: Sequence[PermissionOption]) -> Choice:
    if not isinstance(answer, Result):
        return Choice()
    outcome = child(as_object(answer.result), "outcome")
    chosen = outcome.get("optionId") if outcome.get("outcome") == "selected" else None
    return next((Choice(each.id, each.kind) for each in offered if each.id == chosen), Choice())


def _result(answer: Result | Failure, method: str) -> Json:
    if isinstance(answer, Result):
        return as_object(answer.result)
    if answer.error.code == METHOD_NOT_FOUND:
        raise NotOffered(f"the client does not know `{method}`", what=method)
    raise RequestRefused(f"the client refused `{method}`", jsonrpc=answer.error.code, reason="client_refused")
