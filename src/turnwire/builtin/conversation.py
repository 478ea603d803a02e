"""What a model is told of a session so far, kept in the session's own state.

Takes messages one after the other; gives them back in order, also after a restart. The one rule it holds: every
tool wish has exactly one result, right behind it, whatever was cut or cancelled. Never asks a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from turnwire.builtin.model import AssistantMessage, Message, TextPart, ToolResult, ToolWish, UserMessage

KEY = "messages"
"""Where in the session's state the conversation is."""
STOPPED = "This tool call was stopped before it had a result."
SUMMARY = "What was said before, in short:\n\n"


class Conversation:
    """The messages of one session. What is added is in its state at once."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._kept: list[Any] = state.setdefault(KEY, [])
        self.messages: list[Message] = repaired(_read(self._kept))
        self.taken = 0
        """How many of them a model has answered to since this was made; none of those is malformed."""
        self._write()

    def add(self, *messages: Message) -> None:
        self.messages += messages
        self._kept += [msgspec.to_builtins(each) for each in messages]

    def place(self) -> int:
        """Where the next message goes, for `rewind`."""
        return len(self.messages)

    def rewind(self, place: int) -> None:
        """Forget everything from this place on."""
        self.replace(self.messages[:place])

    def replace(self, messages: Iterable[Message]) -> None:
        self.messages = list(messages)
        self._write()

    def _write(self) -> None:
        self._kept[:] = [msgspec.to_builtins(each) for each in self.messages]


def _read(kept: list[Any]) -> list[Message]:
    """Stop at the first entry that is none of ours: what follows would hang in the air."""
    messages: list[Message] = []
    for each in kept:
        try:
            messages.append(msgspec.convert(each, Message))
        except msgspec.ValidationError:
            break
    return messages


def repaired(messages: Sequence[Message]) -> list[Message]:
    """The same with a result behind every wish and none without a wish."""
    whole: list[Message] = []
    open_wishes: list[ToolWish] = []
    for each in messages:
        if isinstance(each, ToolResult):
            found = [wish for wish in open_wishes if wish.id == each.id]
            if found:
                open_wishes.remove(found[0])
                whole.append(each)
            continue
        whole += map(stopped, open_wishes)
        whole.append(each)
        open_wishes = list(each.wishes) if isinstance(each, AssistantMessage) else []
    return [*whole, *map(stopped, open_wishes)]


def stopped(wish: ToolWish) -> ToolResult:
    """The result of a wish that nobody came to."""
    return ToolResult(wish.id, wish.name, STOPPED, is_error=True)


def user_text(message: Message) -> str:
    """The words of a user's message; empty for any other."""
    if not isinstance(message, UserMessage):
        return ""
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def says(text: str) -> UserMessage:
    """A user's message of plain words."""
    return UserMessage((TextPart(text),))


def plain_transcript(messages: Sequence[Message], max_characters: int) -> str:
    """The conversation as text to summarise, its newest part if it is too long."""
    lines: list[str] = []
    for each in messages:
        if isinstance(each, ToolResult):
            lines.append(f"Tool {each.name} gave: {each.text[:2000]}")
        elif isinstance(each, AssistantMessage):
            wished = "".join(f" [called {wish.name} {wish.text[:300]}]" for wish in each.wishes)
            lines.append(f"Agent: {each.text}{wished}")
        else:
            lines.append(f"User: {user_text(each)}")
    return "\n".join(lines)[-max_characters:]
