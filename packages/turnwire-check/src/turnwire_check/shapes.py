"""Rules of v1 about the shapes of agents' messages: the closed enumerations, and the required members.

The functions return complaints as text, one for the first error. Members that are not named here are not checked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeGuard, cast

from turnwire_check.tape import at, has, items

STOP_REASONS = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})
TOOL_STATUSES = frozenset({"pending", "in_progress", "completed", "failed"})
FINAL = frozenset({"completed", "failed"})
TOOL_KINDS = frozenset(
    {"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}
)
PERMISSION_KINDS = frozenset({"allow_once", "allow_always", "reject_once", "reject_always"})
_CHUNK = ("content", "messageId")
_CALL = ("toolCallId", "title", "name", "kind", "status", "content", "locations", "rawInput", "rawOutput")
MEMBERS_OF_UPDATES: dict[str, tuple[str, ...]] = {
    "user_message_chunk": _CHUNK,
    "agent_message_chunk": _CHUNK,
    "agent_thought_chunk": _CHUNK,
    "tool_call": _CALL,
    "tool_call_update": _CALL,
    "plan": ("entries",),
    "available_commands_update": ("availableCommands",),
    "current_mode_update": ("currentModeId",),
    "config_option_update": ("configOptions",),
    "session_info_update": ("title", "updatedAt"),
    "usage_update": ("used", "size", "cost"),
    "notice": ("title", "description", "severity"),
    "compaction_update": ("compactionId", "status", "summary", "error"),
    "compaction_summary_chunk": ("compactionId", "content"),
}
"""The members of each update of the stable schema, in addition to `sessionUpdate` and `_meta`."""
UPDATES = frozenset(MEMBERS_OF_UPDATES)
UNSTABLE_UPDATES = frozenset(
    {"plan_update", "plan_removed", "subagent_update", "session_message", "session_message_chunk"}
)
"""Updates that need an opt-in by the client."""
CONTENT = frozenset(
    {"user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"}
)
"""Updates that are work of a turn, and not facts about the session."""
BLOCKS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "resource_link": ("uri", "name"),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource": (),
}
"""The kinds of content with the texts that each must have."""


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_objects(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(each, dict) for each in cast("list[object]", value))


def names(value: object) -> set[str]:
    """The names of an object's members."""
    return set(cast("dict[str, object]", value)) if isinstance(value, dict) else set()


def is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def is_one_of(value: object, words: Collection[str]) -> TypeGuard[str]:
    """Return True if the value is in the enumeration. A peer may send any value, including an unhashable one."""
    return isinstance(value, str) and value in words


def as_key(value: object) -> str:
    """Return a hashable key that distinguishes values of a peer: `7` is not `"7"`."""
    return json.dumps(value, sort_keys=True)


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def block_complaint(block: object) -> str:
    """Return the error in a content block; empty if there is none."""
    kind = at(block, "type")
    if not isinstance(kind, str) or kind not in BLOCKS:
        return f"content of the type {kind!r}"
    missing = [name for name in BLOCKS[kind] if not is_text(at(block, name))]
    if missing:
        return f"content of the type {kind!r} without {missing[0]!r}"
    if kind == "resource":
        held = at(block, "resource")
        if not is_text(at(held, "uri")) or not (is_text(at(held, "text")) or is_text(at(held, "blob"))):
            return "a resource without its uri and its text or blob"
    return ""


def _tool_call(update: Any) -> Iterator[str]:
    if not is_text(at(update, "toolCallId")):
        yield "a tool call without `toolCallId`"
    if update["sessionUpdate"] == "tool_call" and not is_text(at(update, "title")):
        yield "a `tool_call` without `title`"
    for name in ("content", "locations"):
        found = at(update, name)
        if found is not None and not is_objects(found):
            yield f"a tool call whose `{name}` is no list of objects"


def _message(update: Any) -> Iterator[str]:
    if not is_object(at(update, "content")):
        yield f"`{update['sessionUpdate']}` without `content`"
    identity = at(update, "messageId")
    if identity is not None and not is_text(identity):
        yield f"a `messageId` that is {identity!r}"


def _plan(update: Any) -> Iterator[str]:
    entries = at(update, "entries")
    if not is_objects(entries):
        yield "a plan without `entries`"
        return
    for each in entries:
        if not is_text(at(each, "content")):
            yield "an entry of a plan without `content`"
        if at(each, "priority") not in ("high", "medium", "low"):
            yield f"an entry of a plan with the priority {at(each, 'priority')!r}"
        if at(each, "status") not in ("pending", "in_progress", "completed"):
            yield f"an entry of a plan with the status {at(each, 'status')!r}"


def _commands(update: Any) -> Iterator[str]:
    commands = at(update, "availableCommands")
    if not is_objects(commands):
        yield "`available_commands_update` without `availableCommands`"
        return
    for each in commands:
        if not is_text(at(each, "name")) or not is_text(at(each, "description")):
            yield "a command without name and description"


def _usage(update: Any) -> Iterator[str]:
    for name in ("used", "size"):
        if not is_count(at(update, name)):
            yield f"a usage update whose `{name}` is {at(update, name)!r}"


def _options(update: Any) -> Iterator[str]:
    yield from filter(None, [options_complaint(at(update, "configOptions"))])


def _mode(update: Any) -> Iterator[str]:
    if not is_text(at(update, "currentModeId")):
        yield "`current_mode_update` without `currentModeId`"


MEMBERS: dict[str, Callable[[Any], Iterator[str]]] = {
    "user_message_chunk": _message,
    "agent_message_chunk": _message,
    "agent_thought_chunk": _message,
    "tool_call": _tool_call,
    "tool_call_update": _tool_call,
    "plan": _plan,
    "available_commands_update": _commands,
    "usage_update": _usage,
    "config_option_update": _options,
    "current_mode_update": _mode,
}


def update_complaint(update: Any) -> str:
    """Return the missing member of an update of a known kind; empty if there is none."""
    kind = at(update, "sessionUpdate")
    complaints = MEMBERS[kind](update) if isinstance(kind, str) and kind in MEMBERS else iter(())
    return next(complaints, "")


def options_complaint(options: object) -> str:
    """Return the error in a list of config options; empty if there is none."""
    if not is_objects(options):
        return "config options that are no list"
    seen: list[Any] = []
    for each in options:
        name = at(each, "id")
        if name in seen:
            return f"two options have the id {name!r}"
        seen.append(name)
        if not is_text(name) or not is_text(at(each, "name")):
            return "an option without id and name"
        if not has(each, "currentValue") or each["currentValue"] is None:
            return f"the option {name!r} has no value"
        if at(each, "type") == "select" and each["currentValue"] not in values_of(each):
            return f"the value of the option {name!r} is none of those it offers"
    return ""


def values_of(option: object) -> list[Any]:
    """Return the selectable values, including those in groups."""
    found: list[Any] = []
    listed = at(option, "options")
    for each in items(listed):
        found += [at(row, "value") for row in items(at(each, "options")) or [each]]
    return found


def is_absolute(path: object) -> bool:
    """Return True for an absolute path of either platform: the peer's may differ from ours."""
    return is_text(path) and (os.path.isabs(path) or path[1:3] in (":\\", ":/") or path.startswith("\\\\"))


def is_same_place(path: str, other: str) -> bool:
    """Return True if two paths lead to one directory of this machine."""
    try:
        return os.path.realpath(path) == os.path.realpath(other)
    except (OSError, ValueError):
        return False


def paths_of(update: object) -> list[Any]:
    """Every path that a tool call names."""
    found: list[Any] = []
    for name in ("locations", "content"):
        listed = at(update, name)
        if is_objects(listed):
            found += [
                each["path"]
                for each in listed
                if name == "locations" or at(each, "type") == "diff"
                if "path" in each
            ]
    return found
