"""The events of a session: as a stream, alone or with many on one connection, or a part of the log as JSON.

The cursor comes from `Last-Event-ID`, or from `?after=` for clients that cannot set a header; the header wins: it
is what a browser comes back with. A cursor that is none is refused before the stream begins; one that cannot be
honoured is told in the stream, or as the first of the part.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct
from starlette.types import Send

from turnwire.core.envelope import Form, stream_frame
from turnwire.errors import BadRequest, Forbidden, PositionLost, SessionNotFound
from turnwire.ids import Epoch, SessionId
from turnwire.log.base import Position
from turnwire.runtime.session import Readable
from turnwire.server.access.identity import Role
from turnwire.server.endpoint import Call, Endpoint, Reply, ShapeQuery
from turnwire.server.streams.audience import tell_session
from turnwire.server.streams.history import snapshot_of
from turnwire.server.streams.many_stream import ManyStream, read_cursor
from turnwire.server.streams.session_stream import EPOCH_HEADERS, PATH, SessionStream, read_offset, start_at
from turnwire.server.streams.shaped import ShapedLog, shaped_ring
from turnwire.server.streams.stream import run_stream
from turnwire.wire.jsonrpc import raw

LARGEST_PART = 1000


class EventsQuery(ShapeQuery, frozen=True):
    """Where to begin, for clients that cannot set a header."""

    after: Annotated[str, Meta(description="the id of the last event seen; 0 is the beginning")] | None = None
    epoch: Annotated[str, Meta(description="the epoch that the id is of")] | None = None
    snapshot: Annotated[bool, Meta(description="send a session_snapshot first")] = False


class ManyEventsQuery(ShapeQuery, frozen=True):
    """Which sessions, and where to begin."""

    after: Annotated[str, Meta(description="the id of the last event of this stream")] | None = None
    session: Annotated[str, Meta(description="a session; may be given more than once")] | None = None
    sessions: Annotated[str, Meta(description="several sessions with commas between")] | None = None


class LogQuery(ShapeQuery, frozen=True):
    """Which events."""

    after: Annotated[str, Meta(description="the id of the event to begin behind; 0 is the beginning")] = "0"
    epoch: Annotated[str, Meta(description="the epoch that the id is of")] | None = None
    limit: Annotated[int, Meta(ge=1, le=LARGEST_PART, description="so many events at most")] = 100


class LogPart(Struct, frozen=True, kw_only=True, rename="camel"):
    """Some events of a session, one after the other."""

    session_id: SessionId
    event_epoch: Epoch
    last_event_id: int
    """The newest event that there is."""
    next_after: int
    """What to go on behind; there is more as long as it is not the newest."""
    events: list[Raw]
    """Envelopes, as the stream shows them."""


# -- one session ---------------------------------------------------------------------------------------------


async def session_events(call: Call, send: Send) -> None:
    """The events of one session."""
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
    headers: dict[str, str] = dict.fromkeys(EPOCH_HEADERS, head.epoch)
    stream = SessionStream(head, position, query.shape, opening, replays=offset is not None)
    await tell_session(call, send, headers, stream)


async def _snapshot(call: Call, session: Readable) -> tuple[bytes, int]:
    """The snapshot as a frame, and the offset it stands at: the stream goes on from there."""
    view, epoch = await call.daemon.node.newest(call.session_id)
    data = snapshot_of(call.session_id, view, epoch, view.offset, session.state.queue, call.query.shape)
    return stream_frame("session_snapshot", data), view.offset


def _epoch(call: Call) -> Epoch | None:
    named = (call.request.headers.get(name) for name in EPOCH_HEADERS)
    text = next((each for each in named if each), call.query.epoch)
    return Epoch(text) if text else None


async def part_of_log(call: Call) -> Reply:
    """Some events of one session, bounded in number and bytes."""
    query: LogQuery = call.query
    node = call.daemon.node
    ring = shaped_ring(node, await node.tail(call.session_id), call.session_id, query.shape)
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


async def _lines(log: ShapedLog, after: int, upto: int) -> tuple[list[Raw], int]:
    """Events as lines, a page at most, and where they end: before `upto` too where that is not shown here yet."""
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
    """The events of some sessions, or of all that there are and will be."""
    text = call.request.headers.get("last-event-id") or call.query.after
    stream = ManyStream(call, read_cursor(text) if text else None, call.query.shape)
    wanted = _wanted(call)
    for session_id in wanted:
        try:
            # Opening it first lets its tail know whether it is closed: then the stream can end.
            await call.daemon.node.peek(session_id)
            await stream.add_named(session_id)
        except SessionNotFound:
            stream.add_missing(session_id)
    await run_stream(call, send, {}, stream.run_named if wanted else stream.run_all)


def _wanted(call: Call) -> list[SessionId]:
    """The sessions that the stream shows; none means all."""
    query = call.request.query_params
    texts = [*query.getlist("session"), *(each for many in query.getlist("sessions") for each in many.split(","))]
    wanted = list(dict.fromkeys(SessionId(each) for each in texts if each))
    if not all(map(call.who.may_touch, wanted)):
        raise Forbidden("this token is for another session")
    return wanted or ([call.who.session_id] if call.who.session_id is not None else [])


ENDPOINTS = (
    Endpoint(
        method="GET",
        path=PATH,
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
