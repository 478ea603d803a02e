"""What v1 and v2 of ACP have in common, apart from content blocks.

Takes and gives typed views of JSON. Values that ACP may extend (kinds, statuses, reasons) are plain strings, so
that a new one is no error. Never holds a rule: what a message means is decided in `core`.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Raw, UnsetType, field

from turnwire.ids import RequestId
from turnwire.wire.schema.content import ContentBlock
from turnwire.wire.schema.reading import Loose, Open, Strict, Wire

Marker: TypeAlias = dict[str, Raw] | None
"""A capability that is advertised by being there: `{}` is yes, absent or null is no."""

Draft: TypeAlias = bool | dict[str, Raw] | None
"""A capability whose shape is not settled: `true` is yes as well."""


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


class TurnComplete(Wire, tag_field="sessionUpdate", tag="turn_complete"):
    """The end of a prompt as an update, by negotiation only."""

    prompt_request_id: RequestId
    stop_reason: str
