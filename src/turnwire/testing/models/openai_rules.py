"""What OpenAI's API says against a malformed request for a chat completion.

Takes headers and the body; gives the error, or nothing. Only the rules that a client can break by a mistake in its
conversation are here: unknown roles, tool results without their call, calls without a result, bad names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwire.testing.models.shapes import inner, is_objects, rows
from turnwire.testing.models.steps import Fail

ROLES = ("system", "developer", "user", "assistant", "tool")
PARTS = {
    "system": ("text",),
    "developer": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def key_refusal(headers: Mapping[str, str], key: str | None) -> Fail | None:
    """The refusal of a request without the right API key."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme != "Bearer" or not given:
        return Fail(401, text="You didn't provide an API key.")
    return Fail(401, text="Incorrect API key provided.") if key is not None and given != key else None


def ask_refusal(body: Mapping[str, Any]) -> Fail | None:
    """The refusal of a malformed body: its first fault."""
    return next((Fail(400, text=fault) for fault in _faults(body)), None)


def _faults(body: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(body.get("model"), str):
        yield "you must provide a model parameter"
    if body.get("stream") is not True:
        yield "the fake answers streaming requests only: send stream: true"
    messages = body.get("messages")
    if not is_objects(messages) or not messages:
        yield "Invalid type for 'messages': expected a non-empty array of objects."
        return
    for at, message in enumerate(messages):
        yield from _message_faults(at, message)
    yield from _pairing_faults(messages)
    yield from _tool_faults(body.get("tools", []))


def _message_faults(at: int, message: Mapping[str, Any]) -> Iterator[str]:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        yield f"Invalid value: '{role}'. Supported values are: {', '.join(ROLES)}. (messages[{at}].role)"
        return
    if content is None and not (role == "assistant" and (message.get("tool_calls") or message.get("refusal"))):
        yield f"Invalid value for 'content': expected a string, got null. (messages[{at}].content)"
    if isinstance(content, list):
        yield from _part_faults(f"messages[{at}].content", role, rows(message, "content"))
    for number, call in enumerate(rows(message, "tool_calls")):
        function, place = inner(call, "function"), f"messages[{at}].tool_calls"
        if not isinstance(call.get("id"), str) or not isinstance(function.get("arguments"), str):
            yield f"Invalid '{place}': every call needs an id, and arguments as a string."
        yield from _name_faults(f"{place}[{number}].function.name", function)


def _part_faults(place: str, role: str, parts: list[dict[str, Any]]) -> Iterator[str]:
    if not parts:
        yield f"Invalid '{place}': empty array."
    for part in parts:
        kind = part.get("type")
        if kind not in PARTS[role]:
            yield f"Invalid value: '{kind}'. Supported values are: {', '.join(PARTS[role])}. ({place})"
        elif kind == "image_url" and not re.match(
            r"data:image/|https?://", str(inner(part, "image_url").get("url"))
        ):
            yield f"Invalid image URL in {place}."


def _pairing_faults(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A call and its results stand together: the results right behind the message with the calls."""
    waiting: set[str] = set()
    may_come = False
    for at, message in enumerate(messages):
        if message.get("role") == "tool":
            if not may_come:
                yield (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message "
                    f"with 'tool_calls'. (messages[{at}].role)"
                )
            elif message.get("tool_call_id") not in waiting:
                yield f"Invalid parameter: 'tool_call_id' of messages[{at}] not found in 'tool_calls'."
            waiting.discard(str(message.get("tool_call_id")))
            continue
        if waiting:
            break
        waiting = {str(call.get("id")) for call in rows(message, "tool_calls")}
        may_come = bool(waiting)
    if waiting:
        lost = ", ".join(sorted(waiting))
        yield (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {lost}"
        )


def _tool_faults(tools: object) -> Iterator[str]:
    if not is_objects(tools):
        yield "Invalid type for 'tools': expected an array of objects."
        return
    for at, tool in enumerate(tools):
        function = inner(tool, "function")
        yield from _name_faults(f"tools[{at}].function.name", function)
        if inner(function, "parameters").get("type", "object") != "object":
            yield f"Invalid schema for function '{function.get('name')}': schema must be of type 'object'."


def _name_faults(place: str, function: Mapping[str, Any]) -> Iterator[str]:
    if not _NAME.fullmatch(str(function.get("name", ""))):
        yield f"Invalid '{place}': expected a match of '^[a-zA-Z0-9_-]+$', 64 at most."
