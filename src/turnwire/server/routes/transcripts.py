"""A session to read, open or closed: what was said, everything that happened, and why it stands still.

The whole log as one file is written page by page, so one of any length costs one page of memory. Observers are not
shown frames of the agent: they may hold secrets.
"""

from __future__ import annotations

import re

import anyio
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict
from starlette.types import Send

from turnwire.core.envelope import Form
from turnwire.core.state import Phase
from turnwire.core.translate.views import items_in, latest_in
from turnwire.core.view import AnyItem, ChildRecord, Latest, Terminal, TurnRecord
from turnwire.errors import PositionLost
from turnwire.ids import ClientId, Epoch, SessionId
from turnwire.runtime.evidence import Explanation
from turnwire.server.access.identity import Role
from turnwire.server.daemon.session_list import Standing, iso
from turnwire.server.endpoint import Call, Endpoint, Reply, ShapeName, ShapeQuery, hang_up
from turnwire.server.streams.shaped import ShapedLog

_ODD = re.compile(r"[^A-Za-z0-9_.-]")


class Transcript(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What clients read of a session, as of one event."""

    session_id: SessionId
    event_epoch: Epoch
    last_event_id: int
    workspace_cwd: str
    created_at: str
    state: Standing
    title: str | None = None
    items: list[AnyItem]
    latest: Latest
    turns: list[TurnRecord]
    terminals: dict[str, Terminal] = {}
    background: Raw | UnsetType = UNSET
    children: list[ChildRecord] = []
    """The child sessions; each stands where it was announced, and what was said in it has a route of its own."""


class ExportQuery(ShapeQuery, frozen=True):
    """A log is kept as it is, unless somebody asks otherwise."""

    acp: ShapeName = "agent"


class SessionExplanation(Explanation, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where a session stands and why, with the evidence."""

    session_id: SessionId
    clients: dict[ClientId, str]
    """Attached clients by id, with their role: who is connected, or was heard of in the last quarter of an hour."""
    attended: bool
    """Whether somebody who can answer is there now."""


async def show(call: Call) -> Reply:
    node, session_id = call.daemon.node, call.session_id
    view, offset = await node.view_at(session_id)
    session, version = view.session, call.query.shape.version
    return Reply(
        Transcript(
            session_id=session_id,
            event_epoch=(await node.head(session_id)).epoch,
            last_event_id=offset,
            workspace_cwd=session.cwd,
            created_at=iso(session.created_at),
            state="closed" if session.phase is Phase.CLOSED else view.state,
            title=session.title,
            items=items_in(view, version),
            latest=latest_in(view, version),
            turns=list(view.turns.values()),
            terminals=view.terminals,
            background=UNSET if view.background is None else view.background,
            children=[each.record for each in view.children.values()],
        )
    )


async def export(call: Call, send: Send) -> None:
    daemon, session_id = call.daemon, call.session_id
    limits = daemon.limits
    head = await daemon.node.head(session_id)
    shaped = ShapedLog(daemon.log, session_id, head.epoch, call.query.shape, limits)
    name = _ODD.sub("_", session_id)[:128]
    headers = {
        "content-type": call.endpoint.media_type,
        "content-disposition": f'attachment; filename="{name}.ndjson"',
        "cache-control": "no-store",
        "turnwire-epoch": head.epoch,
    }
    raw = [(key.encode(), value.encode()) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})
    fold = await shaped.fold_at(head.first - 1)
    while fold.offset < head.head:
        fold, lines = await shaped.read(fold, head.head, Form.LINE)
        with anyio.move_on_after(limits.write_timeout_s) as waiting:
            await send({"type": "http.response.body", "body": b"".join(lines), "more_body": True})
        if waiting.cancelled_caught:
            # It takes nothing. The file has no proper end then, so nobody takes a part for the whole.
            await hang_up(call.request)
            return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def explain(call: Call) -> Reply:
    daemon, session_id = call.daemon, call.session_id
    for_owner = call.who.role is Role.OWNER
    known = asdict(await daemon.node.agents.explain(session_id, for_owner=for_owner))
    attached = (await daemon.node.session(session_id)).state.clients
    clients = {each: attached[each] for each in daemon.clients.listed(session_id, attached)}
    return Reply(
        SessionExplanation(
            **known, session_id=session_id, clients=clients, attended=daemon.clients.attended(session_id)
        )
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/session/{session_id}/transcript",
        act=show,
        summary="What was said and done, folded from the log",
        role=Role.OBSERVER,
        query=ShapeQuery,
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
        path="/session/{session_id}/explain",
        act=explain,
        summary="Why a session stands where it stands, with the evidence",
        role=Role.CONTROLLER,
        gives=SessionExplanation,
        tag="transcript",
    ),
)
"""The routes that show a session's past."""
