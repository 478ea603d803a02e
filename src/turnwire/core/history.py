"""An agent's replay of a session against the log: what agrees, and what differs first.

Never merges the two: the log is what happened, a replay is what the agent remembers of it.

Compared are user messages, agent messages and tool calls, in order, by their text and title. Not compared: ids,
which agents make anew; thoughts, which many do not keep; how a text was cut into messages and chunks.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import msgspec

from turnwire.core.view import View
from turnwire.core.view.transcript import Message, MessageRole, ToolCall
from turnwire.ids import PromptId


class Comparison(NamedTuple):
    """How a replay relates to the log."""

    replayed: int
    matched: int
    missing: int
    first_difference: str | None


class _Entry(NamedTuple):
    kind: str
    text: str


class _Text(msgspec.Struct):
    text: str = ""


def compare(log: View, replay: View, *, without: PromptId | None = None) -> Comparison:
    """Hold a replay against the log. `without` is a turn that the agent cannot know yet."""
    ours, theirs = _entries(log, without), _entries(replay, None)
    matched = 0
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            break
        matched += 1
    difference: str | None = None
    if matched < len(ours) or matched < len(theirs):
        mine = ours[matched].kind if matched < len(ours) else "nothing"
        other = theirs[matched].kind if matched < len(theirs) else "nothing"
        difference = f"entry {matched + 1}: the log has {mine}, the replay has {other}"
        if mine == other:
            difference += " with another text"
    return Comparison(len(theirs), matched, max(0, len(ours) - matched), difference)


def _entries(view: View, without: PromptId | None) -> list[_Entry]:
    spoken = [entry for entry in map(_entry, _items(view, without)) if entry is not None]
    merged: list[_Entry] = []
    for kind, group in groupby(spoken, key=lambda entry: entry.kind):
        if kind == "a tool call":
            merged.extend(group)
        else:
            # Agents join or split neighbouring messages of one side when they replay.
            merged.append(_Entry(kind, "".join("".join(entry.text for entry in group).split())))
    return merged


def _items(view: View, without: PromptId | None) -> list[Message | ToolCall]:
    return [
        item
        for item in view.items
        if isinstance(item, Message | ToolCall) and (without is None or item.prompt_id != without)
    ]


def _entry(item: Message | ToolCall) -> _Entry | None:
    if isinstance(item, ToolCall):
        return _Entry("a tool call", item.title or item.tool_call_id)
    if item.role is MessageRole.THOUGHT:
        return None
    kind = "a user message" if item.role is MessageRole.USER else "an agent message"
    return _Entry(kind, "".join(_text(block) for block in item.content))


def _text(block: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(block, type=_Text).text
    except msgspec.DecodeError:
        return ""
