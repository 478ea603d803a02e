"""A session at once, for a reader that joins late: where it stands (`snapshot_of`), or its history (`replay`).

A snapshot is what the reader would know had it followed from the start, but for the transcript: that is read as
events. Payloads of the agent are in the shape that the reader asks for.

A history is the newest events as they are, the journal, bounded in events and bytes, and what came before them in
short: one envelope per message block and tool call, without ids, because no single event says it. Together they are
the whole history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.codec import decode, encode
from turnwire.core.envelope import SESSION_UPDATE, Form, to_envelope
from turnwire.core.events import PermissionRequested
from turnwire.core.shape import Shape
from turnwire.core.state import Phase, Turn
from turnwire.core.translate.views import items_in, latest_in, permission_request_in
from turnwire.core.turn import TurnState
from turnwire.core.view import (
    AnyItem,
    ChildSession,
    Compaction,
    Message,
    MessageRole,
    ToolCall,
    Unknown,
    View,
)
from turnwire.ids import ChildId, Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position
from turnwire.runtime.folds import stored_view
from turnwire.runtime.node import Node
from turnwire.server.streams.shaped import ShapedLog, shaped_ring
from turnwire.wire.jsonrpc import raw

JOURNAL_EVENTS = 2000
"""Events that are told one by one; a client that wants all of them reads the stream from the start."""

FOLDED_EVENTS = 10_000
"""Of a log that is not longer than this the journal is as long as it may be."""

_CHUNKS = {
    MessageRole.USER: "user_message_chunk",
    MessageRole.AGENT: "agent_message_chunk",
    MessageRole.THOUGHT: "agent_thought_chunk",
}


# -- where it stands -----------------------------------------------------------------------------------------


class _Envelope(Struct):
    data: Raw


_read_envelope = msgspec.json.Decoder(_Envelope).decode


def snapshot_of(
    session_id: SessionId, view: View, epoch: Epoch, offset: int, queue: Sequence[Turn], shape: Shape
) -> dict[str, Any]:
    """The latest values, the running turn, the queue and the open permission requests, as of `offset`.

    `queue` says in which order prompts wait; which of them do is known from the view.
    """
    latest = latest_in(view, shape.version)
    known: dict[str, Any] = {
        "sessionId": session_id,
        "lastEventId": offset,
        "eventEpoch": epoch,
        "isClosed": view.session.phase is Phase.CLOSED,
        "state": view.state,
        "hasActivePrompt": view.active is not None,
        "activePromptId": view.active,
        "title": view.session.title,
        "commands": latest.commands,
        "mode": latest.mode,
        "modes": latest.modes,
        "model": latest.model,
        "models": latest.models,
        "configOptions": latest.config_options,
        "usage": latest.usage,
        "background": view.background,
    }
    data = {key: value for key, value in known.items() if value is not None and not isinstance(value, UnsetType)}
    return data | {
        # Clients of this contract know the two under these names, and want to see that there is none.
        "currentModelId": latest.model,
        "currentApprovalMode": latest.mode,
        "plans": latest.plans,
        "queue": _waiting(view, queue),
        "children": [each.record for each in view.children.values()],
        "permissions": [_permission_request(view, each, shape) for each in view.permissions.values()],
    }


def _waiting(view: View, queue: Sequence[Turn]) -> list[dict[str, Any]]:
    places = {each.prompt_id: place for place, each in enumerate(queue)}
    waiting = [each for each in view.turns.values() if each.state is TurnState.QUEUED]
    waiting.sort(key=lambda each: places.get(each.prompt_id, len(places)))
    return [
        {"promptId": each.prompt_id, "text": view.user_text(each.prompt_id) or "", "queuedAt": each.queued_at}
        for each in waiting
    ]


def _permission_request(view: View, asked: PermissionRequested, shape: Shape) -> Raw:
    """The permission request as its event showed it."""
    shown = permission_request_in(view, asked, shape.version)
    return _read_envelope(to_envelope(view.session.session_id, 1, encode(shown))).data


# -- history -------------------------------------------------------------------------------------------------


class Replay(NamedTuple):
    """A history: first `compacted`, then `journal`."""

    compacted: list[Raw]
    journal: list[Raw]


async def replay(node: Node, session_id: SessionId, upto: int, shape: Shape) -> Replay:
    """The history up to an offset. Raises `SessionNotFound`, `PositionLost` if it is trimmed meanwhile."""
    log, limits = node.log, node.limits
    head = await log.head(session_id)
    view = await stored_view(log, session_id) if head.first > 1 or upto > FOLDED_EVENTS else None
    if view is None or (view.offset > upto and head.first == 1):
        view = View()
    folded, cut = view.offset, max(upto - JOURNAL_EVENTS, 0)
    # Of a long log nobody folds all, and of a trimmed one nobody can: the journal does not reach behind the view.
    cut = max(cut, folded)
    shaped = shaped_ring(node, await node.tail(session_id), session_id, shape).log
    journal, cut = await _journal(shaped, cut, upto)
    async for body in _bodies(log, Position(head.epoch, folded), session_id, cut, limits):
        view.apply(decode(body))
    return Replay(list(_compacted(view, shape)) if cut else [], journal)


async def _journal(shaped: ShapedLog, cut: int, upto: int) -> tuple[list[Raw], int]:
    """The newest envelopes after `cut` that fit, and the offset after which they begin."""
    journal: deque[bytes] = deque()
    size, fold = 0, await shaped.fold_at(cut)
    while fold.offset < upto:
        fold, frames = await shaped.read(fold, upto, Form.LINE)
        journal.extend(frames)
        size += sum(map(len, frames))
        while size > shaped.limits.ring_bytes and len(journal) > 1:
            size -= len(journal.popleft())
    envelopes = [Raw(line) for lines in journal for line in lines.splitlines()]
    return envelopes, max(cut, upto - len(journal))


async def _bodies(
    log: EventLog, after: Position, session_id: SessionId, upto: int, limits: Limits
) -> AsyncGenerator[bytes]:
    while after.offset < upto:
        events = await log.read(
            session_id, after, max_events=min(limits.page_events, upto - after.offset), max_bytes=limits.page_bytes
        )
        for each in events:
            yield each.body
        after = Position(after.epoch, events[-1].offset)


# -- an item of the transcript as updates --------------------------------------------------------------------


def _compacted(view: View, shape: Shape, child: ChildId | None = None) -> Iterator[Raw]:
    """The items of a session, or of one of its children; a child's follow the place where it was announced."""
    version = shape.version or view.transcript.speaker.protocol_version
    for item in items_in(view if child is None else view.children[child].view, shape.version):
        if isinstance(item, ChildSession):
            yield raw(_envelope(view, item, view.children[item.child_id].record.announcement(), child))
            yield from _compacted(view, shape, item.child_id)
            continue
        for update in _updates(item, version):
            yield raw(_envelope(view, item, update, child))


def _envelope(view: View, item: AnyItem, update: object, child: ChildId | None) -> dict[str, object]:
    of_child = {} if child is None else {"child": child}
    envelope: dict[str, object] = {
        "v": 1,
        "type": SESSION_UPDATE,
        "data": {"sessionId": view.session.session_id, "update": update, **of_child},
    }
    if item.prompt_id is not None:
        envelope["promptId"] = item.prompt_id
    if item.late:
        envelope["late"] = True
    turn = view.turns.get(item.prompt_id) if item.prompt_id is not None else None
    if turn is not None and turn.author is not None:
        envelope["author"] = turn.author
    if turn is not None and turn.client_id is not None:
        envelope["originatorClientId"] = turn.client_id
    return envelope | {"_meta": {"serverTimestamp": item.at, "compacted": True}}


def _updates(item: AnyItem, version: int) -> Iterator[object]:
    if isinstance(item, Message):
        yield from _message(item, version)
    elif isinstance(item, ToolCall):
        yield _tool_call(item, version)
    elif isinstance(item, Compaction):
        yield {
            "sessionUpdate": "compaction_update",
            "compactionId": item.compaction_id,
            "status": item.status,
            "summary": item.summary,
        }
    elif isinstance(item, Unknown):
        yield item.update


def _message(item: Message, version: int) -> Iterator[object]:
    """v2 has whole messages, which must have a name; v1 has pieces."""
    named = {} if item.message_id is None else {"messageId": item.message_id}
    kind = _CHUNKS[item.role]
    if version == 2 and named:
        yield {"sessionUpdate": kind.removesuffix("_chunk"), "content": item.content, **named}
    else:
        yield from ({"sessionUpdate": kind, "content": block, **named} for block in item.content)


def _tool_call(item: ToolCall, version: int) -> dict[str, object]:
    payloads = {"rawInput": item.raw_input, "rawOutput": item.raw_output}
    return {
        "sessionUpdate": "tool_call_update" if version == 2 else "tool_call",
        "toolCallId": item.tool_call_id,
        "title": item.title or item.tool_call_id,
        "kind": item.kind,
        "status": item.status,
        "content": item.content,
        "locations": item.locations,
        **{key: value for key, value in payloads.items() if value is not UNSET},
    }
