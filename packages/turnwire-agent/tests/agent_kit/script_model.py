"""A model that is a script: it answers by fixed rules, without any network, and the same every time.

Takes a script, a function that sees what was asked and gives the pieces of an answer; gives a `Model` like any
other. Tokens are estimated from the number of characters. Never runs a tool: it asks for one, as models do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import msgspec

from turnwire_agent.conversation import user_text
from turnwire_agent.model import (
    AssistantMessage,
    Finished,
    Message,
    OnRetry,
    Piece,
    Text,
    Thought,
    ToolResult,
    ToolSpec,
    ToolUse,
    Usage,
    UserMessage,
)

CHARACTERS_PER_TOKEN = 4
DELTA_CHARACTERS = 32
"""About how much of a text comes in one piece, so that it is seen to stream."""
CONTEXT_SIZE = 128_000


class Asked(NamedTuple):
    """The input of a script."""

    message: UserMessage
    """The user's last words."""
    step: int
    """The number of answers so far."""
    results: tuple[ToolResult, ...]
    """Results of the previous answer's tool uses."""
    tools: frozenset[str]

    @property
    def text(self) -> str:
        return user_text(self.message)


Script: TypeAlias = Callable[[Asked], AsyncGenerator[Piece]]


class ScriptModel:
    """A script as a `Model`."""

    takes_images = True
    context_size: int | None = CONTEXT_SIZE

    def __init__(self, name: str, script: Script) -> None:
        self.name = name
        self._script = script

    @asynccontextmanager
    async def stream(
        self,
        system: str,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        max_tokens: int | None = None,
        on_retry: OnRetry | None = None,
    ) -> AsyncGenerator[AsyncIterator[Piece]]:
        """One answer of the script. `on_retry` is never called: there is nothing to try again."""
        read = tokens_of(system) + sum(tokens_of(str(msgspec.to_builtins(each))) for each in messages)
        script = self._script(asked_of(messages, tools))
        async with aclosing(script), aclosing(_answer(script, read, max_tokens)) as pieces:
            yield pieces

    async def aclose(self) -> None:
        """There is nothing to let go of."""


async def _answer(script: AsyncIterator[Piece], read: int, max_tokens: int | None) -> AsyncGenerator[Piece]:
    """The script's pieces in the form of a model: small deltas, bounded, and one end."""
    written = thought = 0
    has_uses = False
    async for whole in script:
        for piece in _deltas(whole):
            written += tokens_of(piece.text) if isinstance(piece, Text | Thought | ToolUse) else 0
            thought += tokens_of(piece.text) if isinstance(piece, Thought) else 0
            if max_tokens is not None and written > max_tokens:
                yield Finished("length", Usage(read, max_tokens, 0, min(thought, max_tokens)))
                return
            if isinstance(piece, Finished):
                yield piece._replace(
                    usage=Usage(read, written, 0, thought) if not any(piece.usage) else piece.usage
                )
                return
            has_uses |= isinstance(piece, ToolUse)
            yield piece
    yield Finished("tools" if has_uses else "stop", Usage(read, written, 0, thought))


def echo_model(name: str = "echo") -> ScriptModel:
    """Return a model that repeats the prompt; for `run COMMAND` it calls the tool `run`, where that is offered."""

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        if asked.text.startswith("run ") and not asked.step and "run" in asked.tools:
            yield tool_use("run", 1, command=asked.text.removeprefix("run "))
        else:
            yield Text(asked.text)

    return ScriptModel(name, script)


def asked_of(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Asked:
    """The state of the conversation: its last user message and the tool results since."""
    last = max((at for at, each in enumerate(messages) if isinstance(each, UserMessage)), default=-1)
    message = messages[last] if last >= 0 else None
    since = messages[last + 1 :]
    answers = [at for at, each in enumerate(since) if isinstance(each, AssistantMessage)]
    behind = since[answers[-1] + 1 :] if answers else ()
    return Asked(
        message if isinstance(message, UserMessage) else UserMessage(()),
        len(answers),
        tuple(each for each in behind if isinstance(each, ToolResult)),
        frozenset(each.name for each in tools),
    )


def tool_use(name: str, number: int, **arguments: Any) -> ToolUse:
    """A tool call. `number` tells the calls of one answer apart."""
    text = msgspec.json.encode(arguments).decode()
    return ToolUse(f"call-{name}-{number}", name, arguments, text)


def tokens_of(text: str) -> int:
    """An estimate; tokens are not counted."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def _deltas(piece: Piece) -> list[Piece]:
    if not isinstance(piece, Text | Thought) or len(piece.text) <= DELTA_CHARACTERS:
        return [piece]
    deltas: list[str] = [""]
    for word in piece.text.split(" "):
        if len(deltas[-1]) + len(word) > DELTA_CHARACTERS:
            deltas.append("")
        deltas[-1] += f"{word} "
    deltas[-1] = deltas[-1][:-1]
    return [type(piece)(each) for each in deltas if each]
