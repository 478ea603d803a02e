"""The status of a session: present clients, the running turn, pending requests, and the last failure.

It is cheap: the view is read only if there is a permission request, a failure or background work to report.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from msgspec import UNSET, Raw, Struct, UnsetType, json

from turnwire.ids import ChildId, PermissionId, PromptId, SessionId
from turnwire.projections.translate.views import permission_request_in
from turnwire.projections.view import View
from turnwire.server.access.tokens import Role
from turnwire.server.daemon.session_list import Standing, iso
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.routes.background import BackgroundWork, shown
from turnwire.session.events import PermissionRequested
from turnwire.wire.jsonrpc import UNREADABLE
from turnwire.wire.methods import SESSION_REQUEST_PERMISSION


class InteractionAction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The action that the agent asks permission for."""

    type: str | None = None
    title: str | None = None
    content: Raw | UnsetType = UNSET
    locations: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET


class PendingInteraction(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An open permission request of the agent."""

    request_id: PermissionId
    kind: Literal["permission", "user_question"]
    method: str
    prompt_id: PromptId | None = None
    child: ChildId | None = None
    """The child session that sent the request."""
    created_at: str
    action: InteractionAction
    options: list[dict[str, Any]]


class LastTurnError(Struct, frozen=True, kw_only=True, rename="camel"):
    """The error of the last turn."""

    code: str
    message: str
    prompt_id: PromptId


class SessionStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    session_id: SessionId
    workspace_cwd: str
    state: Standing
    client_count: int
    has_active_prompt: bool
    is_waiting_for_permission: bool
    pending_interactions: list[PendingInteraction]
    has_turn_error: bool
    turn_error: LastTurnError | None = None
    created_at: str
    updated_at: str
    background: list[BackgroundWork] = []
    """Work that the agent continues, whether or not a turn runs: the session is not idle for its agent."""
    queue_held: str | None = None
    """Why no prompt of the queue is started."""
    attended: bool
    """True if a client that can answer is present now."""
    running_children: list[ChildId] = []
    """The child sessions that are working or waiting for users."""


class _Told(NamedTuple):
    """The members that come from the view."""

    interactions: list[PendingInteraction]
    error: LastTurnError | None
    background: list[BackgroundWork]


async def show(call: Call) -> Reply:
    daemon, session_id = call.daemon, call.session_id
    state = (await daemon.node.peek(session_id)).state
    entry = await daemon.sessions.entry(session_id)
    has_error = state.last is not None and state.last.stop_reason is None
    work = daemon.node.still_running(state)
    last = None if state.last is None else state.last.prompt_id
    told = _Told([], None, [])
    if has_error or state.permissions or work:
        told = await daemon.node.look(
            session_id,
            lambda view: _Told(
                [_interaction(permission_request_in(view, each, 1)) for each in view.permissions.values()],
                _error(view, last),
                shown(view, state.agent_version, work),
            ),
        )
    return Reply(
        SessionStatus(
            session_id=session_id,
            workspace_cwd=entry.cwd,
            state=entry.state,
            client_count=entry.client_count,
            has_active_prompt=entry.has_active_prompt,
            is_waiting_for_permission=bool(state.permissions),
            pending_interactions=told.interactions,
            has_turn_error=has_error,
            turn_error=told.error,
            created_at=entry.created_at,
            updated_at=entry.updated_at,
            background=told.background,
            queue_held=state.held,
            attended=daemon.clients.attended(session_id),
            running_children=list(state.running_children),
        )
    )


def _error(view: View, prompt_id: PromptId | None) -> LastTurnError | None:
    record = view.turn(prompt_id) if prompt_id is not None else None
    if record is None or record.outcome is None or record.outcome.error is None:
        return None
    error = record.outcome.error
    return LastTurnError(code=error.code, message=error.message, prompt_id=record.prompt_id)


class _Tool(Struct, rename="camel"):
    kind: Any = None
    title: Any = None
    content: Raw | UnsetType = UNSET
    locations: Raw | UnsetType = UNSET
    raw_input: Raw | UnsetType = UNSET


class _Asked(Struct, rename="camel"):
    """The members of a permission request in v1, in v2 and of a form, combined."""

    title: Any = None
    message: Any = None
    tool_call: _Tool | None = None
    options: list[dict[str, Any]] = []


def _interaction(asked: PermissionRequested) -> PendingInteraction:
    try:
        params = json.decode(asked.params, type=_Asked)
    except UNREADABLE:
        params = _Asked()
    tool = params.tool_call or _Tool()
    title = next((each for each in (params.title, params.message, tool.title) if isinstance(each, str)), None)
    action = InteractionAction(
        type=tool.kind if isinstance(tool.kind, str) else None,
        title=title,
        content=tool.content,
        locations=tool.locations,
        input=tool.raw_input,
    )
    return PendingInteraction(
        request_id=asked.request_id,
        kind="permission" if asked.method == SESSION_REQUEST_PERMISSION else "user_question",
        method=asked.method,
        prompt_id=asked.prompt_id,
        child=asked.child,
        created_at=iso(asked.at),
        action=action,
        options=params.options,
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/session/{session_id}/status",
        act=show,
        summary="How a session is doing: clients, the turn, open permission requests, the last failure",
        role=Role.OBSERVER,
        gives=SessionStatus,
    ),
)
"""The route of a session's status."""
