"""A fake of Anthropic's messages API, streaming.

Replies made of steps become the events of the real stream: `message_start`, `ping`, content blocks of text,
thinking and tool use, `message_delta` with the stop reason, `message_stop`. Requests are rejected as by the real
API for every mistake that a client can make in its conversation, including a thinking block that the server did not
sign.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import count
from typing import Any

from turnwire_testing.models.server import (
    Body,
    CallTool,
    Cut,
    Fail,
    FakeServer,
    Frame,
    Hang,
    Headers,
    Refusal,
    Reply,
    Say,
    Script,
    Spend,
    Step,
    Stop,
    Think,
    ending,
    inner,
    is_objects,
    rows,
    spent,
    split,
)

STOP_REASON = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal", "tools": "tool_use"}

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


class FakeAnthropic(FakeServer):
    """`async with FakeAnthropic([[Say("Hello")]]) as server:` and a client with the base URL `server.url`.

    `key` is the only accepted API key; without it, every key is accepted.
    """

    def __init__(self, script: Script, *, key: str | None = None) -> None:
        super().__init__(_Messages(key), script)


class _Messages:
    """The `Api` of messages."""

    path = "/v1/messages"
    root = ""

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._answers = count(1)
        self._calls = count(1)
        self._signatures: set[str] = set()

    def refuses(self, headers: Headers, body: Body) -> Refusal | None:
        fail = head_refusal(headers, self._key) or ask_refusal(body, self._signatures)
        return fail and self.error(fail)

    def error(self, fail: Fail) -> Refusal:
        error = {"type": fail.code or _KINDS.get(fail.status, "api_error"), "message": fail.text}
        return Refusal(fail.status, {"type": "error", "error": error, "request_id": "req_fake"})

    def frames(self, reply: Reply, body: Body) -> Iterator[Frame]:
        spend = spent(reply)
        yield _event("message_start", {"message": self._message(str(body["model"]), spend)})
        yield _event("ping", {})
        index = count()
        for step in reply:
            yield from self._step(step, index)
            if isinstance(step, Cut | Fail):
                return
        end = ending(reply)
        delta: dict[str, Any] = {"stop_reason": STOP_REASON[end.reason], "stop_sequence": None}
        if end.reason == "refusal" and end.text:
            delta["stop_details"] = {"type": "refusal", "category": None, "explanation": end.text}
        yield _event("message_delta", {"delta": delta, "usage": {"output_tokens": spend.output}})
        yield _event("message_stop", {})

    def _message(self, model: str, spend: Spend) -> dict[str, Any]:
        usage = {
            # Anthropic's input count excludes cached tokens.
            "input_tokens": spend.input - spend.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": spend.cached,
            "output_tokens": 1,
            "service_tier": "standard",
        }
        return {
            "id": f"msg_{next(self._answers)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _step(self, step: Step, index: Iterator[int]) -> Iterator[Frame]:
        match step:
            case Say(text, pieces):
                deltas = [{"type": "text_delta", "text": piece} for piece in split(text, pieces)]
                yield from _block(next(index), {"type": "text", "text": ""}, deltas)
            case Think(text, signature, pieces):
                self._signatures.add(signature)
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in split(text, pieces)]
                deltas.append({"type": "signature_delta", "signature": signature})
                yield from _block(next(index), {"type": "thinking", "thinking": "", "signature": ""}, deltas)
            case CallTool():
                yield from self._call(step, next(index))
            case Fail():
                yield _event("error", self.error(step).body)
            case Cut() | Hang():
                yield step
            case Stop() | Spend():
                pass

    def _call(self, step: CallTool, index: int) -> Iterator[Frame]:
        identity = step.id or f"toolu_{next(self._calls)}"
        text = step.arguments if isinstance(step.arguments, str) else json.dumps(dict(step.arguments))
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *split(text, step.pieces)]]
        yield from _block(index, {"type": "tool_use", "id": identity, "name": step.name, "input": {}}, deltas)


def _block(index: int, block: dict[str, Any], deltas: list[dict[str, str]]) -> Iterator[bytes]:
    yield _event("content_block_start", {"index": index, "content_block": block})
    for delta in deltas:
        yield _event("content_block_delta", {"index": index, "delta": delta})
    yield _event("content_block_stop", {"index": index})


def _event(kind: str, payload: object) -> bytes:
    assert isinstance(payload, dict)
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **payload})}\n\n".encode()


# -- what the real API refuses -----------------------------------------------------------------------------


BLOCKS = {
    "user": ("text", "image", "document", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def head_refusal(headers: Mapping[str, str], key: str | None) -> Fail | None:
    """The refusal of a request without the right headers."""
    # Newer clients send the key as a bearer token, older ones in a separate header.
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
    """Return True for an empty text block, or a tool result that contains one."""
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
