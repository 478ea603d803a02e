"""The interface to a language model: its request, and the chunks of its answer.

A system text, a conversation and the available tools go in; the answer comes back chunk by chunk. Types of a
library never cross this interface. It never runs a tool, asks a user or stores the conversation: its caller does.

An answer is any number of `Text` and `Thought` deltas, then its tool uses, and one `Finished` as the last chunk. A
stream never ends without `Finished`: it raises `ModelFailed` instead.

The text of `--model`, the URL of `--model-url` and environment variables select the model, as a `ModelChoice`. An
unusable choice is a `ConfigError` that names the remedy. This imports no model library and reaches no network: the
first request does.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast, get_args
from urllib.parse import urlsplit

from msgspec import Struct, field

from turnwire.errors import ConfigError

FinishReason: TypeAlias = Literal["stop", "length", "refusal", "tools"]
"""Why an answer is over. With `tools` the model waits for the results of its tool uses."""

FailureReason: TypeAlias = Literal[
    "rate_limited", "overloaded", "unreachable", "cut", "unauthorized", "bad_request", "too_long", "unknown"
]
"""The `reason` of `ModelFailed`. `cut` is a connection that broke after the request was sent."""

NAME_LENGTH = 64
"""Longest tool name that every provider accepts."""


def in_letters(name: str) -> str:
    """Return a name in the letters that every provider accepts."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)


OnRetry: TypeAlias = Callable[[FailureReason, int, float], object]
"""Called before each wait for another try: the reason, the number of the next try (2 for the first repeat), seconds
to wait.
"""


# -- what a model is asked -----------------------------------------------------------------------------------


class ToolSpec(NamedTuple):
    """A tool as a model sees it. `schema` is the JSON Schema of its arguments, an object."""

    name: str
    description: str
    schema: dict[str, Any]


class TextPart(Struct, frozen=True, tag="text"):
    """Plain text of a user."""

    text: str


class ImagePart(Struct, frozen=True, tag="image"):
    """A picture. `content` is base64."""

    mime: str
    content: str


class ResourcePart(Struct, frozen=True, tag="resource"):
    """A file or page that the user refers to. `text` is its content, or `None` for a mere link."""

    uri: str
    text: str | None = None
    mime: str | None = None


UserPart: TypeAlias = TextPart | ImagePart | ResourcePart


class ToolUse(Struct, frozen=True):
    """A complete tool call of a model. `arguments` is `None` when `text`, the model's output, is not a JSON object.

    Its `id` is the provider's, and some providers reuse one in a later answer.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    text: str


class UserMessage(Struct, frozen=True, tag="user"):
    """A message of the user."""

    parts: tuple[UserPart, ...]


class AssistantMessage(Struct, frozen=True, tag="assistant"):
    """A message of the model. `opaque` is the provider's form of it, as in `Finished`; stored unread."""

    text: str = ""
    thought: str = ""
    tool_uses: tuple[ToolUse, ...] = field(default=(), name="wishes")
    """Stored under the name that sessions have used since the first version."""
    opaque: bytes | None = None


class ToolResult(Struct, frozen=True, tag="tool"):
    """The result of one tool use. Every one has exactly one, right after the message that held it."""

    id: str
    name: str
    text: str
    is_error: bool = False


Message: TypeAlias = UserMessage | AssistantMessage | ToolResult
"""One entry of a conversation. `msgspec.json` writes it and reads it back (`list[Message]`)."""


# -- answers -------------------------------------------------------------------------------------------------


class Text(NamedTuple):
    """A chunk of the answer."""

    text: str


class Thought(NamedTuple):
    """A chunk of the model's thinking."""

    text: str


class ToolUseStarted(NamedTuple):
    """The model began to write a tool call. Its `ToolUse` follows once it is complete."""

    id: str
    name: str


class Usage(NamedTuple):
    """Tokens of one request. `input_tokens` holds the cached ones, `output_tokens` those of the thoughts."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    thought_tokens: int = 0


class Finished(NamedTuple):
    """The last chunk. `opaque` goes into the `AssistantMessage` made of this answer."""

    reason: FinishReason
    usage: Usage = Usage()
    opaque: bytes | None = None


Piece: TypeAlias = Text | Thought | ToolUseStarted | ToolUse | Finished


class Model(Protocol):
    """A language model."""

    @property
    def name(self) -> str:
        """The name as the user chose it, such as `anthropic:NAME`."""
        ...

    @property
    def context_size(self) -> int | None:
        """Maximum tokens of a request and its answer together, if known."""
        ...

    @property
    def takes_images(self) -> bool: ...

    def stream(
        self,
        system: str,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        on_retry: OnRetry | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece]]:
        """Send one request. Exiting the context, including by a cancellation, ends the request at once.

        Entering the context and reading from it raise `ModelFailed`. Transient failures are retried inside, as long
        as no chunk was returned, and reported to `on_retry`.
        """
        ...

    async def aclose(self) -> None:
        """Close connections that are pooled for the next request. The model can be called again afterwards."""
        ...


# -- which one is asked, where, and with which key -----------------------------------------------------------


ProviderName: TypeAlias = Literal["openai", "ollama", "anthropic", "google"]


class ModelProvider(NamedTuple):
    """The environment's settings for one provider."""

    keys: tuple[str, ...]
    """The variables that may hold its key; the first that is set counts."""
    url: str
    """The variable that may hold another root of its API."""
    module: str
    """The library that speaks its API."""


PROVIDERS: Mapping[ProviderName, ModelProvider] = {
    "openai": ModelProvider(("OPENAI_API_KEY",), "OPENAI_BASE_URL", "openai"),
    "ollama": ModelProvider(("OLLAMA_API_KEY",), "OLLAMA_BASE_URL", "openai"),
    "anthropic": ModelProvider(("ANTHROPIC_API_KEY",), "ANTHROPIC_BASE_URL", "anthropic"),
    "google": ModelProvider(("GOOGLE_API_KEY", "GEMINI_API_KEY"), "GOOGLE_GEMINI_BASE_URL", "google.genai"),
}

OLLAMA_URL = "http://localhost:11434/v1"

Thinking: TypeAlias = bool | Literal["minimal", "low", "medium", "high"]
"""Extent of the model's thinking before it answers."""

THINKING = "TURNWIRE_AGENT_THINKING"

_THINKING: Mapping[str, Thinking] = {
    "off": False,
    "on": True,
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
}

VARIABLES: tuple[str, ...] = (
    *(name for provider in PROVIDERS.values() for name in (*provider.keys, provider.url)),
    THINKING,
)
"""The environment variables that configure a model; an agent that asks one needs them."""


class ModelChoice(NamedTuple):
    """A model of a provider. It contains a secret, so its `str` is only its name."""

    provider: ProviderName
    model: str
    key: str | None
    key_variable: str
    """Name of the key's variable, for messages to people."""
    url: str | None = None
    """The root of the API; `None` is the provider's default."""
    thinking: Thinking | None = None
    """`None` uses the provider's default."""

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"

    def __repr__(self) -> str:
        return f"ModelChoice({self.name})"

    __str__ = __repr__


def read_choice(text: str, *, url: str | None = None, environment: Mapping[str, str] | None = None) -> ModelChoice:
    """Read the choice from `text` and the environment. An empty variable counts as unset. Raises `ConfigError`."""
    found = {name: value for name, value in (environment or os.environ).items() if value}
    provider, model = _names(text)
    own = PROVIDERS[provider]
    key = next((found[name] for name in own.keys if name in found), None)
    root = url or found.get(own.url) or (OLLAMA_URL if provider == "ollama" else None)
    if root is not None:
        _check_url(root)
    if key is None and (root is None or provider not in ("openai", "ollama")):
        names = " or ".join(own.keys)
        raise ConfigError(f"the model {provider}:{model} needs a key; set {names} in the environment")
    return ModelChoice(provider, model, key, own.keys[0], root, _thinking(found.get(THINKING)))


def _names(text: str) -> tuple[ProviderName, str]:
    provider, colon, model = text.strip().partition(":")
    if provider not in get_args(ProviderName) or not colon or not model:
        known = ", ".join(f"{name}:NAME" for name in PROVIDERS)
        raise ConfigError(f"{text!r} names no model; write one of {known}")
    return cast("ProviderName", provider), model


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError("the URL of the model is none; write it as http://HOST:PORT/v1 or https://HOST/v1")


def _thinking(text: str | None) -> Thinking | None:
    if text is not None and text not in _THINKING:
        raise ConfigError(f"{THINKING} is {text!r}; it takes one of {', '.join(_THINKING)}")
    return None if text is None else _THINKING[text]
