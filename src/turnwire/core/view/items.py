"""What a transcript is made of, one struct per kind of item, in the order in which they first appeared.

Takes nothing but values; gives mutable structs that the folds beside this module fill. Never drops what it
does not understand: an update that has no place here is an `Unknown`. Fields are camelCase once encoded; a raw
value that is not there is `UNSET`.

Whose an item is: `prompt_id` names the turn it was said in, and `after` the ended turn it came after. Both are
empty for what an agent does in the background. An item of a turn that changed after the end of that turn has
both.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.ids import ClientId, PromptId


class MessageRole(StrEnum):
    """Whose words a message has."""

    USER = "user"
    AGENT = "agent"
    THOUGHT = "thought"


class Item(Struct, kw_only=True, omit_defaults=True, rename="camel", tag_field="item", gc=False):
    """An entry of the transcript."""

    at: int
    """When it first appeared, wall time in milliseconds."""
    prompt_id: PromptId | None = None
    after: PromptId | None = None
    life: int = 0
    """Which life of the agent's session named it: ids of the agent mean the same only within one."""

    @property
    def late(self) -> bool:
        """Whether all of it, or a change of it, came after the end of its turn."""
        return self.after is not None


class Message(Item, tag="message"):
    role: MessageRole
    message_id: str | None = None
    content: list[Raw] = []
    meta: dict[str, Raw] = {}
    is_prompt: bool = False
    """It is what a client prompted; `message_id` is ours and nothing that the agent says changes it."""
    agent_message_id: str | None = None
    """The agent's id for its own copy of a prompt."""
    author: str | None = None
    client_id: ClientId | None = None
    in_time: list[Raw] | None = None
    """The content at the end of its turn, if it changed afterwards."""


class ToolCall(Item, tag="tool_call"):
    tool_call_id: str
    name: str | None = None
    title: str | None = None
    kind: str = "other"
    status: str = "pending"
    content: list[Raw] = []
    locations: list[Raw] = []
    raw_input: Raw | UnsetType = UNSET
    raw_output: Raw | UnsetType = UNSET
    capabilities: Raw | UnsetType = UNSET
    meta: dict[str, Raw] = {}
    cancelled_locally: bool = False
    """It was unfinished when its turn was asked to cancel. The status is still the agent's word."""
    open_at_end: bool = False
    """It was unfinished when its turn ended, and not reported as background work."""


class Compaction(Item, tag="compaction"):
    """The agent shortened its own memory of the conversation."""

    compaction_id: str
    status: str = "in_progress"
    summary: list[Raw] = []
    error: str | None = None
    meta: dict[str, Raw] = {}


class Unknown(Item, tag="unknown"):
    """An update of a kind that is not known here, or that lacks what its kind needs."""

    kind: str
    update: Raw


AnyItem: TypeAlias = Message | ToolCall | Compaction | Unknown
