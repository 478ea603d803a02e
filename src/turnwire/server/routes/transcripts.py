"""Reading a session, open or closed: its transcript, its log, and an explanation of its state.

A transcript is complete, or one page of it, the newest first. An item never changes its position, so an item's
number is a stable cursor while new items arrive.

The export of the whole log is written page by page, so a log of any length needs one page of memory. Observers do
not see frames of the agent, because they may contain secrets. The same holds for a log as stored, which only owners
get.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import anyio
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, json
from msgspec.structs import asdict
from starlette.types import Send

from turnwire.errors import PositionLost
from turnwire.ids import ChildId, ClientId, Epoch, SessionId
from turnwire.log.base import Position, SessionHead
from turnwire.projections.envelope import Form
from turnwire.projections.translate.views import items_in, latest_in
from turnwire.projections.view import (
    AnyItem,
    ChildRecord,
    ChildSession,
    Compaction,
    Latest,
    Terminal,
    ToolCall,
    TurnRecord,
    View,
    terminal_ids,
)
from turnwire.projections.view.transcript import Speaker, is_unfinished
from turnwire.runtime.evidence import Explanation
from turnwire.server.access.tokens import Role
from turnwire.server.daemon.session_list import Standing, iso
from turnwire.server.endpoint import Call, Endpoint, Reply, ShapeName, ShapeQuery
from turnwire.server.readers.fanout import ProjectedLog
from turnwire.session.state import AT_WORK, Phase
from turnwire.session.stored_file import Head, StoredFile

_ODD = re.compile(r"[^A-Za-z0-9_.-]")
LARGEST_PAGE = 1000


Place = Annotated[int, Meta(ge=0, le=2**53, description="only items before this one: `before` of a page")]
PageSize = Annotated[int, Meta(ge=1, le=LARGEST_PAGE, description="the newest items only, so many at most")]


class TranscriptQuery(ShapeQuery, frozen=True):
    """The whole transcript or a page of it; the newest page if the transcript exceeds the page limit."""

    limit: PageSize | None = None
    before: Place | None = None


class Earlier(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Items before a page that the agent may still change, by their ids; not on the page, and not new."""

    tool_calls: list[str] = []
    compactions: list[str] = []
    children: list[ChildId] = []


class Transcript(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The transcript of a session as of one event.

    A page has the data that its items need. The newest page also has the turns that have not ended, and the
    terminals and children that are at work.
    """

    session_id: SessionId
    event_epoch: Epoch
    last_event_id: int
    workspace_cwd: str
    created_at: str
    state: Standing
    title: str | None = None
    named: bool = False
    """True if a user set the title; then the agent does not change it."""
    first: int
    """The position of the first of these items in the whole transcript, counted from 0."""
    before: int | None = None
    """The cursor for the items before these; absent if there are no earlier ones."""
    items: list[AnyItem]
    latest: Latest
    turns: list[TurnRecord]
    terminals: dict[str, Terminal] = {}
    background: Raw | UnsetType = UNSET
    children: list[ChildRecord] = []
    """The child sessions, each at the position of its announcement. Another route has their transcripts."""
    speaker: Speaker
    """The agent that speaks now: it defines the meaning of its ids and of `null` in later events."""
    earlier: Earlier | None = None
    """Only on the newest page, and only if that is not the whole transcript."""


class ExportQuery(ShapeQuery, frozen=True):
    """Export options. By default a log is exported as stored."""

    acp: ShapeName = "agent"


class SessionExplanation(Explanation, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of a session and its cause, with evidence."""

    session_id: SessionId
    clients: dict[ClientId, str]
    """Attached clients by id, with their role: connected ones and those seen in the last 15 minutes."""
    attended: bool
    """True if a client that can answer is present now."""
    log: str | None = None
    """The code of the error with which the log rejects events now, such as `log_full`."""


async def show(call: Call) -> Reply:
    session_id, query, page_bytes = call.session_id, call.query, call.daemon.limits.page_bytes
    epoch = (await call.daemon.node.head(session_id)).epoch
    # The view is shared: no await is allowed from here until the reply is encoded.
    return Reply(
        await call.daemon.node.look(
            session_id, lambda view: transcript_of(session_id, view, epoch, query, page_bytes)
        )
    )


def transcript_of(
    session_id: SessionId, view: View, epoch: Epoch, query: TranscriptQuery, page_bytes: int
) -> Transcript:
    """Return the requested transcript of a session, or one page of it."""
    session, page = view.session, page_of(view, query, page_bytes)
    children = _children(view, page)
    return Transcript(
        session_id=session_id,
        event_epoch=epoch,
        last_event_id=view.offset,
        workspace_cwd=session.cwd,
        created_at=iso(session.created_at),
        state="closed" if session.phase is Phase.CLOSED else view.state,
        title=session.title,
        named=session.named,
        first=page.first,
        before=page.first or None,
        items=page.items,
        latest=latest_in(view, query.shape.version),
        turns=_turns(view, page),
        terminals=page.terminals,
        background=UNSET if view.background is None else view.background,
        children=children,
        speaker=view.transcript.speaker,
        earlier=earlier_of(view, page, children),
    )


class Page(NamedTuple):
    """Consecutive items of a transcript."""

    first: int
    items: list[AnyItem]
    terminals: dict[str, Terminal]
    is_whole: bool
    is_newest: bool


def page_of(view: View, query: TranscriptQuery, page_bytes: int) -> Page:
    """Return the requested part of a transcript; fewer items than wanted if they are large."""
    transcript, version = view.transcript, query.shape.version
    count = transcript.count
    if query.limit is None and query.before is None and count <= LARGEST_PAGE:
        return Page(0, items_in(view, version), view.terminals, is_whole=True, is_newest=True)
    end = count if query.before is None else min(query.before, count)
    first, size = end, 0
    for place in range(end - 1, max(end - (query.limit or LARGEST_PAGE), 0) - 1, -1):
        size += len(json.encode(transcript.at(place)))
        if size > page_bytes and first < end:
            break
        first = place
    is_newest = end == count
    calls = [each for each in transcript.span(first, end) if isinstance(each, ToolCall)]
    named = {terminal_id for each in calls for terminal_id in terminal_ids(each)}
    terminals = {
        name: each
        for name, each in view.terminals.items()
        if name in named or (is_newest and each.exit_status is UNSET)
    }
    return Page(first, items_in(view, version, first, end), terminals, is_whole=False, is_newest=is_newest)


def _turns(view: View, page: Page) -> list[TurnRecord]:
    if page.is_whole:
        return view.turns_between(0, view.turn_count)
    named = {turn for each in page.items for turn in (each.prompt_id, each.after) if turn is not None}
    # Unloaded items are older than all others.
    older = sorted(place for turn in named - view.turns.keys() if (place := view.place_of_turn(turn)) is not None)
    newer = [
        each for each in view.turns.values() if each.prompt_id in named or (page.is_newest and each.outcome is None)
    ]
    return [*map(view.past.at, older), *newer]


def _children(view: View, page: Page) -> list[ChildRecord]:
    named = {each.child_id for each in page.items if isinstance(each, ChildSession)}
    return [
        each.record
        for child_id, each in view.children.items()
        if page.is_whole or child_id in named or (page.is_newest and each.record.state in AT_WORK)
    ]


def earlier_of(view: View, page: Page, children: Sequence[ChildRecord] = ()) -> Earlier | None:
    """Return the items that are not on the newest page and may still change."""
    if not page.is_newest or page.is_whole:
        return None
    transcript, shown = view.transcript, {each.child_id for each in children}
    life, start = transcript.speaker.life, transcript.past.end
    old = [each for each in transcript.still_unfinished() if each.place < page.first]
    newer = [each for each in transcript.span(start, page.first) if each.life == life and is_unfinished(each)]
    return Earlier(
        [each.id for each in old if each.is_call]
        + [each.tool_call_id for each in newer if isinstance(each, ToolCall)],
        [each.id for each in old if not each.is_call]
        + [each.compaction_id for each in newer if isinstance(each, Compaction)],
        [each for each in view.children if each not in shown],
    )


async def export(call: Call, send: Send) -> None:
    with call.daemon.open_streams.export(call.who):
        await _export(call, send)


async def _export(call: Call, send: Send) -> None:
    daemon, session_id = call.daemon, call.session_id
    head = await daemon.node.head(session_id)
    shaped = ProjectedLog(daemon.log, session_id, head.epoch, call.query.shape, daemon.limits)
    await _begin_file(call, send, head)
    fold = await shaped.fold_at(head.first - 1)
    while fold.offset < head.head:
        fold, lines = await shaped.read(fold, head.head, Form.LINE)
        if not await _write_file(call, send, b"".join(lines)):
            return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def export_stored(call: Call, send: Send) -> None:
    daemon, session_id = call.daemon, call.session_id
    limits = daemon.limits
    head = await daemon.node.head(session_id)
    file = StoredFile(Head(session_id=session_id, epoch=head.epoch, first=head.first))
    await _begin_file(call, send, head)
    after, lines = head.first - 1, file.head
    while await _write_file(call, send, lines):
        if after >= head.head:
            await send({"type": "http.response.body", "body": file.last_line(), "more_body": False})
            return
        page = await daemon.log.read(
            session_id,
            Position(head.epoch, after),
            max_events=min(limits.page_events, head.head - after),
            max_bytes=limits.page_bytes,
        )
        after, lines = page[-1].offset, file.lines(each.body for each in page)


async def _begin_file(call: Call, send: Send, head: SessionHead) -> None:
    name = _ODD.sub("_", call.session_id)[:128]
    headers = {
        "content-type": call.endpoint.media_type,
        "content-disposition": f'attachment; filename="{name}.ndjson"',
        "cache-control": "no-store",
        "turnwire-epoch": head.epoch,
    }
    raw = [(key.encode(), value.encode()) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})


async def _write_file(call: Call, send: Send, lines: bytes) -> bool:
    with anyio.move_on_after(call.daemon.limits.write_timeout_s) as waiting:
        await send({"type": "http.response.body", "body": lines, "more_body": True})
    # If the client stops reading, the file has no proper end, and the server drops the connection.
    return not waiting.cancelled_caught


async def explain(call: Call) -> Reply:
    daemon, session_id = call.daemon, call.session_id
    for_owner = call.who.role is Role.OWNER
    known = asdict(await daemon.node.agents.explain(session_id, for_owner=for_owner))
    attached = (await daemon.node.peek(session_id)).state.clients
    clients = {each: attached[each] for each in daemon.clients.listed(session_id, attached)}
    trouble = daemon.metrics.log.trouble
    return Reply(
        SessionExplanation(
            **known,
            session_id=session_id,
            clients=clients,
            attended=daemon.clients.attended(session_id),
            log=None if trouble is None else trouble.code,
        )
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/session/{session_id}/transcript",
        act=show,
        summary="What was said and done, folded from the log: all of it up to 1,000 items, or a page",
        role=Role.OBSERVER,
        query=TranscriptQuery,
        gives=Transcript,
        tag="transcript",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/export",
        stream=export,
        summary="The whole log as one file, an event per line",
        role=Role.OBSERVER,
        query=ExportQuery,
        media_type="application/x-ndjson",
        refuses=(PositionLost,),
        tag="transcript",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/export/stored",
        stream=export_stored,
        summary="The whole log as it is stored, byte for byte, for `turnwire export` and `turnwire verify`",
        role=Role.OWNER,
        media_type="application/x-ndjson",
        refuses=(PositionLost,),
        tag="transcript",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/explain",
        act=explain,
        summary="Why a session stands where it stands, with the evidence",
        role=Role.CONTROLLER,
        gives=SessionExplanation,
        tag="transcript",
    ),
)
"""The routes that show a session's history."""
