"""A fake of OpenAI's chat completions, streaming, as OpenAI and servers compatible with it speak it.

Takes replies made of steps; gives chunks as server-sent events: text, tool calls in pieces, a reason for the end,
the usage if it was asked for, and `[DONE]`. Refuses what the real API refuses (`openai_rules`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from turnwire.testing.models.openai_rules import ask_refusal, key_refusal
from turnwire.testing.models.server import Body, FakeServer, Frame, Headers, Refusal
from turnwire.testing.models.shapes import inner
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

    `key` is the only API key that is taken; without it, any key is.
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
            # A model that refuses by itself says so and stops; only a filter ends with `content_filter`.
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
        # Once usage was asked for, every chunk has the field, and all but the last say null.
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
