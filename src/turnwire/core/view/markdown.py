"""A conversation as markdown, for a reader without our software: a person, or another agent.

What was said and which tools were used, in order; thoughts and what tools gave back are left out. One that is too
long loses its oldest part, and says so.
"""

from __future__ import annotations

from turnwire.core.view.transcript import AnyItem, Message, MessageRole, ToolCall, join_text
from turnwire.core.view.view import View

_HEADINGS = {MessageRole.USER: "User", MessageRole.AGENT: "Agent"}
_CUT = "*(The older part of this conversation is left out.)*"


def markdown(view: View, most: int) -> str:
    """The conversation in at most so many characters, newest kept."""
    kept: list[str] = []
    left = most
    for part in reversed(_parts(view)):
        if len(part) + 2 > left:
            # Of what stands at the cut its end is kept: that is what the next words answer.
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
    """Whose it is, and what is shown of it; nothing of what is not part of the conversation."""
    if isinstance(item, ToolCall):
        words = item.title or item.name or item.kind
        return _HEADINGS[MessageRole.AGENT], f"- *tool*: {words} ({item.status})"
    if isinstance(item, Message) and item.role in _HEADINGS:
        return _HEADINGS[item.role], join_text(item.content).strip() or _unwritten(item)
    return "", ""


def _unwritten(message: Message) -> str:
    """A message without a word, such as a picture alone, is in the conversation all the same."""
    return "*(something that is no text)*" if message.content else ""
