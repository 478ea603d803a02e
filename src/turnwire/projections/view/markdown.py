"""A conversation as markdown, for a reader without turnwire: a person, or another agent.

It has the messages and the used tools, in order, without thoughts and tool output. A text that is too long loses
its oldest part, and notes that.
"""

from __future__ import annotations

from turnwire.projections.view.transcript import AnyItem, Message, MessageRole, ToolCall, join_text
from turnwire.projections.view.view import View

_HEADINGS = {MessageRole.USER: "User", MessageRole.AGENT: "Agent"}
_CUT = "*(The older part of this conversation is left out.)*"


def markdown(view: View, most: int) -> str:
    """Return the conversation in at most `most` characters; the oldest part is cut."""
    kept: list[str] = []
    left = most
    for part in reversed(_parts(view)):
        if len(part) + 2 > left:
            # The end of the part at the cut is retained, because the next message answers it.
            room = left - len(_CUT) - 4
            kept += [part[-room:], _CUT] if room > 0 else [_CUT]
            break
        left -= len(part) + 2
        kept.append(part)
    return "\n\n".join(reversed(kept))


def _parts(view: View) -> list[str]:
    parts: list[str] = []
    speaker: str | None = None
    for item in view.items:
        whose, words = _told(item)
        if not words:
            continue
        if whose != speaker:
            parts.append(f"## {whose}\n\n{words}")
        else:
            parts.append(words)
        speaker = whose
    return parts


def _told(item: AnyItem) -> tuple[str, str]:
    """Return the speaker of an item and its text; empty if it is not part of the conversation."""
    if isinstance(item, ToolCall):
        words = item.title or item.name or item.kind
        return _HEADINGS[MessageRole.AGENT], f"- *tool*: {words} ({item.status})"
    if isinstance(item, Message) and item.role in _HEADINGS:
        return _HEADINGS[item.role], join_text(item.content).strip() or _unwritten(item)
    return "", ""


def _unwritten(message: Message) -> str:
    """Return a placeholder for a message without text, such as a single picture."""
    return "*(something that is no text)*" if message.content else ""
