"""Background work of an agent, which runs with or without a turn, and the rules by which it ends.

An agent that reports its background work (v2) lists all of it with each of its states: the newest list applies. For
other agents, a tool call that is in progress when its turn ends counts as background work until its last status
arrives. An agent may forget to send that, so such work expires some time after the last update about it. All
background work ends with its agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from turnwire.limits import REMEMBERED_TOOLS

UNLISTED_WORK_S = 3600.0
"""Timeout for a tool call that outlives its turn. It prevents the agent from being stopped this long after the
call's last update. A build or a test run reports something by then; a call that the agent forgot to end expires.
"""
TOOL_CALL = "tool_call"
TERMINAL = "terminal"

_ID_OF = {TERMINAL: "terminalId", TOOL_CALL: "toolCallId", "subagent": "sessionId"}


class Work(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An item of background work."""

    kind: str
    """`tool_call`, `terminal`, `subagent`, or another type that the agent uses."""
    id: str | None = None
    """`None` if ids of this kind are unknown here."""
    heard_at: int | None = None
    """Wall time of the agent's last update about it; `None` if the agent lists it."""


AllWork: TypeAlias = tuple[Work, ...]


def read_list(background: Raw) -> AllWork | None:
    """Decode an agent's list of work; `None` if it is not a list of objects, which reports nothing."""
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
    """Return the ids of the work that has one."""
    return frozenset(each.id for each in work if each.id is not None)


def left_open(work: AllWork, tools: Mapping[str, str], at: int) -> AllWork:
    """Add the tool calls that are in progress at the end of their turn, for an agent that lists no work itself."""
    left = {tool_call_id for tool_call_id, status in tools.items() if status == "in_progress"}
    others = tuple(each for each in work if each.id not in left)
    found = tuple(Work(TOOL_CALL, each, at) for each in tools if each in left)
    return (*others, *found)[-REMEMBERED_TOOLS:]


def heard(work: AllWork, tool_call_id: str | None, at: int, *, is_over: bool) -> AllWork:
    """Return the work after an update about a tool call, which may be its last status."""
    if tool_call_id is None or not any(each.id == tool_call_id for each in work):
        return work
    if is_over:
        return tuple(each for each in work if each.kind != TOOL_CALL or each.id != tool_call_id)
    return tuple(
        replace(each, heard_at=at) if each.id == tool_call_id and each.heard_at is not None else each
        for each in work
    )


def still_running(work: AllWork, now: int) -> AllWork:
    """Return the running work: all listed work, the rest until `UNLISTED_WORK_S` after its last update."""
    oldest = now - UNLISTED_WORK_S * 1000
    return tuple(each for each in work if each.heard_at is None or each.heard_at > oldest)
