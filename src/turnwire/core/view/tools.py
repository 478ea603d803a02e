"""Tool calls: announced, patched, given output, and marked when their turn is cancelled or ends.

Takes a transcript and an update; changes or adds one tool call and gives whether the update could be applied.
An update for an unseen id creates the call. Never invents a status: that a call was left unfinished is a mark
beside what the agent said last, and later updates still apply.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, Raw

from turnwire.core.events import PermissionRequested, SessionUpdated
from turnwire.core.evolve import FINAL_TOOL_STATUS
from turnwire.core.view.items import AnyItem, ToolCall
from turnwire.core.view.patch import Patch, is_object, read_members, read_text
from turnwire.core.view.transcript import Transcript, ended_turn
from turnwire.ids import PromptId


def announce(transcript: Transcript, event: SessionUpdated) -> bool:
    """v1 `tool_call`: all fields anew, at the call's old place if it had one."""
    members = read_members(event.update)
    call = _find_or_add(transcript, event, members)
    if members is None or call is None:
        return False
    blank = ToolCall(at=call.at, tool_call_id=call.tool_call_id)
    call.name, call.title, call.kind, call.status = blank.name, blank.title, blank.kind, blank.status
    call.content, call.locations, call.meta = blank.content, blank.locations, blank.meta
    call.raw_input = call.raw_output = call.capabilities = UNSET
    _apply(call, Patch(members, null_clears=True))
    return True


def update(transcript: Transcript, event: SessionUpdated) -> bool:
    """`tool_call_update`: fields that are there replace; what null means depends on the version."""
    members = read_members(event.update)
    call = _find_or_add(transcript, event, members)
    if members is None or call is None:
        return False
    _apply(call, Patch(members, null_clears=transcript.null_clears))
    return True


def append_content(transcript: Transcript, event: SessionUpdated) -> bool:
    """v2 `tool_call_content_chunk`."""
    members = read_members(event.update)
    content = members.get("content") if members is not None else None
    if content is None or not is_object(content):
        return False
    call = _find_or_add(transcript, event, members)
    if call is None:
        return False
    call.content.append(content.copy())
    return True


def apply_question(transcript: Transcript, event: PermissionRequested) -> None:
    """The tool call that a permission request is about: an ordinary update, applied before it is shown."""
    members = read_members(event.params)
    if members is None:
        return
    # v1 has it in the params, v2 in the subject.
    subject = members.get("subject")
    if subject is not None:
        members = read_members(subject) or members
    call = members.get("toolCall")
    if call is not None:
        update(
            transcript,
            SessionUpdated(at=event.at, kind="tool_call_update", update=call, prompt_id=event.prompt_id),
        )


def _find_or_add(transcript: Transcript, event: SessionUpdated, members: dict[str, Raw] | None) -> ToolCall | None:
    tool_call_id = read_text(members.get("toolCallId")) if members is not None else None
    if tool_call_id is None:
        return None
    call = transcript.tools.get(tool_call_id)
    if call is None:
        call = ToolCall(at=event.at, prompt_id=event.prompt_id, after=event.after, tool_call_id=tool_call_id)
        transcript.add(call)
    else:
        call.after = ended_turn(call, event) or call.after
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


# -- the turn's word -----------------------------------------------------------------------------------------


def mark_cancelled(items: list[AnyItem], prompt_id: PromptId) -> None:
    """The turn was asked to cancel."""
    for call in _unfinished(items, prompt_id):
        call.cancelled_locally = True


def mark_open(items: list[AnyItem], prompt_id: PromptId, background: frozenset[str]) -> None:
    """The turn ended. Work that the agent lists as background goes on and is not left open."""
    for call in _unfinished(items, prompt_id):
        if call.tool_call_id not in background and background.isdisjoint(_terminal_ids(call)):
            call.open_at_end = True


def _unfinished(items: list[AnyItem], prompt_id: PromptId) -> Iterator[ToolCall]:
    for item in items:
        if isinstance(item, ToolCall) and item.prompt_id == prompt_id and item.status not in FINAL_TOOL_STATUS:
            yield item


def _terminal_ids(call: ToolCall) -> Iterator[str]:
    """Terminals of a call: an agent lists work that has a process by its terminal, not by its call."""
    for each in call.content:
        terminal_id = read_text((read_members(each) or {}).get("terminalId"))
        if terminal_id is not None:
            yield terminal_id
