"""Child sessions that the agent of a session has announced: their transcripts, and stopping one.

A child has no log and no stream: its events are in its session's, with its id as `child`. Its permission requests
are answered through the session's routes. The agent decides which actions clients may take on a child.
"""

from __future__ import annotations

from functools import partial

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.errors import ChildRestricted, NotFound
from turnwire.ids import ChildId, PermissionId, PromptId, SessionId
from turnwire.projections.view import AnyItem, ChildRecord, Terminal, View
from turnwire.projections.view.view import ChildView
from turnwire.server.access.tokens import Role
from turnwire.server.daemon.session_list import iso
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.routes.transcripts import Earlier, TranscriptQuery, earlier_of, page_of
from turnwire.server.routes.turns import ACTS, READS
from turnwire.session.inputs import CancelChild
from turnwire.session.state import ChildState


class ChildStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A child session and its state."""

    id: ChildId
    session_id: SessionId
    parent_id: str
    """The session or child that announced it."""
    state: ChildState
    """`unknown` if its agent has not reported a state or has exited."""
    cancellable: bool
    workspace_cwd: str
    announced_at: str
    title: str | None = None
    description: str | None = None
    prompt_id: PromptId | None = None
    """The turn in which it was announced."""
    permissions: list[PermissionId]
    """Its permission requests without an answer."""


class ChildList(Struct, frozen=True):
    """The children of a session and their children, in the order of their announcement."""

    children: list[ChildStatus]


class ChildTranscript(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The transcript of a child session."""

    child: ChildStatus
    last_event_id: int
    first: int
    before: int | None = None
    """The cursor for earlier items, as in the session's transcript."""
    items: list[AnyItem]
    terminals: dict[str, Terminal] = {}
    background: Raw | UnsetType = UNSET
    earlier: Earlier | None = None


async def list_children(call: Call) -> Reply:
    view, _ = await call.daemon.node.newest(call.session_id)
    return Reply(ChildList([_status(call.session_id, view, each.record) for each in view.children.values()]))


async def show(call: Call) -> Reply:
    return Reply(await call.daemon.node.look(call.session_id, partial(_transcript, call)))


def _transcript(call: Call, view: View) -> ChildTranscript:
    child = _found(view, _named(call))
    page = page_of(child.view, call.query, call.daemon.limits.page_bytes)
    return ChildTranscript(
        child=_status(call.session_id, view, child.record),
        last_event_id=view.offset,
        first=page.first,
        before=page.first or None,
        items=page.items,
        terminals=page.terminals,
        background=UNSET if child.view.background is None else child.view.background,
        earlier=earlier_of(child.view, page),
    )


async def cancel(call: Call) -> Reply:
    await call.submit(CancelChild, child=_named(call))
    return Reply()


def _named(call: Call) -> ChildId:
    return ChildId(call.request.path_params["child_id"])


def _found(view: View, child_id: ChildId) -> ChildView:
    child = view.children.get(child_id)
    if child is None:
        raise NotFound("the session has no such child; ask for its children")
    return child


def _status(session_id: SessionId, view: View, record: ChildRecord) -> ChildStatus:
    return ChildStatus(
        id=record.child_id,
        session_id=session_id,
        parent_id=record.parent_id or session_id,
        state=record.state,
        cancellable=record.can_cancel,
        workspace_cwd=_cwd(view, record),
        announced_at=iso(record.announced_at),
        title=record.title,
        description=record.description,
        prompt_id=record.prompt_id,
        permissions=[each.request_id for each in view.permissions.values() if each.child == record.child_id],
    )


def _cwd(view: View, record: ChildRecord) -> str:
    """Return the child's working directory: its parent's, unless the agent names another."""
    if record.cwd is not None or record.parent_id is None:
        return record.cwd or view.session.cwd
    return _cwd(view, view.children[record.parent_id].record)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/session/{session_id}/children",
        act=list_children,
        summary="The child sessions that the agent has announced, and what they do",
        role=Role.OBSERVER,
        gives=ChildList,
        refuses=READS,
        tag="children",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/children/{child_id}/transcript",
        act=show,
        summary="What was said and done in a child session",
        role=Role.OBSERVER,
        query=TranscriptQuery,
        gives=ChildTranscript,
        refuses=(*READS, NotFound),
        tag="children",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/children/{child_id}/cancel",
        act=cancel,
        summary="Stop what a child session does, if its agent permits that; the session's turn goes on",
        role=Role.CONTROLLER,
        status=204,
        refuses=(*ACTS, NotFound, ChildRestricted),
        tag="children",
    ),
)
"""The routes of child sessions."""
