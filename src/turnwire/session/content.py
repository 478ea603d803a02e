"""Validation of a prompt's content: complete content blocks, of the types that the agent accepts.

It reads a prompt's content and an agent's capabilities, and rejects content that must not be sent to the agent. A
block of a type that ACP knows must have the members that ACP requires; the agent validates the rest. No block is
changed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Raw, Struct

from turnwire.errors import ContentRefused, RemoteProtocolError
from turnwire.wire.jsonrpc import UNREADABLE, raw
from turnwire.wire.schema.common import EmbeddedResource, content_block

ALWAYS = ("resource_link", "text")
"""Content types that every agent accepts."""

CONTEXT_URI = "turnwire:///conversation.md"
"""URI of a conversation that is sent with a prompt."""

_NEEDS = {
    "audio": "strings `data` and `mimeType`",
    "image": "strings `data` and `mimeType`",
    "resource": "`resource` with a string `uri`, and a string `text` or `blob`",
    "resource_link": "strings `uri` and `name`",
    "text": "a string `text`",
}
"""The members that ACP requires of a block, by its type."""


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


_read_items = msgspec.json.Decoder(list[Raw]).decode
_read_block = msgspec.json.Decoder(_Block).decode


def content_types(capabilities: Raw, protocol_version: int) -> tuple[str, ...]:
    """Return the content types that an agent accepts by its `initialize` result; unreadable capabilities offer
    none.
    """
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


def with_context(content: Raw, context: str, accepts: Collection[str]) -> Raw:
    """Prepend the earlier conversation with another agent: as a resource if the agent accepts resources, else as
    text.
    """
    if "resource" in accepts:
        resource = {"uri": CONTEXT_URI, "mimeType": "text/markdown", "text": context}
        block: dict[str, object] = {"type": "resource", "resource": resource}
    else:
        block = {"type": "text", "text": context}
    return raw([block, *_read_items(content)])


def check_content(content: Raw, accepts: Collection[str] | None) -> None:
    """Reject content that is not a prompt or, once the agent is known, not accepted by it. Raises
    `ContentRefused`.
    """
    try:
        blocks = _read_items(content)
    except UNREADABLE:
        raise ContentRefused("a prompt is a list of content blocks, each with a `type`") from None
    if not blocks:
        raise ContentRefused("the prompt is empty; give at least one content block")
    types = {_checked_type(each, number) for number, each in enumerate(blocks, 1)}
    if accepts is not None and not types.issubset(accepts):
        unwanted = ", ".join(sorted(types.difference(accepts)))
        raise ContentRefused(
            f"the agent does not take {unwanted} in prompts; it takes {', '.join(accepts)}", types=unwanted
        )


def _checked_type(block: Raw, number: int) -> str:
    """Return the type of a complete block. A block of an unknown type only needs its type."""
    try:
        kind = _read_block(block).type
    except UNREADABLE:
        raise ContentRefused(f"content block {number} cannot be read; give an object with a `type`") from None
    if kind in _NEEDS and not _is_whole(block):
        raise ContentRefused(
            f"content block {number} is malformed; one of type {kind} has {_NEEDS[kind]}", block=number
        )
    return kind


def _is_whole(block: Raw) -> bool:
    try:
        found = content_block(block)
    except (RemoteProtocolError, UnicodeDecodeError):
        return False
    return not isinstance(found, EmbeddedResource) or not (found.resource.text is found.resource.blob is None)
