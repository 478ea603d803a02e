"""What a fake model server is told to do: one reply for each request, made of steps.

A step means the same for every server; how it looks on the wire is the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import anyio

StopWord: TypeAlias = Literal["stop", "length", "refusal", "tools"]


@dataclass(frozen=True)
class Say:
    """Text of the answer, in so many pieces of about the same size."""

    text: str
    pieces: int = 1


@dataclass(frozen=True)
class Think:
    """A block of thinking. Anthropic's API signs it. OpenAI's has none; there it is `reasoning_content`, as servers
    compatible with it send it."""

    text: str
    signature: str = "signed-by-the-fake"
    pieces: int = 1


@dataclass(frozen=True)
class CallTool:
    """A tool call. Several in one reply are parallel. Text as `arguments` is sent as it is, valid or not."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict[str, Any])
    id: str | None = None
    """Made up, and never the same twice, when there is none."""
    pieces: int = 2


@dataclass(frozen=True)
class Stop:
    """How the answer ends. Without it: `tools` after a tool call, else `stop`."""

    reason: StopWord
    text: str = ""
    """What the model says of a refusal, where the API has a place for it."""


@dataclass(frozen=True)
class Spend:
    """The tokens that the answer reports. `input` holds the cached ones, `output` those of the thoughts."""

    input: int = 10
    output: int = 5
    cached: int = 0
    thought: int = 0


@dataclass(frozen=True)
class Fail:
    """An error. As the first step it is the whole reply, with this status; later it comes inside the stream."""

    status: int
    retry_after: float | None = None
    """Seconds. A whole number is sent as `Retry-After`, another one as `retry-after-ms`."""
    code: str | None = None
    """Such as `context_length_exceeded`, for errors that have more than their status."""
    text: str = "the fake was told to fail"


@dataclass(frozen=True)
class Cut:
    """The connection breaks here. As the first step: before anything of the reply was sent."""

    clean: bool = False
    """Instead of breaking, the stream just ends, without the end of the answer. Some proxies do this."""


@dataclass(frozen=True)
class Hang:
    """Nothing comes until `released` is set, or until the client goes away."""

    released: anyio.Event = field(default_factory=anyio.Event)


Step: TypeAlias = Say | Think | CallTool | Stop | Spend | Fail | Cut | Hang
Reply: TypeAlias = Sequence[Step]
Script: TypeAlias = Sequence[Reply] | Callable[[dict[str, Any]], Reply]
"""The replies in order, or what makes a reply of the body of a request."""


def split(text: str, pieces: int) -> list[str]:
    """`text` in at most so many pieces, none of them empty."""
    size = max(1, -(-len(text) // max(1, pieces)))
    return [text[at : at + size] for at in range(0, len(text), size)]


def ending(reply: Reply) -> Stop:
    """How `reply` ends: as its `Stop` says, else by what it holds."""
    told = [step for step in reply if isinstance(step, Stop)]
    calls = any(isinstance(step, CallTool) for step in reply)
    return told[-1] if told else Stop("tools" if calls else "stop")


def spent(reply: Reply) -> Spend:
    told = [step for step in reply if isinstance(step, Spend)]
    return told[-1] if told else Spend()
