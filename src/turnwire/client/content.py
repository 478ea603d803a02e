"""What a prompt may be given as, and how it becomes content blocks.

Takes a text, or a list of blocks as dicts or structs of `turnwire.wire.schema`; gives the list as raw JSON. Never
makes a message id: messages are named by those who keep them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Raw, Struct

from turnwire.client.given import to_json, to_list, to_text
from turnwire.errors import LocalProtocolError

Block: TypeAlias = Mapping[str, Any] | Struct
Content: TypeAlias = str | Sequence[Block]


def to_raw(content: Content) -> Raw:
    """The blocks of a prompt. Raises `LocalProtocolError` if there is none, or one is neither dict nor struct."""
    if isinstance(content, str):
        return to_json([{"type": "text", "text": to_text(content, "a prompt")}], "a prompt")
    blocks = to_list(content, "a prompt is a text or a list of content blocks")
    if not blocks:
        raise LocalProtocolError("a prompt needs at least one content block")
    for block in blocks:
        if not isinstance(block, Mapping | Struct):
            raise LocalProtocolError(
                "a content block is a dict or a struct of turnwire.wire.schema", given=type(block).__name__
            )
    return to_json(blocks, "a prompt")
