"""The seam to a language model: what it is asked, and the pieces in which it answers.

Takes a system text, a conversation and the tools it may use; gives an answer piece by piece. Types of a
library never cross it. Never runs a tool, never asks a user and never keeps the conversation: its caller does.

An answer is any number of `Text` and `Thought` deltas, then its tool uses, and one `Finished` as the last piece.
A stream that ends without `Finished` does not exist: it raises `ModelFailed` instead.

Which model is asked comes from the text of `--model`, the URL of `--model-url` and environment variables, as a
`ModelChoice`. What cannot be used is a `ConfigError` that says what to do. No model library is imported for it, and
no network reached: the first request does.
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
"""What every provider of models takes as the name of a tool."""


def in_letters(name: str) -> str:
    """A name in the letters that every provider takes."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)


OnRetry: TypeAlias = Callable[[FailureReason, int, float], object]
"""Told before each wait for another try: why, which try comes next (2 for the first repeat), seconds to wait."""


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
    """A complete tool call of a model. `arguments` is `None` when `text`, what it sent, is no JSON object.

    Its `id` is the provider's, and some use one again in a later answer.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    text: str


class UserMessage(Struct, frozen=True, tag="user"):
    """What the user said."""

    parts: tuple[UserPart, ...]


class AssistantMessage(Struct, frozen=True, tag="assistant"):
    """What the model said. `opaque` is its provider's own form of it, as `Finished` gave it; kept unread."""

    text: str = ""
    thought: str = ""
    tool_uses: tuple[ToolUse, ...] = field(default=(), name="wishes")
    """Kept under the name that sessions have used from the first on."""
    opaque: bytes | None = None


class ToolResult(Struct, frozen=True, tag="tool"):
    """The result of one tool use. Every one has exactly one, right after the message that held it."""

    id: str
    name: str
    text: str
    is_error: bool = False


Message: TypeAlias = UserMessage | AssistantMessage | ToolResult
"""One entry of a conversation. `msgspec.json` writes it and reads it back (`list[Message]`)."""


# -- what it answers -----------------------------------------------------------------------------------------


class Text(NamedTuple):
    """A piece of the answer."""

    text: str


class Thought(NamedTuple):
    """A piece of the model's thinking."""

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
    """The last piece. `opaque` goes into the `AssistantMessage` that is made of this answer."""

    reason: FinishReason
    usage: Usage = Usage()
    opaque: bytes | None = None


Piece: TypeAlias = Text | Thought | ToolUseStarted | ToolUse | Finished


class Model(Protocol):
    """A language model."""

    @property
    def name(self) -> str:
        """As the user chose it, such as `anthropic:NAME`."""
        ...

    @property
    def context_size(self) -> int | None:
        """How many tokens a request and its answer may have together, if that is known."""
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
        """Ask once. Leaving the context, also by a cancellation, ends the request at once.

        Entering it and reading from it raise `ModelFailed`. Failures that may pass are tried again inside, as long
        as no piece was given, and told to `on_retry`.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections that are kept for the next request. The model can be asked again afterwards."""
        ...


# -- which one is asked, where, and with which key -----------------------------------------------------------


ProviderName: TypeAlias = Literal["openai", "ollama", "anthropic", "google"]


class ModelProvider(NamedTuple):
    """What the environment holds for one provider."""

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
"""Whether the model thinks before it answers, and how much."""

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
    """A model of a provider. Holds a secret, so its own text is its name."""

    provider: ProviderName
    model: str
    key: str | None
    key_variable: str
    """Where the key comes from, for messages to people."""
    url: str | None = None
    """The root of the API; `None` is the provider's own."""
    thinking: Thinking | None = None
    """`None` leaves it to the provider."""

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"

    def __repr__(self) -> str:
        return f"ModelChoice({self.name})"

    __str__ = __repr__


def read_choice(text: str, *, url: str | None = None, environment: Mapping[str, str] | None = None) -> ModelChoice:
    """What `text` and the environment say. An empty variable is as good as none. Raises `ConfigError`."""
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
