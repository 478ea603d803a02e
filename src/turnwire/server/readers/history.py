"""A session for a reader that joins late: its current state (`snapshot_of`), or its history (`replay`).

A snapshot is the state that the reader would have if it had followed from the start, except for the transcript,
which is read as events. Payloads of the agent are in the shape that the reader requests.

A history consists of the newest events unchanged, the journal, bounded in events and bytes, and a compacted form of
the earlier ones: one envelope per message block and tool call, without ids, because none of them stands for a
single event. Together they are the whole history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.ids import ChildId, Epoch, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position
from turnwire.projections.envelope import SESSION_UPDATE, Form, Shape, to_envelope
from turnwire.projections.translate.views import items_in, latest_in, permission_request_in
from turnwire.projections.view import (
    AnyItem,
    ChildSession,
    Compaction,
    Message,
    MessageRole,
    ToolCall,
    Unknown,
    View,
)
from turnwire.projections.view.latest import offered_choice
from turnwire.runtime.folds import stored_view
from turnwire.runtime.node import Node
from turnwire.server.readers.fanout import ProjectedLog, projected_ring
from turnwire.session.choices import MODE, MODEL
from turnwire.session.codec import decode, encode
from turnwire.session.events import PermissionRequested
from turnwire.session.state import Phase, Turn
from turnwire.session.turn import TurnState
from turnwire.wire.jsonrpc import raw

JOURNAL_EVENTS = 2000
"""Maximum number of events in the journal; a client that wants all events reads the stream from the start."""

FOLDED_EVENTS = 10_000
"""Up to this length of the log, the journal has its full length."""

_CHUNKS = {
    MessageRole.USER: "user_message_chunk",
    MessageRole.AGENT: "agent_message_chunk",
    MessageRole.THOUGHT: "agent_thought_chunk",
}


# -- snapshot ------------------------------------------------------------------------------------------------


class _Envelope(Struct):
    data: Raw


_read_envelope = msgspec.json.Decoder(_Envelope).decode


def snapshot_of(
    session_id: SessionId, view: View, epoch: Epoch, offset: int, queue: Sequence[Turn], shape: Shape
) -> dict[str, Any]:
    """Return the latest values, the running turn, the queue and the open permission requests, as of `offset`.

    `queue` defines the order of waiting prompts; the view decides which prompts wait.
    """
    latest = latest_in(view, shape.version)
    mode, modes = offered_choice(latest, MODE)
    model, models = offered_choice(latest, MODEL)
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
        "mode": mode,
        "modes": modes,
        "model": model,
        "models": models,
        "configOptions": latest.config_options,
        "usage": latest.usage,
        "background": view.background,
    }
    data = {key: value for key, value in known.items() if value is not None and not isinstance(value, UnsetType)}
    return data | {
        # Clients of this contract expect these two names, with null if there is no value.
        "currentModelId": model,
        "currentApprovalMode": mode,
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
    """Return the permission request as its event showed it."""
    shown = permission_request_in(view, asked, shape.version)
    return _read_envelope(to_envelope(view.session.session_id, 1, encode(shown))).data


# -- history -------------------------------------------------------------------------------------------------


class Replay(NamedTuple):
    """A history: first `compacted`, then `journal`."""

    compacted: list[Raw]
    journal: list[Raw]


async def replay(node: Node, session_id: SessionId, upto: int, shape: Shape) -> Replay:
    """Return the history up to an offset. Raises `SessionNotFound`, `PositionLost` if trimmed meanwhile."""
    log, limits = node.log, node.limits
    head = await log.head(session_id)
    view = await stored_view(log, session_id) if head.first > 1 or upto > FOLDED_EVENTS else None
    if view is None or (view.offset > upto and head.first == 1):
        view = View()
    folded, cut = view.offset, max(upto - JOURNAL_EVENTS, 0)
    # The journal does not reach before the stored view: a long log is not folded, and a trimmed one cannot be.
    cut = max(cut, folded)
    shaped = projected_ring(node, await node.tail(session_id), session_id, shape).log
    journal, cut = await _journal(shaped, cut, upto)
    async for body in _bodies(log, Position(head.epoch, folded), session_id, cut, limits):
        view.apply(decode(body))
    return Replay(list(_compacted(view, shape)) if cut else [], journal)


async def _journal(shaped: ProjectedLog, cut: int, upto: int) -> tuple[list[Raw], int]:
    """Return the newest envelopes after `cut` that fit, and the offset after which they begin."""
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
    """Yield the items of a session, or of one of its children; a child's items follow its announcement."""
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
    """Yield updates of a message: v2 has whole messages, which must have an id; v1 has chunks."""
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
