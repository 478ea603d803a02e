"""Records of turns: their author, the times of their states, their end.

`take` steps the turn's table for an event and records its data. A record never changes against the table: a repeat,
or any event of a turn that has ended, is ignored.

Texts are in the transcript; a record has their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from turnwire.ids import ClientId, PermissionId, PromptId, RequestId
from turnwire.projections.view.paged import Key, Paged, StoredPages
from turnwire.session import events as ev
from turnwire.session.json_members import read_entries, read_members, read_text
from turnwire.session.turn import NEXT, TurnState


class TurnError(Struct, omit_defaults=True, rename="camel"):
    """The error of a failed turn."""

    code: str
    message: str
    exit_code: int | None = None
    signal: str | None = None
    stderr_tail: str | None = None
    agent_error: Raw | UnsetType = UNSET


class Outcome(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The end of a turn: with a stop reason or with an error."""

    stop_reason: str | None = None
    ending: ev.Ending | None = None
    usage: Raw | UnsetType = UNSET
    error: TurnError | None = None
    agent_stop_reason: str | None = None
    """The agent's stop reason for a cancelled turn, if it differs."""
    receipt: ev.Receipt | None = None


class Place(Struct, omit_defaults=True, rename="camel"):
    """Positions of a turn's messages: indexes of items in the transcript."""

    waiting: Raw | UnsetType = UNSET
    """The prompt's content until it is a message. It remains here if the agent rejects the prompt."""
    prompt: int | None = None
    """Its user message."""
    first: int | None = None
    """The index at which its output begins."""
    answer: int | None = None
    """The last message of the agent in it; known once it has ended."""


class Asked(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A permission request about a tool call, and its answer."""

    tool_call_id: str
    kinds: dict[str, str] = {}
    """The kind of each option; empty once it is answered."""
    allowed: bool | None = None
    author: str | None = None
    """The user who answered."""


class TurnRecord(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A turn, from acceptance to its end."""

    prompt_id: PromptId
    state: TurnState = TurnState.NEW
    origin: ev.Origin = ev.Origin.CLIENT
    author: str | None = None
    client_id: ClientId | None = None
    prompt_request_id: RequestId | None = None
    """The client's JSON-RPC id of the prompt."""
    agent_request_id: RequestId | None = None
    """Our JSON-RPC id of the prompt towards the agent."""
    accepted_at: int | None = None
    queued_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    outcome: Outcome | None = None
    cancelled_by: str | None = None
    joined_into: PromptId | None = None
    plans: dict[str, Raw] = {}
    """The plans that the agent reported in it, as of its end."""
    asked: dict[PermissionId, Asked] = {}
    place: Place = field(default_factory=Place)


Turns: TypeAlias = dict[PromptId, TurnRecord]
"""Turns in the order in which they entered the log."""


_read_records = msgspec.json.Decoder(list[TurnRecord]).decode


def pages_of_turns(known: StoredPages | None = None) -> Paged[TurnRecord]:
    """Return the pages of turns that have ended, which never change again."""
    return Paged("view.turns", _read_records, lambda record: (turn_key(record.prompt_id),), known, is_final=True)


def turn_key(prompt_id: PromptId) -> Key:
    """Return the key of a stored turn."""
    return (prompt_id,)


def take(turns: Turns, known: TurnRecord | None, event: ev.TurnEvent) -> TurnRecord | None:
    """Step a turn with this known record. Return its record; `None` if the table does not allow the event."""
    kind = type(event)
    record = known or TurnRecord(prompt_id=event.prompt_id)
    following = NEXT[record.state].get(kind)
    if following is None:
        return None
    turns[event.prompt_id] = record
    record.state = following
    write = _WRITES.get(kind)
    if write is not None:
        write(record, event)
    return record


def ask(record: TurnRecord, event: ev.PermissionRequested, tool_call: Raw) -> None:
    """Record a permission request about this tool call."""
    tool_call_id = read_text((read_members(tool_call) or {}).get("toolCallId"))
    if tool_call_id is None:
        return
    options = (read_members(event.params) or {}).get("options")
    kinds: dict[str, str] = {}
    for option in (None if options is None else read_entries(options)) or ():
        members = read_members(option) or {}
        option_id, kind = read_text(members.get("optionId")), read_text(members.get("kind"))
        if option_id is not None and kind is not None:
            kinds[option_id] = kind
    record.asked[event.request_id] = Asked(tool_call_id=tool_call_id, kinds=kinds)


def answer(record: TurnRecord, event: ev.PermissionResolved) -> None:
    """Record who allowed or rejected a tool call. A request without such an answer is forgotten."""
    asked = record.asked.pop(event.request_id, None)
    if asked is None or event.end is not ev.PermissionEnd.ANSWERED:
        return
    members = read_members(event.answer) or {}
    outcome = members.get("outcome")
    option_id = read_text(((read_members(outcome) if outcome is not None else None) or members).get("optionId"))
    kind = None if option_id is None else asked.kinds.get(option_id)
    if kind is not None:
        record.asked[event.request_id] = Asked(
            tool_call_id=asked.tool_call_id, allowed=kind.startswith("allow"), author=event.author
        )


def _accepted(record: TurnRecord, event: ev.PromptAccepted) -> None:
    record.accepted_at = event.at
    record.author, record.client_id = event.author, event.client_id
    record.prompt_request_id = event.prompt_request_id
    if event.content is not UNSET:
        record.place.waiting = event.content.copy()


def _queued(record: TurnRecord, event: ev.PromptQueued) -> None:
    record.queued_at = event.at
    record.place.waiting = event.content.copy()


def _updated(record: TurnRecord, event: ev.PromptUpdated) -> None:
    if event.content is not UNSET:
        record.place.waiting = event.content.copy()


def _spoken(record: TurnRecord, event: ev.UserMessage) -> None:
    record.place.waiting = UNSET


def _sent(record: TurnRecord, event: ev.PromptSent) -> None:
    record.agent_request_id = event.agent_request_id


def _injected(record: TurnRecord, event: ev.PromptInjected) -> None:
    record.joined_into = event.into


def _started(record: TurnRecord, event: ev.TurnStarted) -> None:
    record.started_at = event.at
    record.origin = event.origin


def _cancelled(record: TurnRecord, event: ev.CancelAsked) -> None:
    record.cancelled_by = event.author or event.client_id


def _completed(record: TurnRecord, event: ev.TurnCompleted) -> None:
    record.ended_at = event.at
    record.cancelled_by = event.cancelled_by or record.cancelled_by
    record.outcome = Outcome(
        stop_reason=event.stop_reason,
        ending=event.ending,
        agent_stop_reason=event.agent_stop_reason,
        receipt=event.receipt,
    )
    if event.usage is not UNSET:
        record.outcome.usage = event.usage.copy()


def _failed(record: TurnRecord, event: ev.TurnFailed) -> None:
    record.ended_at = event.at
    error = TurnError(event.code, event.message, event.exit_code, event.signal, event.stderr_tail)
    if event.agent_error is not UNSET:
        error.agent_error = event.agent_error.copy()
    record.outcome = Outcome(error=error, receipt=event.receipt)


_WRITES: Mapping[type[ev.Event], Callable[[TurnRecord, Any], None]] = {
    ev.PromptAccepted: _accepted,
    ev.PromptQueued: _queued,
    ev.PromptUpdated: _updated,
    ev.UserMessage: _spoken,
    ev.PromptSent: _sent,
    ev.PromptInjected: _injected,
    ev.TurnStarted: _started,
    ev.CancelAsked: _cancelled,
    ev.TurnCompleted: _completed,
    ev.TurnFailed: _failed,
}
"""Functions that record an event's data; other events only step the table."""
