"""The content blocks of a prompt as a model takes them.

Takes ACP content blocks; gives one user message. What the model cannot take becomes a line that says so, so that
nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwire.builtin.model import ImagePart, ResourcePart, TextPart, UserMessage, UserPart

TITLE_LENGTH = 60


def user_message(blocks: Sequence[dict[str, Any]], *, takes_images: bool) -> UserMessage:
    """The prompt for the model. A picture for a model without eyes is told in words."""
    return UserMessage(tuple(_part(each, takes_images) for each in blocks))


def title_of(text: str) -> str:
    """A session's title from its first prompt: the first line, cut at a word."""
    line = " ".join(next((each for each in text.splitlines() if each.strip()), "").split())
    if len(line) <= TITLE_LENGTH:
        return line
    return line[: TITLE_LENGTH - 1].rsplit(" ", 1)[0] + "…"


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
