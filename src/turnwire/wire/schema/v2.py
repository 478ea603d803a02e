"""Typed views of ACP v2 where it differs from v1: updates, requests and their answers.

In updates of v2 an absent field is unchanged and a null one is cleared, so the two are kept apart: absent is
`UNSET`, null is `None`.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Raw, UnsetType, field

from turnwire.wire.jsonrpc import ErrorObject
from turnwire.wire.schema.common import (
    CompactionSummaryChunk,
    CompactionUpdate,
    ConfigValue,
    ContentBlock,
    ContentItem,
    Marker,
    NamedValue,
    Notice,
    PlanRemoved,
    PlanUpdate,
    SessionDetailsUpdate,
    SessionMessage,
    SessionMessageChunk,
    TerminalExit,
    TerminalItem,
    ToolCallLocation,
    TurnCompleteUpdate,
    Usage,
    UsageUpdate,
)
from turnwire.wire.schema.reading import Open, Strict, Whole, Wire

# -- updates, and what they share with requests ----------------------------------------------------------------


class SelectEntry(Wire):
    """One value, or with `group_id` and `options` a group of values."""

    name: str
    value: str | UnsetType = UNSET
    description: str | None = None
    group_id: str | UnsetType = UNSET
    options: list[ConfigValue] | UnsetType = UNSET


class SelectOption(Wire, tag_field="type", tag="select"):
    config_id: str
    name: str
    current_value: str
    options: list[SelectEntry]
    description: str | None = None
    category: str | None = None


class BooleanOption(Wire, tag_field="type", tag="boolean"):
    config_id: str
    name: str
    current_value: bool
    description: str | None = None
    category: str | None = None


ConfigOption: TypeAlias = Open[SelectOption | BooleanOption]


class TextCommandInput(Wire, tag_field="type", tag="text"):
    hint: str


class Command(Wire, tag_field="type", tag="command"):
    name: str
    description: str
    input: Open[TextCommandInput] | None = None


AvailableCommand: TypeAlias = Open[Command]


class CancelCapability(Wire):
    """Capability to cancel one item."""

    cancel: Marker = None


class DiffChange(Wire):
    operation: str
    path: str | None = None
    old_path: str | None = None
    file_type: str | None = None
    mime_type: str | None = None


class DiffPatch(Wire):
    format: str
    text: str


class DiffItem(Wire, tag_field="type", tag="diff"):
    changes: list[DiffChange]
    patch: DiffPatch | None = None


ToolCallContent: TypeAlias = Open[ContentItem | DiffItem | TerminalItem]


class ToolCallPatch(Wire):
    """Changes to a tool call."""

    tool_call_id: str
    title: str | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    kind: str | UnsetType | None = UNSET
    status: str | UnsetType | None = UNSET
    content: list[ToolCallContent] | UnsetType | None = UNSET
    locations: list[ToolCallLocation] | UnsetType | None = UNSET
    raw_input: Raw | UnsetType = UNSET
    raw_output: Raw | UnsetType = UNSET
    capabilities: CancelCapability | UnsetType | None = UNSET


class BackgroundTerminal(Wire, tag_field="type", tag="terminal"):
    terminal_id: str


class BackgroundToolCall(Wire, tag_field="type", tag="tool_call"):
    tool_call_id: str


class BackgroundSubagent(Wire, tag_field="type", tag="subagent"):
    session_id: str


BackgroundWork: TypeAlias = Open[BackgroundTerminal | BackgroundToolCall | BackgroundSubagent]


class State(Wire):
    """The state of the session's foreground. `background` is `None` if the agent does not report it."""

    state: str
    background: Whole[list[BackgroundWork] | None] = None
    stop_reason: str | None = None
    error: ErrorObject | None = None
    usage: Usage | None = None


class StateUpdate(State, tag_field="sessionUpdate", tag="state_update"):
    pass


class UserMessageChunk(Wire, tag_field="sessionUpdate", tag="user_message_chunk"):
    message_id: str
    content: ContentBlock


class AgentMessageChunk(Wire, tag_field="sessionUpdate", tag="agent_message_chunk"):
    message_id: str
    content: ContentBlock


class AgentThoughtChunk(Wire, tag_field="sessionUpdate", tag="agent_thought_chunk"):
    message_id: str
    content: ContentBlock


class UserMessage(Wire, tag_field="sessionUpdate", tag="user_message"):
    message_id: str
    content: list[ContentBlock] | UnsetType | None = UNSET


class AgentMessage(Wire, tag_field="sessionUpdate", tag="agent_message"):
    message_id: str
    content: list[ContentBlock] | UnsetType | None = UNSET


class AgentThought(Wire, tag_field="sessionUpdate", tag="agent_thought"):
    message_id: str
    content: list[ContentBlock] | UnsetType | None = UNSET


class ToolCallUpdate(ToolCallPatch, tag_field="sessionUpdate", tag="tool_call_update"):
    pass


class ToolCallContentChunk(Wire, tag_field="sessionUpdate", tag="tool_call_content_chunk"):
    tool_call_id: str
    content: ToolCallContent


class TerminalOutput(Wire):
    data: str


class TerminalSize(Wire):
    cols: int
    rows: int


class TerminalUpdate(Wire, tag_field="sessionUpdate", tag="terminal_update"):
    terminal_id: str
    command: str | UnsetType | None = UNSET
    cwd: str | UnsetType | None = UNSET
    output: TerminalOutput | UnsetType | None = UNSET
    exit_status: TerminalExit | UnsetType | None = UNSET
    size: TerminalSize | UnsetType | None = UNSET
    capabilities: CancelCapability | UnsetType | None = UNSET


class TerminalOutputChunk(Wire, tag_field="sessionUpdate", tag="terminal_output_chunk"):
    terminal_id: str
    data: str


class AvailableCommandsUpdate(Wire, tag_field="sessionUpdate", tag="available_commands_update"):
    available_commands: list[AvailableCommand]


class ConfigOptionUpdate(Wire, tag_field="sessionUpdate", tag="config_option_update"):
    config_options: list[ConfigOption]


class SubagentUpdate(Wire, tag_field="sessionUpdate", tag="subagent_update"):
    session_id: str
    title: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    capabilities: CancelCapability | UnsetType | None = UNSET
    state: State | UnsetType | None = UNSET
    cwd: Strict[str | UnsetType | None] = UNSET
    additional_directories: Strict[list[str] | UnsetType | None] = UNSET


Update: TypeAlias = Open[
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | UserMessage
    | AgentMessage
    | AgentThought
    | StateUpdate
    | ToolCallUpdate
    | ToolCallContentChunk
    | TerminalUpdate
    | TerminalOutputChunk
    | PlanUpdate
    | PlanRemoved
    | AvailableCommandsUpdate
    | ConfigOptionUpdate
    | SessionDetailsUpdate
    | UsageUpdate
    | Notice
    | CompactionUpdate
    | CompactionSummaryChunk
    | SubagentUpdate
    | SessionMessage
    | SessionMessageChunk
    | TurnCompleteUpdate
]


# -- requests and their answers --------------------------------------------------------------------------------


class StdioServer(Wire, tag_field="type", tag="stdio"):
    name: str
    command: str
    args: Strict[list[str]] = field(default_factory=list[str])
    env: Strict[list[NamedValue]] = field(default_factory=list[NamedValue])


class HttpServer(Wire, tag_field="type", tag="http"):
    name: str
    url: str
    headers: Strict[list[NamedValue]] = field(default_factory=list[NamedValue])


class AcpServer(Wire, tag_field="type", tag="acp"):
    name: str
    server_id: str


McpServer: TypeAlias = Open[StdioServer | HttpServer | AcpServer]


class ReplayFromStart(Wire, tag_field="type", tag="start"):
    pass


ReplayFrom: TypeAlias = Open[ReplayFromStart]


class NewSessionRequest(Wire):
    cwd: str
    mcp_servers: Strict[list[McpServer]] = field(default_factory=list[McpServer])
    additional_directories: Strict[list[str]] = field(default_factory=list[str])


class ResumeSessionRequest(Wire):
    """Also the params of `session/fork`, without `replay_from`."""

    session_id: str
    cwd: str
    mcp_servers: Strict[list[McpServer]] = field(default_factory=list[McpServer])
    additional_directories: Strict[list[str]] = field(default_factory=list[str])
    replay_from: Strict[ReplayFrom | None] = None
