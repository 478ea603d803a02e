"""What v1 and v2 of ACP have in common, as typed views of JSON; content blocks first.

Values that ACP may extend (kinds, statuses, reasons) are plain strings, so that a new one is no error. Base64 is
not decoded and no link is opened. What a message means is decided in `core`.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

from msgspec import UNSET, Raw, UnsetType, field

from turnwire.ids import RequestId
from turnwire.wire.schema.reading import Loose, Open, Strict, Wire, read

Marker: TypeAlias = dict[str, Raw] | None
"""A capability that is advertised by being there: `{}` is yes, absent or null is no."""

Draft: TypeAlias = bool | dict[str, Raw] | None
"""A capability whose shape is not settled: `true` is yes as well."""

STOP_REASONS: Final = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})
"""Why a turn ended: the five words of v1. In v2 an agent may have words of its own."""


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


# -- requests, answers and updates -----------------------------------------------------------------------------


class Empty(Wire):
    """A result or params that say nothing."""


class Implementation(Wire):
    name: str
    version: str
    title: str | None = None


class NamedValue(Wire):
    """An environment variable or an HTTP header."""

    name: str
    value: str


class SessionRequest(Wire):
    """Params that name a session and nothing else: close, delete, cancel, status, ready."""

    session_id: str


class CancelRequest(Wire):
    """Params of `$/cancel_request`."""

    request_id: RequestId


class ListSessionsRequest(Wire):
    cwd: Strict[str | None] = None
    cursor: Strict[str | None] = None
    archived: Strict[str | None] = None


class SessionSummary(Wire):
    """A session as `session/list` shows it."""

    session_id: str
    cwd: str
    additional_directories: list[str] = field(default_factory=list[str])
    title: str | None = None
    updated_at: str | None = None
    archived: bool | None = None


class ListSessionsResponse(Wire):
    sessions: Loose[list[SessionSummary]]
    next_cursor: str | None = None


class SetConfigOptionRequest(Wire):
    """`type` is absent for a value id in v1; v2 always has it."""

    session_id: str
    config_id: str
    value: str | bool
    type: str | UnsetType = UNSET


class PromptRequest(Wire):
    session_id: str
    prompt: Strict[list[ContentBlock]]


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


class PermissionOption(Wire):
    option_id: str
    name: str
    kind: str


class SelectedOutcome(Wire, tag_field="outcome", tag="selected"):
    option_id: str


class CancelledOutcome(Wire, tag_field="outcome", tag="cancelled"):
    pass


PermissionOutcome: TypeAlias = Open[SelectedOutcome | CancelledOutcome]


class RequestPermissionResponse(Wire):
    outcome: PermissionOutcome


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


class ElicitationRequest(Wire):
    """Params of `elicitation/create`: about a session or about a request, as a form or as a link."""

    message: str
    mode: str
    session_id: str | None = None
    tool_call_id: str | None = None
    request_id: RequestId | None = None
    requested_schema: Raw | UnsetType = UNSET
    elicitation_id: str | None = None
    url: str | None = None


class ElicitationResponse(Wire):
    """`action` is accept, decline or cancel; anything else is none of them."""

    action: str
    content: Raw | UnsetType = UNSET


class ElicitationComplete(Wire):
    elicitation_id: str


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
    """Absent is unchanged, null clears."""

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
    """The end of a prompt as an update. A turn that failed has no stop reason, and is answered with an error."""

    prompt_request_id: RequestId
    stop_reason: str | None = None
    usage: Raw | UnsetType = UNSET
    """As in the answer, from those who tell it here as well."""
