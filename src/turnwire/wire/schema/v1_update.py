"""ACP v1: typed views of `session/update` and of what updates share with requests.

Takes and gives typed views of JSON, never holds a rule. In updates of v1 an absent field and a null one mean
the same, so both read as `None`.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Raw, UnsetType, field

from turnwire.wire.schema.common import (
    CompactionSummaryChunk,
    CompactionUpdate,
    ConfigValue,
    ContentItem,
    Notice,
    PlanEntry,
    PlanRemoved,
    PlanUpdate,
    SessionDetailsUpdate,
    SessionMessage,
    SessionMessageChunk,
    TerminalItem,
    ToolCallLocation,
    TurnComplete,
    UsageUpdate,
)
from turnwire.wire.schema.content import ContentBlock
from turnwire.wire.schema.reading import Loose, Open, Wire


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
    """What is new about a tool call."""

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
    | SessionMessage
    | SessionMessageChunk
    | TurnComplete
]
