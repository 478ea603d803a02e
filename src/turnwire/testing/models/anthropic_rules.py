"""What Anthropic's API says against a malformed request for a message.

Takes headers, the body and the signatures the server has given; gives the error, or nothing. Only the rules that a
client can break by a mistake in its conversation are here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from turnwire.testing.models.shapes import inner, is_objects, rows
from turnwire.testing.models.steps import Fail

BLOCKS = {
    "user": ("text", "image", "document", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def head_refusal(headers: Mapping[str, str], key: str | None) -> Fail | None:
    """The refusal of a request without the right headers."""
    # Newer clients send the key as a bearer token, older ones in a header of its own.
    given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
    if not given:
        return Fail(401, text="x-api-key or authorization header is required")
    if key is not None and given != key:
        return Fail(401, text="invalid API key")
    return None if "anthropic-version" in headers else Fail(400, text="anthropic-version: header is required")


def ask_refusal(body: Mapping[str, Any], signatures: Set[str]) -> Fail | None:
    """The refusal of a malformed body: its first fault."""
    return next((Fail(400, text=fault) for fault in _faults(body, signatures)), None)


def _faults(body: Mapping[str, Any], signatures: Set[str]) -> Iterator[str]:
    if not isinstance(body.get("model"), str):
        yield "model: Field required"
    if body.get("stream") is not True:
        yield "the fake answers streaming requests only: send stream: true"
    yield from _bound_faults(body)
    messages = body.get("messages")
    if not is_objects(messages) or not messages:
        yield "messages: at least one message is required"
        return
    for at, message in enumerate(messages):
        yield from _message_faults(f"messages.{at}", message, signatures)
    if messages[0].get("role") != "user":
        yield 'messages: first message must use the "user" role'
    yield from _pairing_faults(messages)
    if inner(body, "thinking").get("type") == "enabled":
        yield from _thinking_faults(messages)
    yield from _tool_faults(body.get("tools", []))


def _bound_faults(body: Mapping[str, Any]) -> Iterator[str]:
    most = body.get("max_tokens")
    if not isinstance(most, int):
        yield "max_tokens: Field required"
    elif most <= int(inner(body, "thinking").get("budget_tokens", 0)):
        yield "`max_tokens` must be greater than `thinking.budget_tokens`"


def blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content of a message as blocks; text alone is one of text."""
    content = message.get("content")
    return content if is_objects(content) else [{"type": "text", "text": content}]


def _message_faults(place: str, message: Mapping[str, Any], signatures: Set[str]) -> Iterator[str]:
    role = message.get("role")
    if role not in BLOCKS:
        yield f"{place}.role: Input should be 'user' or 'assistant', not '{role}'"
        return
    blocks = blocks_of(message)
    if not blocks:
        yield f"{place}: all messages must have non-empty content"
    for at, block in enumerate(blocks):
        kind = block.get("type")
        if kind not in BLOCKS[role]:
            yield f"{place}.content.{at}: Input tag '{kind}' does not match any of the expected tags"
        elif _has_empty_text(block):
            yield f"{place}: text content blocks must contain non-whitespace text"
        elif kind == "thinking" and block.get("signature") not in signatures:
            yield f"{place}.content.{at}: Invalid `signature` in `thinking` block"
        elif kind == "tool_use":
            yield from _name_faults(f"{place}.content.{at}.tool_use", block)


def _has_empty_text(block: Mapping[str, Any]) -> bool:
    """Whether this is a block of no text, or a tool result that holds one."""
    if block.get("type") == "tool_result":
        return any(_has_empty_text(each) for each in rows(block, "content"))
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def _ids(message: Mapping[str, Any], kind: str, field: str) -> list[str]:
    return [str(block.get(field)) for block in blocks_of(message) if block.get("type") == kind]


def _pairing_faults(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every tool use has its result in the very next message, and no result is without its use."""
    waiting: list[str] = []
    for at, message in enumerate(messages):
        results = _ids(message, "tool_result", "tool_use_id")
        if lost := [each for each in waiting if each not in results]:
            yield (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(lost)}"
            )
        if unasked := [each for each in results if each not in waiting]:
            yield (
                f"messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {', '.join(unasked)}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        waiting = _ids(message, "tool_use", "id")
        if len(set(waiting)) < len(waiting):
            yield f"messages.{at}: `tool_use` ids must be unique"
    if waiting:
        yield f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(waiting)}"


def _thinking_faults(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """With thinking on, the answer that asked for the newest tool results begins with its thinking."""
    if len(messages) < 2 or not _ids(messages[-1], "tool_result", "tool_use_id"):
        return
    first = blocks_of(messages[-2])[0].get("type")
    if first not in ("thinking", "redacted_thinking"):
        yield (
            f"messages.{len(messages) - 2}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{first}`. When `thinking` is enabled, a final `assistant` message must start with a thinking block"
        )


def _tool_faults(tools: object) -> Iterator[str]:
    if not is_objects(tools):
        yield "tools: Input should be a valid list"
        return
    for at, tool in enumerate(tools):
        yield from _name_faults(f"tools.{at}.custom", tool)
        if inner(tool, "input_schema").get("type") != "object":
            yield f"tools.{at}.custom.input_schema.type: Input should be 'object'"


def _name_faults(place: str, tool: Mapping[str, Any]) -> Iterator[str]:
    if not _NAME.fullmatch(str(tool.get("name", ""))):
        yield f"{place}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
