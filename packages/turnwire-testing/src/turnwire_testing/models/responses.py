"""A fake of OpenAI's responses, streaming.

Replies made of steps become the events of the real stream: `response.created`, the items of the answer with their
deltas, `response.completed` with the usage. A missing key, and a call or a result without the other, are rejected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from turnwire_testing.models.openai import key_refusal
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
    rows,
    spent,
    split,
)


class FakeResponses(FakeServer):
    """`async with FakeResponses([[Say("Hello")]]) as server:` and a client with the base URL `server.url`.

    `key` is the only accepted API key; without it, every key is accepted.
    """

    def __init__(self, script: Script, *, key: str | None = None) -> None:
        super().__init__(_Responses(key), script)


class _Responses:
    """The `Api` of responses."""

    path = "/v1/responses"
    root = "/v1"

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._answers = count(1)
        self._items = count(1)

    def refuses(self, headers: Headers, body: Body) -> Refusal | None:
        fail = key_refusal(headers, self._key) or _ask_refusal(body)
        return fail and self.error(fail)

    def error(self, fail: Fail) -> Refusal:
        kind = "server_error" if fail.status >= 500 else "invalid_request_error"
        return Refusal(fail.status, {"error": {"message": fail.text, "type": kind, "code": fail.code}})

    def frames(self, reply: Reply, body: Body) -> Iterator[Frame]:
        head: dict[str, Any] = {"id": f"resp_{next(self._answers)}", "object": "response", "model": body["model"]}
        yield _event("response.created", {"response": {**head, "status": "in_progress", "output": []}})
        done: list[dict[str, Any]] = []
        for step in reply:
            yield from self._step(step, head, done)
            if isinstance(step, Cut | Fail):
                return
        end = ending(reply)
        whole = {**head, "output": done, "usage": _usage(spent(reply)), "error": None}
        if end.reason in ("length", "refusal"):
            why = "max_output_tokens" if end.reason == "length" else "content_filter"
            whole |= {"status": "incomplete", "incomplete_details": {"reason": why}}
            yield _event("response.incomplete", {"response": whole})
        else:
            yield _event("response.completed", {"response": {**whole, "status": "completed"}})

    def _step(self, step: Step, head: Mapping[str, Any], done: list[dict[str, Any]]) -> Iterator[Frame]:
        at = {"output_index": len(done)}
        match step:
            case Say(text, pieces):
                item = {"type": "message", "id": f"msg_{next(self._items)}", "role": "assistant"}
                part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
                whole = {**item, "content": [part]}
                deltas = _deltas(
                    "response.output_text.delta", {**at, "content_index": 0}, item, split(text, pieces)
                )
                yield from _item(at, {**item, "content": []}, deltas, whole, done)
            case Think(text, _, pieces):
                item = {"type": "reasoning", "id": f"rs_{next(self._items)}"}
                deltas = _deltas(
                    "response.reasoning_summary_text.delta", {**at, "summary_index": 0}, item, split(text, pieces)
                )
                whole = {**item, "summary": [{"type": "summary_text", "text": text}]}
                yield from _item(at, {**item, "summary": []}, deltas, whole, done)
            case CallTool():
                yield from self._call(step, at, done)
            case Fail():
                failed = {**head, "status": "failed", "error": self.error(step).body["error"]}
                yield _event("response.failed", {"response": failed})
            case Cut() | Hang():
                yield step
            case Stop() | Spend():
                pass

    def _call(self, step: CallTool, at: Mapping[str, Any], done: list[dict[str, Any]]) -> Iterator[Frame]:
        number = next(self._items)
        item = {"type": "function_call", "id": f"fc_{number}", "name": step.name}
        item["call_id"] = step.id or f"call_{number}"
        text = step.arguments if isinstance(step.arguments, str) else json.dumps(dict(step.arguments))
        deltas = _deltas("response.function_call_arguments.delta", at, item, split(text, step.pieces))
        yield from _item(at, {**item, "arguments": ""}, deltas, {**item, "arguments": text}, done)


def _item(
    at: Mapping[str, Any],
    begun: dict[str, Any],
    deltas: list[bytes],
    whole: dict[str, Any],
    done: list[dict[str, Any]],
) -> Iterator[bytes]:
    yield _event("response.output_item.added", {**at, "item": {**begun, "status": "in_progress"}})
    yield from deltas
    done.append({**whole, "status": "completed"})
    yield _event("response.output_item.done", {**at, "item": done[-1]})


def _deltas(kind: str, at: Mapping[str, Any], item: Mapping[str, Any], pieces: list[str]) -> list[bytes]:
    return [_event(kind, {**at, "item_id": item["id"], "delta": piece}) for piece in pieces]


def _usage(spend: Spend) -> dict[str, Any]:
    return {
        "input_tokens": spend.input,
        "input_tokens_details": {"cached_tokens": spend.cached},
        "output_tokens": spend.output,
        "output_tokens_details": {"reasoning_tokens": spend.thought},
        "total_tokens": spend.input + spend.output,
    }


def _event(kind: str, payload: Mapping[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **payload})}\n\n".encode()


# -- what the real API refuses -----------------------------------------------------------------------------


def _ask_refusal(body: Body) -> Fail | None:
    """The refusal of a malformed body: its first fault."""
    return next((Fail(400, text=fault) for fault in _faults(body)), None)


def _faults(body: Body) -> Iterator[str]:
    if not isinstance(body.get("model"), str):
        yield "Missing required parameter: 'model'."
    if body.get("stream") is not True:
        yield "the fake answers streaming requests only: send stream: true"
    if not body.get("input"):
        yield "Missing required parameter: 'input'."
    called: set[str] = set()
    answered: set[str] = set()
    for item in rows(body, "input"):
        identity = str(item.get("call_id"))
        if item.get("type") in ("function_call", "custom_tool_call"):
            called.add(identity)
        elif item.get("type") in ("function_call_output", "custom_tool_call_output"):
            answered.add(identity)
            if identity not in called:
                yield f"No tool call found for function call output with call_id {identity}."
    for identity in sorted(called - answered):
        yield f"No tool output found for function call {identity}."
