"""Content blocks: what people and agents say to each other, the same in v1 and v2.

Takes and gives typed views of JSON; a block of a type not listed here is kept as `Unknown`. Never decodes base64,
never opens a link.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from msgspec import Raw

from turnwire.wire.schema.reading import Open, Strict, Wire, read


class Annotations(Wire):
    audience: list[str] | None = None
    last_modified: str | None = None
    priority: float | None = None


class TextContent(Wire, tag_field="type", tag="text"):
    text: str
    annotations: Annotations | None = None


class ImageContent(Wire, tag_field="type", tag="image"):
    data: str
    mime_type: str
    uri: str | None = None
    annotations: Annotations | None = None


class AudioContent(Wire, tag_field="type", tag="audio"):
    data: str
    mime_type: str
    annotations: Annotations | None = None


class Icon(Wire):
    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: str | None = None


class ResourceLink(Wire, tag_field="type", tag="resource_link"):
    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None
    annotations: Annotations | None = None


class ResourceContents(Wire):
    """Either `text` or base64 `blob` is there."""

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class EmbeddedResource(Wire, tag_field="type", tag="resource"):
    resource: ResourceContents
    annotations: Annotations | None = None


ContentBlock: TypeAlias = Open[TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource]


_Blocks = Strict[list[ContentBlock]]


def content_block(raw: Raw) -> ContentBlock:
    """One block. Raises `RemoteProtocolError` if it is malformed."""
    return read(raw, cast("Any", ContentBlock), name="content block")


def content_blocks(raw: Raw) -> list[ContentBlock]:
    """A list of blocks, such as a prompt, where one malformed block fails the whole.

    Raises `RemoteProtocolError`.
    """
    return read(raw, cast("Any", _Blocks), name="list of content blocks")
