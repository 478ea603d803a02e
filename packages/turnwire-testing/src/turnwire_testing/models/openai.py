"""A fake of OpenAI's chat completions, streaming, as OpenAI and compatible servers implement them.

Replies made of steps become chunks as server-sent events: text, tool calls in chunks, a finish reason, the usage if
it was requested, and `[DONE]`. Requests are rejected as by the real API for every mistake that a client can make in
its conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
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

CREATED = 1_700_000_000

FINISH = {"stop": "stop", "length": "length", "refusal": "content_filter", "tools": "tool_calls"}

_KINDS = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
    500: ("server_error", None),
    503: ("server_error", None),
}


class FakeOpenAI(FakeServer):
    """`async with FakeOpenAI([[Say("Hello")]]) as server:` and a client with the base URL `server.url`.

    `key` is the only accepted API key; without it, every key is accepted.
    """

    def __init__(self, script: Script, *, key: str | None = None) -> None:
        super().__init__(_ChatCompletions(key), script)


class _ChatCompletions:
    """The `Api` of chat completions."""

    path = "/v1/chat/completions"
    root = "/v1"

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._answers = count(1)
        self._calls = count(1)

    def refuses(self, headers: Headers, body: Body) -> Refusal | None:
        fail = key_refusal(headers, self._key) or ask_refusal(body)
        return fail and self.error(fail)

    def error(self, fail: Fail) -> Refusal:
        kind, code = _KINDS.get(fail.status, ("invalid_request_error", None))
        error = {"message": fail.text, "type": kind, "param": None, "code": fail.code or code}
        return Refusal(fail.status, {"error": error})

    def frames(self, reply: Reply, body: Body) -> Iterator[Frame]:
        chunk = _Chunk(f"chatcmpl-{next(self._answers)}", str(body.get("model")), _wants_usage(body))
        yield chunk.delta({"role": "assistant", "content": "", "refusal": None})
        index = count()
        for step in reply:
            yield from self._step(step, chunk, index)
            if isinstance(step, Cut | Fail):
                return
        end = ending(reply)
        if end.reason == "refusal" and end.text:
            # A model that refuses by itself sends a refusal and stops; only a filter ends with `content_filter`.
            yield chunk.delta({"refusal": end.text})
            yield chunk.delta({}, finish="stop")
        else:
            yield chunk.delta({}, finish=FINISH[end.reason])
        if _wants_usage(body):
            yield chunk.usage(spent(reply))
        yield b"data: [DONE]\n\n"

    def _step(self, step: Step, chunk: _Chunk, index: Iterator[int]) -> Iterator[Frame]:
        match step:
            case Say(text, pieces):
                for piece in split(text, pieces):
                    yield chunk.delta({"content": piece})
            case Think(text, _, pieces):
                for piece in split(text, pieces):
                    yield chunk.delta({"reasoning_content": piece})
            case CallTool():
                yield from self._call(step, chunk, next(index))
            case Fail():
                yield _event(self.error(step).body)
            case Cut() | Hang():
                yield step
            case Stop() | Spend():
                pass

    def _call(self, step: CallTool, chunk: _Chunk, index: int) -> Iterator[Frame]:
        function = {"name": step.name, "arguments": ""}
        identity = step.id or f"call_{next(self._calls)}"
        yield chunk.tool({"index": index, "id": identity, "type": "function", "function": function})
        text = step.arguments if isinstance(step.arguments, str) else json.dumps(dict(step.arguments))
        for piece in split(text, step.pieces):
            yield chunk.tool({"index": index, "function": {"arguments": piece}})


class _Chunk:
    """The chunks of one answer."""

    def __init__(self, identity: str, model: str, with_usage: bool) -> None:
        self._head: dict[str, Any] = {
            "id": identity,
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": model,
            "service_tier": "default",
            "system_fingerprint": "fp_fake",
        }
        # If usage was requested, every chunk has the field, and it is null in all but the last.
        self._tail = {"usage": None} if with_usage else {}

    def delta(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**self._head, "choices": [choice], **self._tail})

    def tool(self, call: dict[str, Any]) -> bytes:
        return self.delta({"tool_calls": [call]})

    def usage(self, spend: Spend) -> bytes:
        usage = {
            "prompt_tokens": spend.input,
            "completion_tokens": spend.output,
            "total_tokens": spend.input + spend.output,
            "prompt_tokens_details": {"cached_tokens": spend.cached, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": spend.thought, "audio_tokens": 0},
        }
        return _event({**self._head, "choices": [], "usage": usage})


def _wants_usage(body: Body) -> bool:
    return bool(inner(body, "stream_options").get("include_usage"))


def _event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


# -- what the real API refuses -----------------------------------------------------------------------------


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
    """Report tool calls and results that do not pair: the results must directly follow the message with the
    calls.
    """
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
