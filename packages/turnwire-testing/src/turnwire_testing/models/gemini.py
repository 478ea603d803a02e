"""A fake of Gemini's `streamGenerateContent`, as server-sent events.

Replies made of steps become chunks with parts of text, thoughts and function calls; the last has the finish reason
and the usage. A missing key and contents in an order that the real API rejects are rejected.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
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

FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY", "tools": "STOP"}

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


class FakeGemini(FakeServer):
    """`async with FakeGemini([[Say("Hello")]]) as server:` and a client with the base URL `server.url`.

    `key` is the only accepted API key; without it, every key is accepted.
    """

    def __init__(self, script: Script, *, key: str | None = None) -> None:
        super().__init__(_GenerateContent(key), script)


class _GenerateContent:
    """The `Api` of one model's contents; every model name is accepted."""

    path = "/(v1|v1beta)/models/[^/:]+:streamGenerateContent"
    root = ""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def refuses(self, headers: Headers, body: Body) -> Refusal | None:
        given = headers.get("x-goog-api-key")
        if not given or (self._key is not None and given != self._key):
            return self.error(Fail(403, text="the request has no valid API key"))
        fail = next((Fail(400, text=fault) for fault in _faults(body)), None)
        return fail and self.error(fail)

    def error(self, fail: Fail) -> Refusal:
        status = fail.code or _STATUS.get(fail.status, "INTERNAL")
        return Refusal(fail.status, {"error": {"code": fail.status, "message": fail.text, "status": status}})

    def frames(self, reply: Reply, body: Body) -> Iterator[Frame]:
        for step in reply:
            yield from self._step(step)
            if isinstance(step, Cut | Fail):
                return
        yield _chunk([], FINISH[ending(reply).reason], spent(reply))

    def _step(self, step: Step) -> Iterator[Frame]:
        match step:
            case Say(text, pieces):
                yield from (_chunk([{"text": piece}]) for piece in split(text, pieces))
            case Think(text, signature, pieces):
                seal = b64encode(signature.encode()).decode()
                for piece in split(text, pieces):
                    yield _chunk([{"text": piece, "thought": True, "thoughtSignature": seal}])
            case CallTool():
                # Gemini does not stream arguments in chunks, and arguments are always an object.
                call: dict[str, Any] = {"name": step.name, "args": step.arguments}
                yield _chunk([{"functionCall": call if step.id is None else {**call, "id": step.id}}])
            case Fail():
                yield _event(self.error(step).body)
            case Cut() | Hang():
                yield step
            case Stop() | Spend():
                pass


def _chunk(parts: list[dict[str, Any]], finish: str | None = None, spend: Spend | None = None) -> bytes:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    chunk: dict[str, Any] = {"candidates": [candidate], "modelVersion": "fake"}
    if spend is not None:
        chunk["usageMetadata"] = {
            "promptTokenCount": spend.input,
            "cachedContentTokenCount": spend.cached,
            # Gemini counts thoughts separately from the candidates.
            "candidatesTokenCount": spend.output - spend.thought,
            "thoughtsTokenCount": spend.thought,
            "totalTokenCount": spend.input + spend.output,
        }
    return _event(chunk)


def _event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\r\n\r\n"


# -- what the real API refuses -----------------------------------------------------------------------------


def _faults(body: Body) -> Iterator[str]:
    contents = body.get("contents")
    if not is_objects(contents) or not contents:
        yield "GenerateContentRequest.contents: contents is not specified"
        return
    calls = 0
    for at, content in enumerate(contents):
        parts = rows(content, "parts")
        if content.get("role") not in ("user", "model", None):
            yield "Please use a valid role: user, model."
        if not parts:
            yield f"GenerateContentRequest.contents[{at}].parts: contents.parts must not be empty."
        answers = sum(1 for part in parts if inner(part, "functionResponse"))
        if calls != answers:
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        calls = sum(1 for part in parts if inner(part, "functionCall"))
