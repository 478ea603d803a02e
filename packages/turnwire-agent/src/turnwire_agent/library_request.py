"""Requests through the model library: conversion of models, messages, events and errors to our types.

This is the only module that imports the library, and the only one that opens a request; `library_model` loads it
with the first one. The library's retries are off, so that `LibraryModel` counts and reports every try.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple, cast

import httpx2
import msgspec
from pydantic import ValidationError
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import (
    BinaryContent,
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, create_async_httpx2_client
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from turnwire.errors import ModelFailed
from turnwire_agent.model import (
    AssistantMessage,
    FailureReason,
    Finished,
    FinishReason,
    ImagePart,
    Message,
    ModelChoice,
    Piece,
    ProviderName,
    ResourcePart,
    Text,
    Thought,
    ToolResult,
    ToolSpec,
    ToolUse,
    ToolUseStarted,
    Usage,
    UserMessage,
    UserPart,
)
from turnwire_agent.model import TextPart as SaidText

CONNECT_S = 10.0

SILENCE_S = 600.0
"""Timeout for a silent provider. Some think for minutes before the first byte."""


class LibraryConnection:
    """A model of the library and its connections."""

    def __init__(self, choice: ModelChoice) -> None:
        self._choice = choice
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        self._connections = create_async_httpx2_client(timeout=timeout)
        self._model = make_model(choice, self._connections)

    @property
    def context_size(self) -> int | None:
        return self._model.profile.get("context_window")

    @property
    def takes_images(self) -> bool:
        return self._model.profile.get("supports_image_input", True)

    def request(
        self, system: str, messages: Sequence[Message], tools: Sequence[ToolSpec], max_tokens: int | None
    ) -> LibraryRequest:
        definitions = [
            ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.schema)
            for tool in tools
        ]
        instructions = [InstructionPart(content=system)] if system else []
        return LibraryRequest(
            self._model,
            self._choice,
            conversation(messages, provider=self._model.system, takes_images=self.takes_images),
            ModelRequestParameters(function_tools=definitions, instruction_parts=instructions),
            self._settings(max_tokens),
        )

    async def aclose(self) -> None:
        await self._connections.aclose()

    def _settings(self, max_tokens: int | None) -> ModelSettings:
        settings = ModelSettings(max_retries=0, cache=True)
        if max_tokens is not None:
            settings["max_tokens"] = max_tokens
        if self._choice.thinking is not None:
            settings["thinking"] = self._choice.thinking
        return settings


class LibraryRequest(NamedTuple):
    """A request that can be sent."""

    model: Model
    choice: ModelChoice
    messages: list[ModelMessage]
    parameters: ModelRequestParameters
    settings: ModelSettings

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Exceptions that sending raises; `failure` interprets them."""
        return ERRORS

    def failure(self, error: Exception, *, seen: bool) -> RequestFailure:
        return what_failed(error, self.choice, seen=seen)

    @asynccontextmanager
    async def send(self) -> AsyncGenerator[AsyncIterator[Piece]]:
        """Send it. Leaving the context closes the stream, and with it the connection if the answer is not over."""
        request = model_request_stream(
            self.model,
            self.messages,
            model_settings=self.settings,
            model_request_parameters=self.parameters,
            instrument=False,
        )
        async with request as stream, aclosing(pieces_of(stream)) as pieces:
            yield pieces


# -- the providers -----------------------------------------------------------------------------------------


NO_KEY = "none"
"""Sent where a server needs no key, and its client wants one."""


def make_model(choice: ModelChoice, connections: httpx2.AsyncClient) -> Model:
    """Imports only the provider that was chosen: each costs time."""
    return _MODELS[choice.provider](choice, connections)


def _openai(choice: ModelChoice, connections: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    key = choice.key or NO_KEY
    if choice.url is None:
        # OpenAI always sends a finish reason. An answer without it was cut.
        profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
        own = OpenAIProvider(base_url="https://api.openai.com/v1", api_key=key, http_client=connections)
        return OpenAIChatModel(choice.model, provider=own, profile=profile)
    provider = OpenAICompatibleProvider(
        "openai-compatible", base_url=choice.url, api_key=key, http_client=connections
    )
    return OpenAIChatModel(choice.model, provider=provider)


def _ollama(choice: ModelChoice, connections: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.ollama import OllamaModel
    from pydantic_ai.providers.ollama import OllamaProvider

    provider = OllamaProvider(base_url=choice.url, api_key=choice.key or NO_KEY, http_client=connections)
    return OllamaModel(choice.model, provider=provider)


def _anthropic(choice: ModelChoice, connections: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(api_key=choice.key, base_url=choice.url, http_client=connections)
    return AnthropicModel(choice.model, provider=provider)


def _google(choice: ModelChoice, connections: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(api_key=choice.key, base_url=choice.url, http_client=connections)
    return GoogleModel(choice.model, provider=provider)


_MODELS: Mapping[ProviderName, Callable[[ModelChoice, httpx2.AsyncClient], Model]] = {
    "openai": _openai,
    "ollama": _ollama,
    "anthropic": _anthropic,
    "google": _google,
}


# -- our messages in the library's form --------------------------------------------------------------------


EMPTY = "(empty)"
"""For a text of nothing or of spaces, which some providers refuse."""

LOST_IMAGE = "[A picture was here. This model takes no pictures.]"

BAD_IMAGE = "[A picture was here. It could not be read.]"

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Image types that every provider accepts. Another type would be rejected, and with it every later request of the
conversation.
"""


def conversation(messages: Sequence[Message], *, provider: str, takes_images: bool) -> list[ModelMessage]:
    """Return `messages` in the form for `provider`. All messages between two answers become one request.

    An answer whose provider needs more back than its text and calls (such as signed thinking) was stored whole as
    opaque bytes, and is sent back only to the provider it came from.
    """
    told: list[ModelMessage] = []
    asked: list[ModelRequestPart] = []
    for message in messages:
        match message:
            case UserMessage(parts):
                asked.append(_prompt(parts, takes_images))
            case ToolResult():
                asked.append(_tool_return(message))
            case AssistantMessage():
                answer = _response(message, provider)
                if not answer.parts:
                    continue
                if asked:
                    told.append(ModelRequest(parts=asked))
                    asked = []
                told.append(answer)
    if asked:
        told.append(ModelRequest(parts=asked))
    return told


def _prompt(parts: Sequence[UserPart], takes_images: bool) -> UserPromptPart:
    contents = [_content(part, takes_images) for part in parts]
    # Text alone is sent as a string: not every compatible server accepts a list.
    texts = [content for content in contents if isinstance(content, str)]
    return UserPromptPart(content=_filled("\n".join(texts)) if len(texts) == len(contents) else contents)


def _content(part: UserPart, takes_images: bool) -> UserContent:
    match part:
        case SaidText(text):
            return _filled(text)
        case ImagePart(mime, content):
            return _picture(mime, content) if takes_images else LOST_IMAGE
        case ResourcePart(uri, None, _):
            return f"[The user refers to {uri}]"
        case ResourcePart(uri, text, _):
            return f"<resource uri={uri!r}>\n{text}\n</resource>"


def _filled(text: str) -> str:
    return text if text.strip() else EMPTY


def _picture(mime: str, content: str) -> UserContent:
    if mime not in IMAGES:
        return BAD_IMAGE
    try:
        return BinaryContent(data=b64decode(content, validate=True), media_type=mime)
    except NotBase64:
        return BAD_IMAGE


def _tool_return(result: ToolResult) -> ToolReturnPart:
    return ToolReturnPart(
        tool_name=result.name,
        content=_filled(result.text),
        tool_call_id=result.id,
        outcome="failed" if result.is_error else "success",
    )


def _response(message: AssistantMessage, provider: str) -> ModelResponse:
    """Return the answer as it came from `provider`, else its provider-independent parts."""
    kept = _kept(message.opaque)
    if kept is not None and kept.provider_name == provider and _ids(kept) == [use.id for use in message.tool_uses]:
        return kept
    parts: list[ModelResponsePart] = [TextPart(content=message.text)] if message.text.strip() else []
    for use in message.tool_uses:
        arguments = use.text if use.arguments is None else use.arguments
        parts.append(ToolCallPart(tool_name=use.name, args=arguments, tool_call_id=use.id))
    return ModelResponse(parts=parts)


def _kept(opaque: bytes | None) -> ModelResponse | None:
    if opaque is None:
        return None
    try:
        messages = ModelMessagesTypeAdapter.validate_json(opaque)
    except ValidationError:  # kept by another version of the library
        return None
    return messages[0] if len(messages) == 1 and isinstance(messages[0], ModelResponse) else None


def _ids(response: ModelResponse) -> list[str]:
    return [part.tool_call_id for part in response.parts if isinstance(part, ToolCallPart)]


def opaque_of(response: ModelResponse) -> bytes | None:
    """Return the data of an answer that its text and calls do not contain; `None` if there is none."""
    if any(isinstance(part, ThinkingPart) or _has_more(part) for part in response.parts):
        return ModelMessagesTypeAdapter.dump_json([response])
    return None


def _has_more(part: ModelResponsePart) -> bool:
    return bool(getattr(part, "provider_details", None))


# -- the library's events in our pieces --------------------------------------------------------------------


async def pieces_of(stream: StreamedResponse) -> AsyncGenerator[Piece]:
    """Yield the answer in chunks, `Finished` last. A stream that ends without a finish reason raises, like a broken
    one.
    """
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
    tool_uses = [_tool_use(part) for part in response.parts if isinstance(part, ToolCallPart)]
    reason = _reason(response, tool_uses)
    for use in tool_uses:
        yield use
    yield Finished(reason, _usage(response.usage), opaque_of(response))


def _now(event: ModelResponseStreamEvent) -> Iterator[Piece]:
    """Yield the chunks that one event makes visible."""
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            if text:
                yield Text(text)
        case PartStartEvent(part=ThinkingPart(content=text)) if text:
            yield Thought(text)
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)) if text:
            yield Thought(text)
        case PartStartEvent(part=ToolCallPart(tool_name=name, tool_call_id=identity)):
            yield ToolUseStarted(identity, name)
        case _:
            pass


def _tool_use(part: ToolCallPart) -> ToolUse:
    text = part.args_as_json_str() if isinstance(part.args, dict) else part.args or "{}"
    try:
        arguments = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        arguments = None
    return ToolUse(part.tool_call_id, part.tool_name, arguments, text)


def _reason(response: ModelResponse, tool_uses: list[ToolUse]) -> FinishReason:
    match response.finish_reason:
        case "length":
            return "length"
        case "content_filter":
            return "refusal"
        case "stop" | "tool_call":
            return "tools" if tool_uses else "stop"
        case "error":
            raise UnexpectedModelBehavior("the provider ended the answer with an error")
        case None if response.state == "suspended":
            return "stop"
        case None:
            name = response.model_name or ""
            raise ModelConnectionError(name, "the stream ended without a reason", phase="read", in_stream=True)


def _refusal(response: ModelResponse) -> str:
    """Return the model's explanation of a refusal, which is not part of the answer's text."""
    told = (response.provider_details or {}).get("refusal")
    return told if response.finish_reason == "content_filter" and isinstance(told, str) else ""


def _usage(usage: RequestUsage) -> Usage:
    thoughts = usage.details.get("reasoning_tokens", 0) or usage.details.get("thoughts_tokens", 0)
    return Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, thoughts)


# -- the library's errors in our words ---------------------------------------------------------------------


ERRORS = (AgentRunError, UserError)
"""Exceptions that a request through the library raises."""

_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")
"""Pattern of a provider's error codes as documented. Other text is not trusted."""


class RequestFailure(NamedTuple):
    """A request that failed."""

    reason: FailureReason
    text: str
    may_pass: bool = False
    """True if the same request may succeed a little later."""
    asked_wait_s: float | None = None
    """The retry delay the provider asked for."""
    words: str = ""
    """The provider's message: for a log, never for the text, because it may contain user input."""

    def error(self) -> ModelFailed:
        return ModelFailed(self.text, reason=self.reason)


class _Kind(NamedTuple):
    error: type[Exception]
    reason: FailureReason
    may_pass: bool
    text: str


# In order: more specific errors come first.
_KINDS = (
    _Kind(
        ModelQuotaExceededError, "rate_limited", False, "{name} has no quota or credit left{code}; see the account"
    ),
    _Kind(
        ModelRateLimitError, "rate_limited", True, "{name} takes no more requests for now{code}; try again later"
    ),
    _Kind(ModelUnavailableError, "overloaded", True, "{name} is overloaded or down{code}; try again later"),
    _Kind(ModelServerError, "overloaded", True, "the server of {name} failed{code}; try again later"),
    _Kind(
        ModelContextWindowExceededError, "too_long", False, "the conversation is too long for {name}; shorten it"
    ),
    _Kind(ModelAuthenticationError, "unauthorized", False, "{name} does not take the key{code}; check {variable}"),
    _Kind(ModelNotFoundError, "bad_request", False, "there is no model {name} at {place}{code}; check its name"),
    _Kind(UserError, "bad_request", False, "the conversation cannot be put to {name}; the log says why"),
    _Kind(
        ModelRequestRejectedError, "bad_request", False, "{name} does not take the request{code}; the log says why"
    ),
)


def what_failed(error: Exception, choice: ModelChoice, *, seen: bool) -> RequestFailure:
    """Classify `error`. `seen` means that chunks of the answer were delivered: then any error is a cut."""
    kind = _kind(error)
    text = kind.text.format(name=choice.name, place=_place(choice), code=_code(error), variable=choice.key_variable)
    if seen:
        why = "try again" if kind.reason == "cut" else text
        return RequestFailure("cut", f"the answer of {choice.name} broke off; {why}", words=str(error))
    asked_s = error.retry_after if isinstance(error, ModelAPIError) else None
    says_no = isinstance(error, ModelHTTPError) and error.provider_retry_hint is False
    return RequestFailure(kind.reason, text, kind.may_pass and not says_no, asked_s, str(error))


def _kind(error: Exception) -> _Kind:
    if isinstance(error, ModelConnectionError):
        if error.phase == "read":
            return _Kind(ModelConnectionError, "cut", True, "the connection to {name} broke; try again")
        return _Kind(
            ModelConnectionError, "unreachable", True, "nothing answers at {place}; check the network or URL"
        )
    for kind in _KINDS:
        if isinstance(error, kind.error):
            return kind
    return _Kind(Exception, "unknown", False, "{name} gave no answer that can be read{code}; the log says why")


def _place(choice: ModelChoice) -> str:
    # A URL may contain a name and a password before its host, which must not be shown.
    return "the provider" if choice.url is None else choice.url.partition("://")[2].rpartition("@")[2]


def _code(error: Exception) -> str:
    """The status and the code of a provider, if they are there."""
    status = str(error.status_code) if isinstance(error, ModelHTTPError) else ""
    words = [error.provider_error_code, error.provider_error_type] if isinstance(error, ModelAPIError) else []
    code = next((word for word in words if word and _CODE.fullmatch(word)), "")
    told = " ".join(each for each in (status, code) if each)
    return f" ({told})" if told else ""
