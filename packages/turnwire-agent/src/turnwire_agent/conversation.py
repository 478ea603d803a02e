"""The conversation of a session: its messages, stored in the session's state, and the user's next one.

Messages are restored in order, including after a restart. Invariant: every tool use has exactly one result directly
after it, after any cut or cancellation. This module never calls a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from turnwire_agent.model import (
    AssistantMessage,
    ImagePart,
    Message,
    ResourcePart,
    TextPart,
    ToolResult,
    ToolUse,
    UserMessage,
    UserPart,
)

KEY = "messages"
"""Key of the conversation in the session's state."""

STOPPED = "This tool call was stopped before it had a result."
INTERRUPTED = "This tool call was interrupted before it had a result. What it has done by then is not known."


class Conversation:
    """The messages of one session. An added message is in the state at once."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._kept: list[Any] = state.setdefault(KEY, [])
        self.messages: list[Message] = repaired(_read_messages(self._kept))
        self.taken = 0
        """Number of messages that a model has answered since this was created; they are known to be well-formed."""
        self._write()

    def add(self, *messages: Message) -> None:
        self.messages += messages
        self._kept += [msgspec.to_builtins(each) for each in messages]

    def place(self) -> int:
        """Return the position of the next message, for `rewind`."""
        return len(self.messages)

    def rewind(self, place: int) -> None:
        """Forget everything from this place on."""
        self.replace(self.messages[:place])

    def replace(self, messages: Iterable[Message]) -> None:
        self.messages = list(messages)
        self._write()

    def _write(self) -> None:
        self._kept[:] = [msgspec.to_builtins(each) for each in self.messages]


def _read_messages(kept: list[Any]) -> list[Message]:
    """Stop at the first unreadable entry: later ones would lack their context."""
    messages: list[Message] = []
    for each in kept:
        try:
            messages.append(msgspec.convert(each, Message))
        except msgspec.ValidationError:
            break
    return messages


def repaired(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a result after every tool use and no result without one: a killed process may have
    written only a part.
    """
    whole: list[Message] = []
    open_uses: list[ToolUse] = []
    for each in messages:
        if isinstance(each, ToolResult):
            found = [use for use in open_uses if use.id == each.id]
            if found:
                open_uses.remove(found[0])
                whole.append(each)
            continue
        whole += map(_interrupted, open_uses)
        whole.append(each)
        open_uses = list(each.tool_uses) if isinstance(each, AssistantMessage) else []
    return [*whole, *map(_interrupted, open_uses)]


def _interrupted(use: ToolUse) -> ToolResult:
    return ToolResult(use.id, use.name, INTERRUPTED, is_error=True)


def stopped(use: ToolUse) -> ToolResult:
    """Return the result of a tool use that was not run."""
    return ToolResult(use.id, use.name, STOPPED, is_error=True)


def user_text(message: Message) -> str:
    """Return the text of a user's message; empty for any other."""
    if not isinstance(message, UserMessage):
        return ""
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def says(text: str) -> UserMessage:
    """Return a user's message of plain text."""
    return UserMessage((TextPart(text),))


def plain_transcript(messages: Sequence[Message], max_characters: int) -> str:
    """The conversation as text to summarise, its newest part if it is too long."""
    lines: list[str] = []
    for each in messages:
        if isinstance(each, ToolResult):
            lines.append(f"Tool {each.name} gave: {each.text[:2000]}")
        elif isinstance(each, AssistantMessage):
            called = "".join(f" [called {use.name} {use.text[:300]}]" for use in each.tool_uses)
            lines.append(f"Agent: {each.text}{called}")
        else:
            lines.append(f"User: {user_text(each)}")
    return "\n".join(lines)[-max_characters:]


# -- a prompt as a model takes it --------------------------------------------------------------------------


TITLE_LENGTH = 60


def user_message(blocks: Sequence[dict[str, Any]], *, takes_images: bool) -> UserMessage:
    """Return ACP content blocks as one message. A block that the model does not support becomes a line that states
    so; nothing is dropped silently.
    """
    return UserMessage(tuple(_part(each, takes_images) for each in blocks))


def _part(block: dict[str, Any], takes_images: bool) -> UserPart:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "image", "data": str(content), "mimeType": str(mime)}:
            return _image(mime, content, takes_images)
        case {"type": "resource_link", "uri": str(uri)}:
            mime = block.get("mimeType")
            return ResourcePart(uri, None, mime if isinstance(mime, str) else None)
        case {"type": "resource", "resource": dict()}:
            return _resource(block["resource"], takes_images)
        case _:
            return TextPart(f"[The prompt held something of type {block.get('type')!r}, which was left out.]")


def _image(mime: str, content: str, takes_images: bool) -> UserPart:
    if takes_images:
        return ImagePart(mime, content)
    return TextPart(f"[The prompt held a picture ({mime}). This model takes no pictures, so it was left out.]")


def _resource(resource: dict[str, Any], takes_images: bool) -> UserPart:
    uri, mime = str(resource.get("uri", "")), resource.get("mimeType")
    mime = mime if isinstance(mime, str) else None
    match resource:
        case {"text": str(text)}:
            return ResourcePart(uri, text, mime)
        case {"blob": str(content)} if mime is not None and mime.startswith("image/"):
            return _image(mime, content, takes_images)
        case _:
            return TextPart(f"[The prompt held {uri} ({mime or 'of unknown type'}), which is no text; left out.]")


def title_of(text: str) -> str:
    """Return a session's title from its first prompt: the first line, cut at a word."""
    line = " ".join(next((each for each in text.splitlines() if each.strip()), "").split())
    if len(line) <= TITLE_LENGTH:
        return line
    return line[: TITLE_LENGTH - 1].rsplit(" ", 1)[0] + "…"
