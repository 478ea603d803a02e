"""From the library's events to pieces.

Takes a stream of the library; gives `Text`, `Thought` and `ToolWishStarted` as they come, then the complete tool
wishes and `Finished`. A stream that ends without saying why raises, as one that broke.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, cast

import msgspec
from pydantic_ai.exceptions import ModelConnectionError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import StreamedResponse
from pydantic_ai.usage import RequestUsage

from turnwire.builtin.library_messages import opaque_of
from turnwire.builtin.model import Finished, FinishReason, Piece, Text, Thought, ToolWish, ToolWishStarted, Usage


async def pieces_of(stream: StreamedResponse) -> AsyncGenerator[Piece]:
    """The answer in pieces, `Finished` last."""
    said = False
    events = cast("AsyncGenerator[ModelResponseStreamEvent]", aiter(stream))
    async with aclosing(events):
        async for event in events:
            for piece in _now(event):
                said = said or isinstance(piece, Text)
                yield piece
    response = stream.get()
    if not said and (refusal := _refusal(response)):
        yield Text(refusal)
    wishes = [_wish(part) for part in response.parts if isinstance(part, ToolCallPart)]
    reason = _reason(response, wishes)
    for wish in wishes:
        yield wish
    yield Finished(reason, _usage(response.usage), opaque_of(response))


def _now(event: ModelResponseStreamEvent) -> Iterator[Piece]:
    """What one event shows at once."""
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            if text:
                yield Text(text)
        case PartStartEvent(part=ThinkingPart(content=text)) if text:
            yield Thought(text)
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)) if text:
            yield Thought(text)
        case PartStartEvent(part=ToolCallPart(tool_name=name, tool_call_id=identity)):
            yield ToolWishStarted(identity, name)
        case _:
            pass


def _wish(part: ToolCallPart) -> ToolWish:
    text = part.args_as_json_str() if isinstance(part.args, dict) else part.args or "{}"
    try:
        arguments = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        arguments = None
    return ToolWish(part.tool_call_id, part.tool_name, arguments, text)


def _reason(response: ModelResponse, wishes: list[ToolWish]) -> FinishReason:
    match response.finish_reason:
        case "length":
            return "length"
        case "content_filter":
            return "refusal"
        case "stop" | "tool_call":
            return "tools" if wishes else "stop"
        case "error":
            raise UnexpectedModelBehavior("the provider ended the answer with an error")
        case None if response.state == "suspended":
            return "stop"
        case None:
            name = response.model_name or ""
            raise ModelConnectionError(name, "the stream ended without a reason", phase="read", in_stream=True)


def _refusal(response: ModelResponse) -> str:
    """What the model said of its refusal. It is no part of the answer's text."""
    told = (response.provider_details or {}).get("refusal")
    return told if response.finish_reason == "content_filter" and isinstance(told, str) else ""


def _usage(usage: RequestUsage) -> Usage:
    thoughts = usage.details.get("reasoning_tokens", 0) or usage.details.get("thoughts_tokens", 0)
    return Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, thoughts)
