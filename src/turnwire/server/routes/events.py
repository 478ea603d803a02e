"""The events of a session: as a stream of one or many sessions, or a part of the log as JSON.

The cursor comes from `Last-Event-ID`, or from `?after=` for clients that cannot set a header. The header wins,
because a browser sends it when it reconnects. A malformed cursor is rejected before the stream begins. If a cursor
cannot be honoured, the stream reports it, or the first event of the part does.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct
from starlette.types import Send

from turnwire.errors import BadRequest, Forbidden, PositionLost, SessionNotFound
from turnwire.ids import Epoch, SessionId
from turnwire.log.base import Position
from turnwire.projections.envelope import Form, stream_frame
from turnwire.runtime.session import Readable
from turnwire.server.access.tokens import Role
from turnwire.server.connections import OpenAnswer
from turnwire.server.endpoint import Call, Endpoint, Reply, ShapeQuery
from turnwire.server.readers.event_stream import SessionStream, serve_stream
from turnwire.server.readers.fanout import (
    EPOCH_HEADERS,
    ProjectedLog,
    fanout_of,
    projected_ring,
    read_offset,
    start_at,
)
from turnwire.server.readers.history import snapshot_of
from turnwire.server.readers.many_stream import ManyStart, ManyStream, read_cursor
from turnwire.wire.jsonrpc import raw

LARGEST_PART = 1000


class EventsQuery(ShapeQuery, frozen=True):
    """The start position, for clients that cannot set a header."""

    after: Annotated[str, Meta(description="the id of the last event seen; 0 is the beginning")] | None = None
    epoch: Annotated[str, Meta(description="the epoch that the id is of")] | None = None
    snapshot: Annotated[bool, Meta(description="send a session_snapshot first")] = False


class ManyEventsQuery(ShapeQuery, frozen=True):
    """The selected sessions and the start position."""

    after: Annotated[str, Meta(description="the id of the last event of this stream")] | None = None
    session: Annotated[str, Meta(description="a session; may be given more than once")] | None = None
    sessions: Annotated[str, Meta(description="several sessions with commas between")] | None = None


class LogQuery(ShapeQuery, frozen=True):
    """The selected events."""

    after: Annotated[str, Meta(description="the id of the event to begin behind; 0 is the beginning")] = "0"
    epoch: Annotated[str, Meta(description="the epoch that the id is of")] | None = None
    limit: Annotated[int, Meta(ge=1, le=LARGEST_PART, description="so many events at most")] = 100


class LogPart(Struct, frozen=True, kw_only=True, rename="camel"):
    """Consecutive events of a session."""

    session_id: SessionId
    event_epoch: Epoch
    last_event_id: int
    """The newest event of the session."""
    next_after: int
    """The cursor for the next part. There are more events until it equals the newest one."""
    events: list[Raw]
    """Envelopes in the form of the stream."""


# -- one session ---------------------------------------------------------------------------------------------


async def session_events(call: Call, send: Send) -> None:
    """Stream the events of one session."""
    query: EventsQuery = call.query
    offset = read_offset(call.request.headers.get("last-event-id") or query.after)
    session = await call.daemon.node.peek(call.session_id)
    opening: list[bytes] = []
    if offset is None:
        head = await call.daemon.node.head(call.session_id)
        position = Position(session.epoch, session.tail.head)
    else:
        head, position, lost = await start_at(call.daemon.node, call.session_id, _epoch(call), offset)
        if lost is not None:
            opening.append(lost.frame(call.session_id))
    if query.snapshot:
        frame, folded = await _snapshot(call, session)
        opening.append(frame)
        position = position if offset is not None else Position(head.epoch, folded)
    tail = await call.daemon.node.tail(call.session_id)
    replay_to = None if offset is None else head.head

    def start(answer: OpenAnswer) -> None:
        fanout = fanout_of(call.daemon, tail, call.session_id, query.shape)
        SessionStream(call, answer, fanout, position, replay_to=replay_to).begin(opening)

    await serve_stream(call, send, dict.fromkeys(EPOCH_HEADERS, head.epoch), start)


async def _snapshot(call: Call, session: Readable) -> tuple[bytes, int]:
    """Return the snapshot as a frame and its offset; the stream continues from there."""
    view, epoch = await call.daemon.node.newest(call.session_id)
    data = snapshot_of(call.session_id, view, epoch, view.offset, session.state.queue, call.query.shape)
    return stream_frame("session_snapshot", data), view.offset


def _epoch(call: Call) -> Epoch | None:
    named = (call.request.headers.get(name) for name in EPOCH_HEADERS)
    text = next((each for each in named if each), call.query.epoch)
    return Epoch(text) if text else None


async def part_of_log(call: Call) -> Reply:
    """Return some events of one session, bounded in number and bytes."""
    query: LogQuery = call.query
    node = call.daemon.node
    ring = projected_ring(node, await node.tail(call.session_id), call.session_id, query.shape)
    head, position, lost = await start_at(node, call.session_id, _epoch(call), read_offset(query.after) or 0)
    events: list[Raw] = [] if lost is None else [raw(lost.envelope(call.session_id))]
    lines, reached = await _lines(ring.log, position.offset, min(position.offset + query.limit, head.head))
    return Reply(
        LogPart(
            session_id=call.session_id,
            event_epoch=head.epoch,
            last_event_id=head.head,
            next_after=reached,
            events=events + lines,
        )
    )


async def _lines(log: ProjectedLog, after: int, upto: int) -> tuple[list[Raw], int]:
    """Return up to a page of events as lines, and the offset where they end. It is before `upto` if the events up
    to there are not visible here yet.
    """
    try:
        fold = await log.fold_at(after)
    except PositionLost as error:
        if error.context.get("why") != "ahead":
            raise
        return [], after
    if fold.offset > after:
        raise PositionLost("what follows this position is not kept any more; ask again", why="trimmed")
    events: list[Raw] = []
    size = 0
    while fold.offset < upto and size < log.limits.page_bytes:
        fold, lines = await log.read(fold, upto, Form.LINE)
        if not lines:
            break
        size += sum(map(len, lines))
        events += (Raw(line) for each in lines for line in each.splitlines())
    return events, fold.offset


# -- many sessions -------------------------------------------------------------------------------------------


async def many_events(call: Call, send: Send) -> None:
    """Stream the events of some sessions, or of all current and future ones."""
    text = call.request.headers.get("last-event-id") or call.query.after
    position = ManyStart(call.daemon, read_cursor(text) if text else None)
    wanted = _wanted(call)
    for session_id in wanted:
        try:
            # Opening the session first lets its tail learn if it is closed, so that the stream can end.
            await call.daemon.node.peek(session_id)
            await position.add_named(session_id)
        except SessionNotFound:
            position.add_missing(session_id)

    def start(answer: OpenAnswer) -> None:
        stream = ManyStream(call, answer, position)
        if wanted:
            stream.show_named()
        else:
            stream.show_all()

    await serve_stream(call, send, {}, start)


def _wanted(call: Call) -> list[SessionId]:
    """Return the sessions that the stream shows; `None` means all."""
    query = call.request.query_params
    texts = [*query.getlist("session"), *(each for many in query.getlist("sessions") for each in many.split(","))]
    wanted = list(dict.fromkeys(SessionId(each) for each in texts if each))
    if not all(map(call.who.may_touch, wanted)):
        raise Forbidden("this token is for another session")
    return wanted or ([call.who.session_id] if call.who.session_id is not None else [])


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/session/{session_id}/events",
        stream=session_events,
        summary="Follow a session as server-sent events",
        role=Role.OBSERVER,
        query=EventsQuery,
        refuses=(SessionNotFound, BadRequest),
        media_type="text/event-stream",
        tag="events",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/log",
        act=part_of_log,
        summary="Some events of a session, as the stream shows them",
        role=Role.OBSERVER,
        query=LogQuery,
        gives=LogPart,
        refuses=(SessionNotFound, BadRequest, PositionLost),
        tag="events",
    ),
    Endpoint(
        method="GET",
        path="/events",
        stream=many_events,
        summary="Follow many sessions on one connection",
        role=Role.OBSERVER,
        query=ManyEventsQuery,
        refuses=(SessionNotFound, BadRequest),
        media_type="text/event-stream",
        narrows=True,
        tag="events",
    ),
)
