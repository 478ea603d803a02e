"""A fake of Anthropic's messages, streaming.

Takes replies made of steps; gives the events of the real stream: `message_start`, `ping`, content blocks of text,
thinking and tool use, `message_delta` with the stop reason, `message_stop`. Refuses what the real API refuses
(`anthropic_rules`), also a thinking block whose signature it did not give.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from turnwire.testing.models.anthropic_rules import ask_refusal, head_refusal
from turnwire.testing.models.server import Body, FakeServer, Frame, Headers, Refusal
from turnwire.testing.models.steps import (
    CallTool,
    Cut,
    Fail,
    Hang,
    Reply,
    Say,
    Script,
    Spend,
    Step,
    Stop,
    Think,
    ending,
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

    `key` is the only API key that is taken; without it, any key is.
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
            # Anthropic's count leaves out what came from its cache.
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
