"""The transcript: its items in the order of their first appearance, and the agent's ids for them.

There is one struct per kind of item; the folds in `messages` and `tools` fill them. Unknown updates are not
dropped: an update without a matching kind is an `Unknown`. An item is never removed or reordered, so that an index
into the list stays valid. Fields are camelCase once encoded; an absent raw value is `UNSET`.

`prompt_id` is the turn of an item, and `after` the ended turn it followed. Both are empty for background work of an
agent. An item of a turn that changed after the end of that turn has both.

An agent's ids are unique within an incarnation of its session. A new incarnation begins when an agent starts,
unless it speaks v2 and returns with its session: v1 does not promise the same ids after a load. Ids of an earlier
incarnation are not found any more, so that an agent that restarts its count at one does not write into old items.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from enum import StrEnum
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.ids import AgentSessionId, ChildId, ClientId, PromptId
from turnwire.projections.view.paged import Key, Paged, StoredPages
from turnwire.session.events import AgentStarted, SessionUpdated
from turnwire.wire.jsonrpc import UNREADABLE
from turnwire.wire.schema.update import FINAL_TOOL_STATUS


class MessageRole(StrEnum):
    """The author of a message."""

    USER = "user"
    AGENT = "agent"
    THOUGHT = "thought"


class Item(Struct, kw_only=True, omit_defaults=True, rename="camel", tag_field="item", gc=False):
    """An entry of the transcript."""

    at: int
    """The wall time of its first appearance in milliseconds."""
    prompt_id: PromptId | None = None
    after: PromptId | None = None
    life: int = 0
    """The incarnation of the agent's session that named it: the agent's ids are valid within one only."""
    first_event_id: int = 0
    """The event that created it; 0 if the view was stored by a version that did not record it."""
    last_event_id: int = 0
    """The newest event that changed it."""

    @property
    def late(self) -> bool:
        """True if it was created or changed after the end of its turn."""
        return self.after is not None


class Message(Item, tag="message"):
    role: MessageRole
    message_id: str | None = None
    content: list[Raw] = []
    meta: dict[str, Raw] = {}
    is_prompt: bool = False
    """True for a client's prompt; `message_id` is ours, and updates of the agent do not change it."""
    agent_message_id: str | None = None
    """The agent's id for its copy of a prompt."""
    author: str | None = None
    client_id: ClientId | None = None
    in_time: list[Raw] | None = None
    """The content at the end of its turn, if it changed afterwards."""

    @property
    def nested(self) -> str | None:
        """The tool call that contains it; `None` for the agent's main output."""
        return nested_under(self.meta)


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
    """True if it was unfinished when its turn was asked to cancel. The status is still the one that the agent
    reported.
    """
    open_at_end: bool = False
    """True if it was unfinished when its turn ended, and not reported as background work."""


NESTS = b"parentToolUseId"
"""The `_meta` member by which an agent without child sessions places an item inside a tool call."""
_read_nesting = msgspec.json.Decoder(dict[str, Raw]).decode
_read_parent = msgspec.json.Decoder(str).decode


def nested_under(meta: dict[str, Raw]) -> str | None:
    """Return the tool call in which `_meta` places an item."""
    for value in meta.values():
        if NESTS in bytes(value):
            try:
                return _read_parent(_read_nesting(value)[NESTS.decode()])
            except (*UNREADABLE, KeyError):
                continue
    return None


class Compaction(Item, tag="compaction"):
    """A compaction of the agent's memory of the conversation."""

    compaction_id: str
    status: str = "in_progress"
    summary: list[Raw] = []
    error: str | None = None
    meta: dict[str, Raw] = {}


class ChildSession(Item, tag="child"):
    """The announcement of a child session. The child's output is in its view."""

    child_id: ChildId


class Unknown(Item, tag="unknown"):
    """An update of an unknown kind, or one that lacks a member that its kind requires."""

    kind: str
    update: Raw


AnyItem: TypeAlias = Message | ToolCall | Compaction | ChildSession | Unknown


class Speaker(Struct, omit_defaults=True, rename="camel"):
    """The agent whose updates are folded now."""

    agent_session_id: AgentSessionId | None = None
    protocol_version: int = 1
    life: int = 0


_read_items = msgspec.json.Decoder(list[AnyItem]).decode
_Kind = TypeVar("_Kind", Message, ToolCall, Compaction)


def pages_of_items(name: str, known: StoredPages | None = None) -> Paged[AnyItem]:
    """Return the pages for the items of a session, or of the child with this name."""
    return Paged(f"view.items.{name}" if name else "view.items", _read_items, _keys_of, known)


def _keys_of(item: AnyItem) -> list[Key]:
    """Return the keys of a stored item: the agent's ids and, for an unnamed message, its turn."""
    life = item.life
    if isinstance(item, Message):
        named = item.agent_message_id if item.is_prompt else item.message_id
        if named is not None:
            return [("m", life, item.role, named)]
        return [] if item.is_prompt else [unnamed_key(life, item.prompt_id or item.after)]
    if isinstance(item, ToolCall):
        return [("t", life, item.tool_call_id)]
    return [("c", life, item.compaction_id)] if isinstance(item, Compaction) else []


def unnamed_key(life: int, turn: PromptId | None) -> Key:
    """Return the key of unnamed messages in a turn, or after it."""
    return ("n", life, turn)


def is_unfinished(item: AnyItem) -> bool:
    """True if the agent has yet to report its end."""
    if isinstance(item, ToolCall):
        return item.status not in FINAL_TOOL_STATUS
    return isinstance(item, Compaction) and item.status == "in_progress"


def _unfinished_of(items: list[AnyItem], first: int) -> Iterator[Unfinished]:
    """Yield the items that may still change. `first` is the position of the first item."""
    for place, item in enumerate(items, first):
        if isinstance(item, ToolCall | Compaction) and is_unfinished(item):
            named = item.tool_call_id if isinstance(item, ToolCall) else item.compaction_id
            yield Unfinished(place, item.life, isinstance(item, ToolCall), named)


_PLACE = attrgetter("place")


class Current(NamedTuple):
    """The message that the last text chunk continued, and the fields that the next one must match."""

    role: MessageRole
    message_id: str | None
    prompt_id: PromptId | None
    after: PromptId | None
    message: Message
    buffer: bytearray


class Unfinished(Struct, array_like=True, frozen=True):
    """A stored item that may still change through updates of the agent."""

    place: int
    life: int
    is_call: bool
    id: str


class Transcript:
    """Items in order, found by the agent's ids."""

    __slots__ = (
        *("compactions", "current", "messages", "offset", "past", "speaker", "stored", "text", "tools"),
        "unfinished",
    )

    def __init__(
        self,
        speaker: Speaker | None = None,
        items: list[AnyItem] | None = None,
        past: Paged[AnyItem] | None = None,
        unfinished: list[Unfinished] | None = None,
    ) -> None:
        self.speaker = speaker or Speaker()
        self.stored: list[AnyItem] = items or []
        """The items that are in memory; the text of the newest may still be growing."""
        self.past = past or pages_of_items("")
        """The items before them, in pages."""
        self.unfinished = unfinished or []
        """The stored items that were unfinished when their page was written, in order."""
        self.text = GrowingText()
        self.current: Current | None = None
        self.offset = 0
        """The event that is folded now."""
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
    def count(self) -> int:
        """The number of items, in memory or not."""
        return self.past.end + len(self.stored)

    def at(self, place: int) -> AnyItem:
        """Return the item at a position, with all of its text. Raises `PartNeeded`, like all lookups of items."""
        self.settle()
        end = self.past.end
        return self.stored[place - end] if place >= end else self.past.at(place)

    def span(self, first: int, end: int) -> list[AnyItem]:
        """Return the items from `first` up to, but excluding, `end`, with all of their text."""
        self.settle()
        start = self.past.end
        return [*self.past.between(first, end), *self.stored[max(first - start, 0) : max(end - start, 0)]]

    def message(self, role: MessageRole, message_id: str) -> Message | None:
        """Return an item by the agent's id in its current incarnation; the same below."""
        known = self.messages.get((role, message_id))
        return known if known is not None else self._recall(("m", self.speaker.life, role, message_id), Message)

    def tool(self, tool_call_id: str) -> ToolCall | None:
        known = self.tools.get(tool_call_id)
        return known if known is not None else self._recall(("t", self.speaker.life, tool_call_id), ToolCall)

    def compaction(self, compaction_id: str) -> Compaction | None:
        known = self.compactions.get(compaction_id)
        return known if known is not None else self._recall(("c", self.speaker.life, compaction_id), Compaction)

    def _recall(self, key: Key, kind: type[_Kind]) -> _Kind | None:
        """Return a stored item, which is indexed like the others until its page is evicted."""
        found = self.past.find(key) if self.past.end else None
        if found is None or not isinstance(found[1], kind):
            return None
        self._index(found[1])
        return found[1]

    def still_unfinished(self) -> list[Unfinished]:
        """Return the stored items that may still change now: a page in memory is newer than the recorded list."""
        firsts, loaded = self.past.known.firsts, self.past.loaded()
        in_memory = {number for number, _ in loaded}
        found = [each for each in self.unfinished if bisect_right(firsts, each.place) - 1 not in in_memory]
        for number, page in loaded:
            found += _unfinished_of(page, firsts[number])
        return sorted((each for each in found if each.life == self.speaker.life), key=_PLACE)

    # The following methods serve the storage of views: see `paged`.

    def put_away(self, count: int, offset: int) -> None:
        """Register the first items in memory as a page in the log."""
        entries, first = self.stored[:count], self.past.end
        self.past.put_away(entries, offset)
        del self.stored[:count]
        self.unfinished += _unfinished_of(entries, first)
        for item in entries:
            self._forget(item)

    def changed_pages(self) -> list[tuple[int, list[AnyItem]]]:
        """Return the pages whose current content is not in the log."""
        offsets = self.past.known.offsets
        return [
            (number, page)
            for number, page in self.past.loaded()
            if any(each.last_event_id > offsets[number] for each in page)
        ]

    def let_go(self, numbers: list[int]) -> None:
        """Evict these pages from memory, unless they have changed."""
        if not numbers:
            return
        self.unfinished = self.still_unfinished()
        changed = {number for number, _ in self.changed_pages()}
        for number in numbers:
            if number not in changed:
                for item in self.past.page(number):
                    self._forget(item)
                self.past.let_go(number)

    def make_whole(self) -> None:
        """Move all items to memory, permanently. Every page must be loaded."""
        items = list(self.past.between(0, self.past.end))
        self.past = pages_of_items("")
        self.unfinished = []
        self.stored[:0] = items
        for item in self.stored:
            self._index(item)

    def _forget(self, item: AnyItem) -> None:
        if isinstance(item, Message):
            named = item.agent_message_id if item.is_prompt else item.message_id
            if named is not None and self.messages.get((item.role, named)) is item:
                del self.messages[item.role, named]
        elif isinstance(item, ToolCall):
            if self.tools.get(item.tool_call_id) is item:
                del self.tools[item.tool_call_id]
        elif isinstance(item, Compaction) and self.compactions.get(item.compaction_id) is item:
            del self.compactions[item.compaction_id]

    @property
    def null_clears(self) -> bool:
        """True if `null` in a patch clears a field, as in v2; False if it has no effect, as in v1."""
        return self.speaker.protocol_version >= 2

    def settle(self) -> None:
        """Put all growing text into its blocks."""
        self.current = None
        self.text.close_all()

    def add(self, item: AnyItem) -> int:
        """Append an item. Return its index."""
        item.life = self.speaker.life
        item.first_event_id = item.last_event_id = self.offset
        # A chunk without an id follows only the last item.
        self.current = None
        self.stored.append(item)
        self._index(item)
        return self.count - 1

    def keep_unknown(self, event: SessionUpdated) -> None:
        """Store an update of an unknown form."""
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
        """Register the agent's id for a prompt, unless the id has another meaning already."""
        if self.message(MessageRole.USER, agent_message_id) is not None or prompt.agent_message_id is not None:
            return
        prompt.agent_message_id = agent_message_id
        prompt.last_event_id = self.offset
        prompt.life = self.speaker.life
        self._index(prompt)

    def start(self, event: AgentStarted) -> None:
        """Switch to another agent."""
        self.settle()
        speaker = self.speaker
        # An agent that lost the session may reuse the old id for the new one.
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
    """Return the ended turn that a change of `item` follows; `None` if the change is in time or background work."""
    if event.after is not None:
        return event.after
    if event.prompt_id is None or event.prompt_id == item.prompt_id:
        return None
    return item.prompt_id


# -- text that arrives in small chunks -------------------------------------------------------------------------
#
# Adjacent plain chunks become one block, at constant cost per chunk. A block is plain if it has only a type and a
# text, so that joining two loses nothing; no other block is joined.
#
# Growing text is in a buffer next to its list and not in the list. `close` appends it; the next chunk removes it
# again. So a reader of a list closes it first, and a list that was closed, stored and restored continues exactly
# like one that never was.


class PlainText(Struct, frozen=True, forbid_unknown_fields=True):
    """A content block with only text."""

    type: Literal["text"]
    text: str


class _AnyText(Struct, frozen=True):
    """A content block with text and any other members."""

    type: Literal["text"]
    text: str


_read_plain = msgspec.json.Decoder(PlainText).decode
_read_any = msgspec.json.Decoder(_AnyText).decode
_write = msgspec.json.Encoder().encode


def read_plain(block: Raw) -> str | None:
    """Return the text of a plain block; `None` for any other block."""
    try:
        return _read_plain(block).text
    except UNREADABLE:
        return None


def join_text(blocks: list[Raw]) -> str:
    """Return the text of all text blocks."""
    return "".join(map(_text_of, blocks))


def _text_of(block: Raw) -> str:
    try:
        return _read_any(block).text
    except UNREADABLE:
        return ""


class GrowingText:
    """Buffers for the text at the end of lists of blocks that is still growing."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        # By identity of the list: an entry is removed before its list is released.
        self._open: dict[int, tuple[list[Raw], bytearray]] = {}

    def grow(self, blocks: list[Raw]) -> bytearray:
        """Return the buffer, in UTF-8, to which text at the end of `blocks` is added."""
        known = self._open.get(id(blocks))
        if known is not None:
            return known[1]
        buffer = bytearray(_take_plain(blocks))
        self._open[id(blocks)] = blocks, buffer
        return buffer

    def append(self, blocks: list[Raw], block: Raw) -> None:
        """Append a block, joined with the text before it if both are plain."""
        text = read_plain(block)
        if text is None:
            self.close(blocks)
            blocks.append(block.copy())
        else:
            self.grow(blocks).extend(text.encode())

    def close(self, blocks: list[Raw]) -> None:
        """Put the growing text of one list into it."""
        known = self._open.pop(id(blocks), None)
        if known is not None:
            blocks.append(_block(known[1]))

    def close_all(self) -> None:
        """Put all growing text into its lists."""
        while self._open:
            _, (blocks, buffer) = self._open.popitem()
            blocks.append(_block(buffer))

    def forget(self, blocks: list[Raw]) -> None:
        """Drop the growing text of a list that is about to be replaced."""
        self._open.pop(id(blocks), None)


def _take_plain(blocks: list[Raw]) -> bytes:
    text = read_plain(blocks[-1]) if blocks else None
    if text is None:
        return b""
    blocks.pop()
    return text.encode()


def _block(buffer: bytearray) -> Raw:
    text = buffer.decode()
    # Three copies of a long text at once are too many; the buffer is not needed any more.
    buffer.clear()
    return Raw(_write(PlainText("text", text)))
