"""Shared parts of the model tests: a model over a fake server, and an answer read to its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias

import anyio

from turnwire.clock import Clock
from turnwire_agent.library_model import LibraryModel, choose_model
from turnwire_agent.model import (
    AssistantMessage,
    Finished,
    Message,
    OnRetry,
    Piece,
    Text,
    TextPart,
    Thought,
    ToolSpec,
    ToolUse,
    UserMessage,
)
from turnwire_testing.models import FakeAnthropic, FakeOpenAI, FakeServer, Script

Fake: TypeAlias = type[FakeOpenAI] | type[FakeAnthropic]

LIMIT_S = 60.0
"""The first request of a process imports the library, which takes seconds on a busy machine."""

KEYS = {"OPENAI_API_KEY": "key", "ANTHROPIC_API_KEY": "key", "GOOGLE_API_KEY": "key"}
OPENAI = "openai:a-model"
ANTHROPIC = "anthropic:a-model"
FAKES = [(FakeOpenAI, OPENAI), (FakeAnthropic, ANTHROPIC)]
"""Both servers, each with a model that is asked there."""

READ = ToolSpec(
    "read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
)
HELLO = UserMessage((TextPart("Hello"),))


@asynccontextmanager
async def asked_at(
    url: str, text: str, *, clock: Clock | None = None, thinking: str = ""
) -> AsyncGenerator[LibraryModel]:
    """A model that is asked at `url`."""
    environment = {**KEYS, "TURNWIRE_AGENT_THINKING": thinking}
    model = choose_model(text, url=url, environment=environment, clock=clock)
    with anyio.fail_after(LIMIT_S):
        try:
            yield model
        finally:
            await model.aclose()


@asynccontextmanager
async def asking(
    fake: Fake, script: Script, text: str, *, clock: Clock | None = None
) -> AsyncGenerator[tuple[FakeServer, LibraryModel]]:
    """A fake server and a model that is asked there."""
    async with fake(script) as server, asked_at(server.url, text, clock=clock) as model:
        yield server, model


class Answer(NamedTuple):
    """An answer as a whole."""

    pieces: list[Piece]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Text))

    @property
    def thought(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Thought))

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, ToolUse))

    @property
    def finished(self) -> Finished:
        last = self.pieces[-1]
        assert isinstance(last, Finished)
        return last

    @property
    def message(self) -> AssistantMessage:
        return AssistantMessage(self.text, self.thought, self.tool_uses, self.finished.opaque)


async def answer(
    model: LibraryModel,
    messages: Sequence[Message] = (HELLO,),
    tools: Sequence[ToolSpec] = (READ,),
    *,
    system: str = "Be brief.",
    max_tokens: int | None = None,
    on_retry: OnRetry | None = None,
) -> Answer:
    """Ask once and read to the end."""
    stream = model.stream(system, messages, tools, max_tokens=max_tokens, on_retry=on_retry)
    async with stream as pieces:
        return Answer([piece async for piece in pieces])
