"""Terminals that v1 agents show in the `_meta` of tool calls, a convention of Zed, Claude and Codex.

v1 has no updates about an agent's terminals. `terminal_info`, `terminal_output` or `terminal_output_delta`, and
`terminal_exit` stand for them. They are read as the updates of v2 that mean the same. Output is appended in either
spelling: clients that asked for the second one get smaller pieces.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

from msgspec import Raw

from turnwire.session.json_members import members, raw, text_of

INFO: Final = "terminal_info"
OUTPUT: Final = "terminal_output"
DELTA: Final = "terminal_output_delta"
EXIT: Final = "terminal_exit"
_KEYS: Final = frozenset({INFO, OUTPUT, DELTA, EXIT})


def terminal_updates(call: dict[str, Raw]) -> list[tuple[str, Raw]]:
    """Return the kinds and updates of v2 for the terminals in the `_meta` of a v1 tool call."""
    meta = members(call.get("_meta"))
    if _KEYS.isdisjoint(meta):
        return []
    found: list[tuple[str, Raw]] = []
    info, ended = members(meta.get(INFO)), members(meta.get(EXIT))
    if terminal_id := text_of(info, "terminal_id"):
        known = {"command": text_of(members(call.get("rawInput")), "command"), "cwd": text_of(info, "cwd")}
        found.append(_update(terminal_id, **{name: value for name, value in known.items() if value is not None}))
    for each in (members(meta.get(OUTPUT)), members(meta.get(DELTA))):
        terminal_id, data = text_of(each, "terminal_id"), text_of(each, "data")
        if terminal_id is not None and data is not None:
            chunk = {"terminalId": terminal_id, "data": b64encode(data.encode(errors="replace")).decode()}
            found.append(("terminal_output_chunk", raw({"sessionUpdate": "terminal_output_chunk", **chunk})))
    if terminal_id := text_of(ended, "terminal_id"):
        status = {"exitCode": ended.get("exit_code"), "signal": ended.get("signal")}
        found.append(_update(terminal_id, exitStatus=status))
    return found


def _update(terminal_id: str, **more: Any) -> tuple[str, Raw]:
    return "terminal_update", raw({"sessionUpdate": "terminal_update", "terminalId": terminal_id, **more})


def without_terminals(call: dict[str, Raw]) -> dict[str, Raw]:
    """Return a tool call without these members of its `_meta`."""
    meta = {name: value for name, value in members(call.get("_meta")).items() if name not in _KEYS}
    others = {name: value for name, value in call.items() if name != "_meta"}
    return {**others, "_meta": raw(meta)} if meta else others
