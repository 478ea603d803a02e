"""The seam to a language model: what it is asked, and the pieces in which it answers.

Takes a system text, a conversation and the tools it may use; gives an answer piece by piece. Types of a
library never cross it. Never runs a tool, never asks a user and never keeps the conversation: its caller does.

An answer is any number of `Text` and `Thought` deltas, then its tool uses, and one `Finished` as the last piece.
A stream that ends without `Finished` does not exist: it raises `ModelFailed` instead.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct, field

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
