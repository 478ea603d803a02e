"""Typed views shared by ACP v1 and v2; content blocks first.

Values that ACP may extend (kinds, statuses, reasons) are plain strings, so that a new one is no error. Base64 is
not decoded and no link is opened. What a message means is decided in `core`.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

from msgspec import UNSET, Raw, UnsetType

from turnwire.ids import RequestId
from turnwire.wire.schema.reading import Open, Wire, read

Marker: TypeAlias = dict[str, Raw] | None
"""A capability advertised by its presence: `{}` is yes, absent or null is no."""


STOP_REASONS: Final = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})
"""Stop reasons of v1. In v2 an agent may add its own."""


# -- content blocks --------------------------------------------------------------------------------------------


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
    """Contains either `text` or base64 `blob`."""

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class EmbeddedResource(Wire, tag_field="type", tag="resource"):
    resource: ResourceContents
    annotations: Annotations | None = None


ContentBlock: TypeAlias = Open[TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource]


def content_block(raw: Raw) -> ContentBlock:
    """Read one block. Raises `RemoteProtocolError` if it is malformed."""
    return read(raw, cast("Any", ContentBlock), name="content block")


# -- requests, answers and updates -----------------------------------------------------------------------------


class NamedValue(Wire):
    """An environment variable or an HTTP header."""

    name: str
    value: str


class Usage(Wire):
    total_tokens: int
    input_tokens: int
    output_tokens: int
    thought_tokens: int | None = None
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None


class Cost(Wire):
    amount: float
    currency: str


class ToolCallLocation(Wire):
    path: str
    line: int | None = None


class ContentItem(Wire, tag_field="type", tag="content"):
    """A content block in a tool call."""

    content: ContentBlock


class TerminalItem(Wire, tag_field="type", tag="terminal"):
    """A terminal in a tool call."""

    terminal_id: str


class TerminalExit(Wire):
    exit_code: int | None = None
    signal: str | None = None


class ConfigValue(Wire):
    value: str
    name: str
    description: str | None = None


class PlanEntry(Wire):
    content: str
    priority: str
    status: str


class PlanItems(Wire, tag_field="type", tag="items"):
    plan_id: str
    entries: list[PlanEntry]


class PlanMarkdown(Wire, tag_field="type", tag="markdown"):
    plan_id: str
    content: str


class PlanFile(Wire, tag_field="type", tag="file"):
    plan_id: str
    uri: str


PlanContent: TypeAlias = Open[PlanItems | PlanMarkdown | PlanFile]


class PlanUpdate(Wire, tag_field="sessionUpdate", tag="plan_update"):
    plan: PlanContent


class PlanRemoved(Wire, tag_field="sessionUpdate", tag="plan_removed"):
    plan_id: str


class SessionDetailsUpdate(Wire, tag_field="sessionUpdate", tag="session_info_update"):
    """An absent member leaves the value unchanged; null clears it."""

    title: str | UnsetType | None = UNSET
    updated_at: str | UnsetType | None = UNSET


class UsageUpdate(Wire, tag_field="sessionUpdate", tag="usage_update"):
    used: int
    size: int
    cost: Cost | UnsetType | None = UNSET


class Notice(Wire, tag_field="sessionUpdate", tag="notice"):
    severity: str
    title: str
    description: str | None = None


class CompactionUpdate(Wire, tag_field="sessionUpdate", tag="compaction_update"):
    compaction_id: str
    status: str
    summary: list[ContentBlock] | UnsetType | None = UNSET
    error: str | UnsetType | None = UNSET


class CompactionSummaryChunk(Wire, tag_field="sessionUpdate", tag="compaction_summary_chunk"):
    compaction_id: str
    content: ContentBlock


class SessionMessage(Wire, tag_field="sessionUpdate", tag="session_message"):
    """A message between sessions."""

    message_id: str
    sender_session_id: str | None = None
    recipient_session_id: str | None = None
    sender_message_id: str | None = None
    recipient_message_id: str | None = None
    content: list[ContentBlock] | UnsetType | None = UNSET


class SessionMessageChunk(Wire, tag_field="sessionUpdate", tag="session_message_chunk"):
    message_id: str
    content: ContentBlock


class TurnCompleteUpdate(Wire, tag_field="sessionUpdate", tag="turn_complete"):
    """The end of a prompt as an update. A failed turn has no stop reason; its prompt is answered with an error."""

    prompt_request_id: RequestId
    stop_reason: str | None = None
    usage: Raw | UnsetType = UNSET
    """As in the prompt's answer, if the agent repeats it here."""
