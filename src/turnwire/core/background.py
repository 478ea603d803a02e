"""Background work: what an agent goes on with whether a turn runs or not, and when it counts as over.

An agent that reports its background work (v2) lists all of it with each of its states: the newest list holds. Of
one that does not, a tool call that is in progress when its turn ends is such work, until it gets its last status.
An agent that forgot to give it must not be kept for ever, so that kind counts only while the agent has said
something about it not too long ago. With its agent all of it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from turnwire.limits import REMEMBERED_TOOLS

TOOL_CALL = "tool_call"
TERMINAL = "terminal"

_ID_OF = {TERMINAL: "terminalId", TOOL_CALL: "toolCallId", "subagent": "sessionId"}


class Work(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Something that runs in the background."""

    kind: str
    """`tool_call`, `terminal`, `subagent`, or the agent's own word."""
    id: str | None = None
    """None if it is of a kind whose ids nobody can read here."""
    heard_at: int | None = None
    """When the agent last said something about it, in wall time; none if the agent lists it."""


AllWork: TypeAlias = tuple[Work, ...]


def read_list(background: Raw) -> AllWork | None:
    """What an agent lists; none if it is no list of objects, which reports nothing."""
    try:
        items = msgspec.json.decode(background, type=list[dict[str, Any]])
    except (msgspec.DecodeError, RecursionError):
        return None
    return tuple(map(_listed, items))


def _listed(item: dict[str, Any]) -> Work:
    kind = item.get("type")
    named = {each: item[member] for each, member in _ID_OF.items() if isinstance(item.get(member), str)}
    if not isinstance(kind, str):
        kind = next(iter(named), "unknown")
    return Work(kind, named.get(kind) or next(iter(named.values()), None))


def ids(work: Iterable[Work]) -> frozenset[str]:
    """The ids of those that have one."""
    return frozenset(each.id for each in work if each.id is not None)


def left_open(work: AllWork, tools: Mapping[str, str], at: int) -> AllWork:
    """With the tool calls that are in progress at the end of their turn, for an agent that lists nothing itself."""
    left = {tool_call_id for tool_call_id, status in tools.items() if status == "in_progress"}
    others = tuple(each for each in work if each.id not in left)
    found = tuple(Work(TOOL_CALL, each, at) for each in tools if each in left)
    return (*others, *found)[-REMEMBERED_TOOLS:]


def heard(work: AllWork, tool_call_id: str | None, at: int, *, is_over: bool) -> AllWork:
    """After the agent said something about a tool call, which may be its last status."""
    if tool_call_id is None or not any(each.id == tool_call_id for each in work):
        return work
    if is_over:
        return tuple(each for each in work if each.kind != TOOL_CALL or each.id != tool_call_id)
    return tuple(
        replace(each, heard_at=at) if each.id == tool_call_id and each.heard_at is not None else each
        for each in work
    )


def still_running(work: AllWork, now: int, unlisted_s: float) -> AllWork:
    """What counts as running: all that is listed, and the rest for so long after the agent's last word about it."""
    oldest = now - unlisted_s * 1000
    return tuple(each for each in work if each.heard_at is None or each.heard_at > oldest)
