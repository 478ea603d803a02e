"""Folds for tool calls, and for terminals of v2 agents, in which some tool calls run.

Each fold changes or adds one of them and returns True if the update could be applied. An update for an unseen id
creates the call. No status is invented: an unfinished call is marked in addition to the agent's last status, and
later updates still apply.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from turnwire.ids import PromptId
from turnwire.projections.meta_terminals import terminal_updates
from turnwire.projections.view.patch import Patch
from turnwire.projections.view.transcript import ToolCall, Transcript, ended_turn
from turnwire.session.events import PermissionRequested, SessionUpdated
from turnwire.session.json_members import is_null, is_object, read_members, read_text
from turnwire.wire.schema.update import FINAL_TOOL_STATUS


def announce_tool_call(transcript: Transcript, event: SessionUpdated) -> bool:
    """Apply a v1 `tool_call`: reset all fields, in the call's existing position if any."""
    members = read_members(event.update)
    call = _tool_call(transcript, event, members)
    if members is None or call is None:
        return False
    blank = ToolCall(at=call.at, tool_call_id=call.tool_call_id)
    call.name, call.title, call.kind, call.status = blank.name, blank.title, blank.kind, blank.status
    call.content, call.locations, call.meta = blank.content, blank.locations, blank.meta
    call.raw_input = call.raw_output = call.capabilities = UNSET
    _apply(call, Patch(members, null_clears=True))
    return True


def update_tool_call(transcript: Transcript, event: SessionUpdated) -> bool:
    """Apply `tool_call_update`: present fields replace; the meaning of null depends on the version."""
    members = read_members(event.update)
    call = _tool_call(transcript, event, members)
    if members is None or call is None:
        return False
    _apply(call, Patch(members, null_clears=transcript.null_clears))
    return True


def append_content(transcript: Transcript, event: SessionUpdated) -> bool:
    """Apply a v2 `tool_call_content_chunk`."""
    members = read_members(event.update)
    content = members.get("content") if members is not None else None
    if content is None or not is_object(content):
        return False
    call = _tool_call(transcript, event, members)
    if call is None:
        return False
    call.content.append(content.copy())
    return True


def call_of(event: PermissionRequested) -> Raw | None:
    """Return the tool call of a permission request: v1 has it in the params, v2 in the subject."""
    members = read_members(event.params)
    if members is None:
        return None
    subject = members.get("subject")
    if subject is not None:
        members = read_members(subject) or members
    return members.get("toolCall")


def apply_permission_request(transcript: Transcript, event: PermissionRequested) -> None:
    """Apply the tool call of a permission request as an ordinary update, before the request is shown."""
    call = call_of(event)
    if call is not None:
        update_tool_call(
            transcript,
            SessionUpdated(at=event.at, kind="tool_call_update", update=call, prompt_id=event.prompt_id),
        )


def _tool_call(transcript: Transcript, event: SessionUpdated, members: dict[str, Raw] | None) -> ToolCall | None:
    tool_call_id = read_text(members.get("toolCallId")) if members is not None else None
    if tool_call_id is None:
        return None
    call = transcript.tool(tool_call_id)
    if call is None:
        call = ToolCall(at=event.at, prompt_id=event.prompt_id, after=event.after, tool_call_id=tool_call_id)
        transcript.add(call)
    else:
        call.after = ended_turn(call, event) or call.after
        call.last_event_id = transcript.offset
    return call


def _apply(call: ToolCall, patch: Patch) -> None:
    call.name = patch.text("name", call.name)
    call.title = patch.text("title", call.title)
    call.kind = patch.word("kind", call.kind, "other")
    call.status = patch.word("status", call.status, "pending")
    call.content = patch.entries("content", call.content)
    call.locations = patch.entries("locations", call.locations)
    call.raw_input = patch.raw("rawInput", call.raw_input)
    call.raw_output = patch.raw("rawOutput", call.raw_output)
    call.capabilities = patch.raw("capabilities", call.capabilities)
    call.meta = patch.meta(call.meta)


# -- the end of a turn ---------------------------------------------------------------------------------------


def mark_cancelled(transcript: Transcript, first: int | None, prompt_id: PromptId) -> None:
    """Mark the unfinished calls of a cancelled turn, whose output begins at `first`."""
    for call in _unfinished(transcript, first, prompt_id):
        call.cancelled_locally = True
        call.last_event_id = transcript.offset


def mark_open(transcript: Transcript, first: int | None, prompt_id: PromptId, background: frozenset[str]) -> None:
    """Mark the unfinished calls of an ended turn, except background work that the agent lists, which continues."""
    for call in _unfinished(transcript, first, prompt_id):
        if call.tool_call_id not in background and background.isdisjoint(terminal_ids(call)):
            call.open_at_end = True
            call.last_event_id = transcript.offset


def _unfinished(transcript: Transcript, first: int | None, prompt_id: PromptId) -> Iterator[ToolCall]:
    # The items of an open turn are in memory.
    for item in transcript.stored[max((first or 0) - transcript.past.end, 0) :]:
        if isinstance(item, ToolCall) and item.prompt_id == prompt_id and item.status not in FINAL_TOOL_STATUS:
            yield item


def terminal_ids(call: ToolCall) -> Iterator[str]:
    """Yield the terminals of a call: an agent lists work that has a process by its terminal, not by its call."""
    for each in call.content:
        terminal_id = read_text((read_members(each) or {}).get("terminalId"))
        if terminal_id is not None:
            yield terminal_id


# -- terminals: command, output and exit -----------------------------------------------------------------------
#
# Output is bytes: each chunk is decoded separately and appended, a snapshot replaces all of it. It is never decoded
# as text, because a chunk may end inside a character.


class Terminal(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A terminal that an agent runs. A tool call may show it; their lifetimes are independent."""

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
    """As in `Item`: a new incarnation of the agent's session creates a new terminal."""


def update_terminal(terminals: dict[str, Terminal], event: SessionUpdated, life: int) -> bool:
    """Apply `terminal_update`, a patch in which null clears."""
    members = read_members(event.update)
    terminal = _terminal(terminals, event, members, life)
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
    """Apply `terminal_output_chunk`. An unseen id is a terminal without other known fields."""
    members = read_members(event.update)
    output = _decoded(members.get("data")) if members is not None else None
    if output is None:
        return False
    terminal = _terminal(terminals, event, members, life)
    if terminal is None:
        return False
    terminal.output += output
    return True


def update_shown(terminals: dict[str, Terminal], event: SessionUpdated, life: int) -> None:
    """Apply the terminals in the `_meta` of a v1 agent's tool call."""
    if b'"terminal_' not in bytes(event.update):
        return
    for kind, update in terminal_updates(read_members(event.update) or {}):
        fold = update_terminal if kind == "terminal_update" else append_output
        fold(terminals, replace(event, kind=kind, update=update), life)


def _terminal(
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
