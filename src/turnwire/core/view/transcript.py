"""The items of a session and the agent's ids for them.

Takes new items and ids; gives the item that an id means now. Never removes or reorders an item, so that an
index into the list stays valid.

An agent's ids are unique within a life of its session. A new life begins when an agent starts, unless it
speaks v2 and comes back with the session it had: v1 does not promise the same ids after a load. Ids of an
earlier life are not found any more, so that an agent that counts from one again does not write into old items.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from turnwire.core.events import AgentStarted, SessionUpdated
from turnwire.core.view.items import AnyItem, Compaction, Item, Message, MessageRole, ToolCall, Unknown
from turnwire.core.view.text import GrowingText
from turnwire.ids import AgentSessionId, PromptId


class Speaker(Struct, omit_defaults=True, rename="camel"):
    """The agent whose updates are folded now."""

    agent_session_id: AgentSessionId | None = None
    protocol_version: int = 1
    life: int = 0


class Current(NamedTuple):
    """The message that the last text chunk went to, and what the next one must match to follow it."""

    role: MessageRole
    message_id: str | None
    prompt_id: PromptId | None
    after: PromptId | None
    buffer: bytearray


class Transcript:
    """Items in order, found by the agent's ids."""

    __slots__ = ("compactions", "current", "messages", "speaker", "stored", "text", "tools")

    def __init__(self, speaker: Speaker | None = None, items: list[AnyItem] | None = None) -> None:
        self.speaker = speaker or Speaker()
        self.stored: list[AnyItem] = items or []
        """The items; the text of the newest may still be growing."""
        self.text = GrowingText()
        self.current: Current | None = None
        self.messages: dict[tuple[MessageRole, str], Message] = {}
        self.tools: dict[str, ToolCall] = {}
        self.compactions: dict[str, Compaction] = {}
        for item in self.stored:
            self._index(item)

    @property
    def items(self) -> list[AnyItem]:
        """The items with all of their text."""
        self.settle()
        return self.stored

    @property
    def null_clears(self) -> bool:
        """Whether `null` in a patch clears a field, as in v2, or leaves it, as in v1."""
        return self.speaker.protocol_version >= 2

    def settle(self) -> None:
        """Put all growing text into its blocks."""
        self.current = None
        self.text.close_all()

    def add(self, item: AnyItem) -> int:
        """Append an item; gives its index."""
        item.life = self.speaker.life
        # A chunk without an id follows only the last item.
        self.current = None
        self.stored.append(item)
        self._index(item)
        return len(self.stored) - 1

    def keep_unknown(self, event: SessionUpdated) -> None:
        """Keep an update that cannot be understood."""
        self.add(
            Unknown(
                at=event.at,
                prompt_id=event.prompt_id,
                after=event.after,
                kind=event.kind,
                update=event.update.copy(),
            )
        )

    def bind(self, prompt: Message, agent_message_id: str) -> None:
        """Learn the agent's id for a prompt, unless the id means something else already."""
        if (MessageRole.USER, agent_message_id) in self.messages or prompt.agent_message_id is not None:
            return
        prompt.agent_message_id = agent_message_id
        prompt.life = self.speaker.life
        self._index(prompt)

    def start(self, event: AgentStarted) -> None:
        """Another agent speaks from here on."""
        self.settle()
        speaker = self.speaker
        # One that lost the session may call the new one by the old id.
        came_back = event.agent_session_id == speaker.agent_session_id and event.how != "lost"
        same = event.protocol_version >= 2 and came_back
        self.speaker = Speaker(
            event.agent_session_id, event.protocol_version, speaker.life if same else speaker.life + 1
        )
        if not same:
            self.messages.clear()
            self.tools.clear()
            self.compactions.clear()

    def _index(self, item: AnyItem) -> None:
        if item.life != self.speaker.life:
            return
        if isinstance(item, Message):
            agents_id = item.agent_message_id if item.is_prompt else item.message_id
            if agents_id is not None:
                self.messages[item.role, agents_id] = item
        elif isinstance(item, ToolCall):
            self.tools[item.tool_call_id] = item
        elif isinstance(item, Compaction):
            self.compactions[item.compaction_id] = item


def ended_turn(item: Item, event: SessionUpdated) -> PromptId | None:
    """The ended turn that a change of `item` follows; none if the change is in time or background work."""
    if event.after is not None:
        return event.after
    if event.prompt_id is None or event.prompt_id == item.prompt_id:
        return None
    return item.prompt_id
