"""Translation of permission requests of agents to users, and of their answers.

A permission request is sent in the client's version, with our session id instead of the agent's; its answer is
returned in the agent's version. An unknown value never becomes consent.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from msgspec import Raw

from turnwire.ids import ChildId, SessionId
from turnwire.projections.translate.tools import patch_to_v1, patch_to_v2, text_item
from turnwire.session.json_members import entries, members, raw, text_of
from turnwire.wire.methods import SESSION_REQUEST_PERMISSION, VENDOR

_UNTITLED: Final = "The agent asks for permission"
_OPTION_KINDS: Final = frozenset({"allow_once", "allow_always", "reject_once", "reject_always"})
_OUTCOMES: Final = frozenset({"selected", "cancelled"})
_NOT_APPROVED: Final = Raw(b'{"outcome":{"outcome":"cancelled"}}')


def translate_permission_request(
    method: str,
    params: Raw,
    agent_version: int,
    client_version: int,
    session_id: SessionId | ChildId,
    losses: Counter[str] | None = None,
) -> Raw:
    """Return the permission request for the client, with our session id. Forms are equal in both versions."""
    fields, counted = members(params), Counter[str]() if losses is None else losses
    if "sessionId" in fields:
        fields["sessionId"] = raw(session_id)
    if method != SESSION_REQUEST_PERMISSION or agent_version == client_version:
        return raw(fields)
    return raw(_to_v2(fields, counted) if client_version == 2 else _to_v1(fields, counted))


def translate_answer(method: str, result: Raw, client_version: int, agent_version: int) -> Raw:
    """Return the client's answer for the agent."""
    if method != SESSION_REQUEST_PERMISSION or agent_version == client_version or agent_version == 2:
        return result
    outcome = text_of(members(members(result).get("outcome")), "outcome")
    return result if outcome in _OUTCOMES else _NOT_APPROVED


# -- for a v2 client -----------------------------------------------------------------------------------------


def _to_v2(fields: dict[str, Raw], losses: Counter[str]) -> dict[str, Any]:
    call = patch_to_v2(members(fields.pop("toolCall", None)), losses)
    title = text_of(call, "title") or text_of(call, "name") or _UNTITLED
    asked: dict[str, Any] = {**fields, "title": title}
    return {**asked, "subject": {"type": "tool_call", "toolCall": call}} if "toolCallId" in call else asked


# -- for a v1 client -----------------------------------------------------------------------------------------


def _to_v1(fields: dict[str, Raw], losses: Counter[str]) -> dict[str, Any]:
    title, description = text_of(fields, "title") or _UNTITLED, text_of(fields, "description")
    subject = members(fields.get("subject"))
    asked: dict[str, Any] = {
        name: value for name, value in fields.items() if name not in {"title", "description", "subject", "options"}
    }
    asked["options"] = [_option_to_v1(members(each), losses) for each in entries(fields.get("options"))]
    call = members(subject.get("toolCall")) if text_of(subject, "type") == "tool_call" else {}
    if "toolCallId" in call:
        # The title and description of the request have no place next to a tool call, and must not change it.
        losses["permission_words"] += 1
        own = {"permission": {"title": title, "description": description}}
        meta = {**members(fields.get("_meta")), VENDOR: {**_own(fields), **own}}
        return {**asked, "toolCall": patch_to_v1(call, losses, _terminal_note), "_meta": meta}
    losses["permission_subject"] += 1
    return {**asked, "toolCall": _made_call(title, description, subject)}


def _own(fields: dict[str, Raw]) -> dict[str, Raw]:
    return members(members(fields.get("_meta")).get(VENDOR))


def _terminal_note(terminal_id: str) -> str:
    return f"[terminal {terminal_id}]"


def _made_call(title: str, description: str | None, subject: dict[str, Raw]) -> dict[str, Any]:
    """Return a tool call for a permission request without one: v1 supports no other subject."""
    command, cwd = text_of(subject, "command"), text_of(subject, "cwd")
    words = [description, None if command is None else f"$ {command}", None if cwd is None else f"in {cwd}"]
    call: dict[str, Any] = {
        "toolCallId": text_of(subject, "toolCallId") or f"permission:{title}",
        "title": title,
        "kind": "other" if command is None else "execute",
        "status": "pending",
    }
    said = [text_item(each, None) for each in words if each is not None]
    return {**call, "content": said} if said else call


def _option_to_v1(option: dict[str, Raw], losses: Counter[str]) -> dict[str, Any]:
    if text_of(option, "kind") in _OPTION_KINDS:
        return option
    losses["permission_option"] += 1
    return {**option, "kind": "reject_once"}
