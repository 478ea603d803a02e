"""What a prompt may hold: content blocks, of the types that the agent takes.

Takes a prompt's content and an agent's capabilities; refuses what the agent must not be sent. Changes no block.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Raw, Struct

from turnwire.errors import ContentRefused

ALWAYS = ("resource_link", "text")
"""Every agent takes these."""


class _Block(Struct):
    type: str


class _Gates(Struct, rename="camel"):
    image: Any = None
    audio: Any = None
    embedded_context: Any = None


class _V1(Struct, rename="camel"):
    prompt_capabilities: _Gates | None = None


class _Session(Struct):
    prompt: _Gates | None = None


class _V2(Struct):
    session: _Session | None = None


_read_blocks = msgspec.json.Decoder(list[_Block]).decode


def content_types(capabilities: Raw, protocol_version: int) -> tuple[str, ...]:
    """The types of content that an agent takes, by what it offered in `initialize`. Unreadable offers nothing."""
    try:
        gates = _gates(capabilities, protocol_version)
    except msgspec.DecodeError:
        gates = None
    if gates is None:
        return ALWAYS
    gated = {"image": gates.image, "audio": gates.audio, "resource": gates.embedded_context}
    offered = (kind for kind, gate in gated.items() if gate is True or isinstance(gate, dict))
    return tuple(sorted((*ALWAYS, *offered)))


def _gates(capabilities: Raw, protocol_version: int) -> _Gates | None:
    if protocol_version == 1:
        return msgspec.json.decode(capabilities, type=_V1).prompt_capabilities
    session = msgspec.json.decode(capabilities, type=_V2).session
    return session.prompt if session is not None else None


def check_content(content: Raw, accepts: Collection[str] | None) -> None:
    """Refuse what is no prompt and, once the agent is known, what it does not take. Raises `ContentRefused`."""
    try:
        types = {block.type for block in _read_blocks(content)}
    except msgspec.DecodeError:
        raise ContentRefused("a prompt is a list of content blocks, each with a `type`") from None
    if not types:
        raise ContentRefused("the prompt is empty; give at least one content block")
    if accepts is not None and not types.issubset(accepts):
        unwanted = ", ".join(sorted(types.difference(accepts)))
        raise ContentRefused(
            f"the agent does not take {unwanted} in prompts; it takes {', '.join(accepts)}", types=unwanted
        )
