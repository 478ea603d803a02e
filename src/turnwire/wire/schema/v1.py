"""Typed views of ACP v1 where it differs from v2: updates, requests and their answers.

In updates of v1 an absent field and a null one mean the same, so both read as `None`.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Raw, UnsetType, field

from turnwire.wire.schema.common import (
    CompactionSummaryChunk,
    CompactionUpdate,
    ConfigValue,
    ContentBlock,
    ContentItem,
    NamedValue,
    Notice,
    PlanEntry,
    PlanRemoved,
    PlanUpdate,
    SessionDetailsUpdate,
    SessionMessage,
    SessionMessageChunk,
    TerminalExit,
    TerminalItem,
    ToolCallLocation,
    TurnCompleteUpdate,
    UsageUpdate,
)
from turnwire.wire.schema.reading import Loose, Open, Strict, Wire
from turnwire.wire.schema.v2 import SubagentUpdate

# -- updates, and what they share with requests ----------------------------------------------------------------


class SelectEntry(Wire):
    """One value, or with `group` and `options` a group of values."""

    name: str
    value: str | UnsetType = UNSET
    description: str | None = None
    group: str | UnsetType = UNSET
    options: list[ConfigValue] | UnsetType = UNSET


class SelectOption(Wire, tag_field="type", tag="select"):
    id: str
    name: str
    current_value: str
    options: list[SelectEntry]
    description: str | None = None
    category: str | None = None


class BooleanOption(Wire, tag_field="type", tag="boolean"):
    id: str
    name: str
    current_value: bool
    description: str | None = None
    category: str | None = None


ConfigOption: TypeAlias = Open[SelectOption | BooleanOption]


class DiffItem(Wire, tag_field="type", tag="diff"):
    path: str
    new_text: str
    old_text: str | None = None


ToolCallContent: TypeAlias = Open[ContentItem | DiffItem | TerminalItem]


class ToolCallPatch(Wire):
    """Changes to a tool call."""

    tool_call_id: str
    title: str | None = None
    name: str | None = None
    kind: str | None = None
    status: str | None = None
    content: list[ToolCallContent] | None = None
    locations: list[ToolCallLocation] | None = None
    raw_input: Raw | UnsetType = UNSET
    raw_output: Raw | UnsetType = UNSET


class UserMessageChunk(Wire, tag_field="sessionUpdate", tag="user_message_chunk"):
    content: ContentBlock
    message_id: str | None = None


class AgentMessageChunk(Wire, tag_field="sessionUpdate", tag="agent_message_chunk"):
    content: ContentBlock
    message_id: str | None = None


class AgentThoughtChunk(Wire, tag_field="sessionUpdate", tag="agent_thought_chunk"):
    content: ContentBlock
    message_id: str | None = None


class ToolCall(Wire, tag_field="sessionUpdate", tag="tool_call"):
    tool_call_id: str
    title: str
    name: str | None = None
    kind: str = "other"
    status: str = "pending"
    content: list[ToolCallContent] = field(default_factory=list[ToolCallContent])
    locations: list[ToolCallLocation] = field(default_factory=list[ToolCallLocation])
    raw_input: Raw | UnsetType = UNSET
    raw_output: Raw | UnsetType = UNSET


class ToolCallUpdate(ToolCallPatch, tag_field="sessionUpdate", tag="tool_call_update"):
    pass


class Plan(Wire, tag_field="sessionUpdate", tag="plan"):
    entries: Loose[list[PlanEntry]]


class CommandInput(Wire):
    hint: str


class Command(Wire):
    name: str
    description: str
    input: CommandInput | None = None


class AvailableCommandsUpdate(Wire, tag_field="sessionUpdate", tag="available_commands_update"):
    available_commands: Loose[list[Command]]


class CurrentModeUpdate(Wire, tag_field="sessionUpdate", tag="current_mode_update"):
    current_mode_id: str


class ConfigOptionUpdate(Wire, tag_field="sessionUpdate", tag="config_option_update"):
    config_options: Loose[list[ConfigOption]]


Update: TypeAlias = Open[
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCall
    | ToolCallUpdate
    | Plan
    | PlanUpdate
    | PlanRemoved
    | AvailableCommandsUpdate
    | CurrentModeUpdate
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


class McpServer(Wire):
    """A stdio server has no `type` on the wire; `http`, `sse` and `acp` have theirs."""

    name: str
    type: str = "stdio"
    command: str | UnsetType = UNSET
    args: Strict[list[str] | UnsetType] = UNSET
    env: Strict[list[NamedValue] | UnsetType] = UNSET
    url: str | UnsetType = UNSET
    headers: Strict[list[NamedValue] | UnsetType] = UNSET
    server_id: str | UnsetType = UNSET


class NewSessionRequest(Wire):
    cwd: str
    mcp_servers: Strict[list[McpServer]]
    additional_directories: Strict[list[str]] = field(default_factory=list[str])


class LoadSessionRequest(Wire):
    session_id: str
    cwd: str
    mcp_servers: Strict[list[McpServer]]
    additional_directories: Strict[list[str]] = field(default_factory=list[str])


class ResumeSessionRequest(Wire):
    """Also the params of `session/fork`."""

    session_id: str
    cwd: str
    mcp_servers: Strict[list[McpServer]] = field(default_factory=list[McpServer])
    additional_directories: Strict[list[str]] = field(default_factory=list[str])


class ReadTextFileRequest(Wire):
    session_id: str
    path: str
    line: Strict[int | None] = None
    limit: Strict[int | None] = None


class ReadTextFileResponse(Wire):
    content: str


class WriteTextFileRequest(Wire):
    session_id: str
    path: str
    content: str


class CreateTerminalRequest(Wire):
    session_id: str
    command: str
    args: Strict[list[str]] = field(default_factory=list[str])
    env: Strict[list[NamedValue]] = field(default_factory=list[NamedValue])
    cwd: Strict[str | None] = None
    output_byte_limit: Strict[int | None] = None


class CreateTerminalResponse(Wire):
    terminal_id: str


class TerminalRequest(Wire):
    """Params of `terminal/output`, `wait_for_exit`, `kill` and `release`."""

    session_id: str
    terminal_id: str


class TerminalOutputResponse(Wire):
    output: str
    truncated: bool
    exit_status: TerminalExit | None = None
