"""Terminals of v2 agents: what runs in them, what came out, how it ended.

Takes the terminals by id and an update; changes or adds one and gives whether the update could be applied.
Output is bytes: each chunk is decoded on its own and appended, a snapshot replaces all of it. Never reads the
bytes as text, because a chunk may end inside a character.
"""

from __future__ import annotations

import binascii

from msgspec import UNSET, Raw, Struct, UnsetType, field

from turnwire.core.events import SessionUpdated
from turnwire.core.view.patch import Patch, is_null, read_members, read_text


class Terminal(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A terminal that an agent runs. A tool call may show it; neither waits for the other."""

    terminal_id: str
    at: int
    command: str | None = None
    cwd: str | None = None
    output: bytearray = field(default_factory=bytearray)
    exit_status: Raw | UnsetType = UNSET
    size: Raw | UnsetType = UNSET
    capabilities: Raw | UnsetType = UNSET
    meta: dict[str, Raw] = {}
    life: int = 0
    """As of an item: another life of the agent's session begins a terminal anew."""


def update(terminals: dict[str, Terminal], event: SessionUpdated, life: int) -> bool:
    """`terminal_update`: a patch, in which null clears."""
    members = read_members(event.update)
    terminal = _find_or_add(terminals, event, members, life)
    if members is None or terminal is None:
        return False
    patch = Patch(members, null_clears=True)
    terminal.command = patch.text("command", terminal.command)
    terminal.cwd = patch.text("cwd", terminal.cwd)
    terminal.exit_status = patch.raw("exitStatus", terminal.exit_status)
    terminal.size = patch.raw("size", terminal.size)
    terminal.capabilities = patch.raw("capabilities", terminal.capabilities)
    terminal.meta = patch.meta(terminal.meta)
    _replace_output(terminal, members.get("output"))
    return True


def append_output(terminals: dict[str, Terminal], event: SessionUpdated, life: int) -> bool:
    """`terminal_output_chunk`. An unseen id is a terminal of which nothing else is known yet."""
    members = read_members(event.update)
    output = _decoded(members.get("data")) if members is not None else None
    if output is None:
        return False
    terminal = _find_or_add(terminals, event, members, life)
    if terminal is None:
        return False
    terminal.output += output
    return True


def _find_or_add(
    terminals: dict[str, Terminal], event: SessionUpdated, members: dict[str, Raw] | None, life: int
) -> Terminal | None:
    terminal_id = read_text(members.get("terminalId")) if members is not None else None
    if terminal_id is None:
        return None
    terminal = terminals.get(terminal_id)
    if terminal is None or terminal.life != life:
        terminal = terminals[terminal_id] = Terminal(terminal_id=terminal_id, at=event.at, life=life)
    return terminal


def _replace_output(terminal: Terminal, snapshot: Raw | None) -> None:
    if snapshot is None:
        return
    if is_null(snapshot):
        terminal.output = bytearray()
        return
    output = _decoded((read_members(snapshot) or {}).get("data"))
    if output is not None:
        terminal.output = bytearray(output)


def _decoded(encoded: Raw | None) -> bytes | None:
    text = read_text(encoded)
    if text is None:
        return None
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return None
