"""Permission requests of the agent to its users, including forms: the open ones, and their answers.

Any client that may control the session may answer. The first answer counts. A repeat of it is harmless, and a
different one gets the answer that it came too late. The routes named `permission` are for older clients: they
answer 404 if an answer does not count.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.errors import (
    BadRequest,
    InvalidOption,
    LimitExceeded,
    LogFull,
    PermissionNotFound,
    SessionClosed,
    SessionNotFound,
    UnknownClient,
)
from turnwire.ids import ChildId, ClientId, PermissionId, PromptId, SessionId
from turnwire.projections.translate.views import permission_request_in
from turnwire.server.access.tokens import Role
from turnwire.server.bodies import BodyKind
from turnwire.server.endpoint import Call, Endpoint, Reply, ShapeQuery
from turnwire.server.routes.turns import ACTS, READS
from turnwire.session.events import PermissionRequested
from turnwire.session.inputs import AnswerPermission
from turnwire.session.permissions import ACTIONS, NOT_ANSWERED, PermissionAnswer
from turnwire.session.state import SessionState
from turnwire.wire.jsonrpc import UNREADABLE, raw
from turnwire.wire.methods import SESSION_REQUEST_PERMISSION


class PermissionRequest(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A permission request without an answer."""

    request_id: PermissionId
    session_id: SessionId
    method: str
    """`session/request_permission` or `elicitation/create`."""
    at: int
    params: Raw
    """All parameters that the agent sent."""
    tool_call: Raw | UnsetType = UNSET
    """The tool call of a permission request, in the form of ACP v1."""
    title: Raw | UnsetType = UNSET
    description: Raw | UnsetType = UNSET
    subject: Raw | UnsetType = UNSET
    """The subject of a permission request, in the form of ACP v2."""
    options: Raw
    """The options to select from."""
    prompt_id: PromptId | None = None
    child: ChildId | None = None
    """The child session that sent the request."""


class PermissionRequestList(Struct, frozen=True):
    """Open permission requests, oldest first."""

    permissions: list[PermissionRequest]


class Selected(Struct, frozen=True, tag="selected", tag_field="outcome", rename="camel"):
    option_id: str


class Refused(Struct, frozen=True, tag="cancelled", tag_field="outcome"):
    """No option is selected; the agent is notified that the user made no choice."""


Outcome: TypeAlias = Selected | Refused


class AnswerBody(Struct, frozen=True, kw_only=True):
    """`outcome` answers a permission request, `answer` an elicitation."""

    outcome: Outcome | None = None
    answer: dict[str, Any] | None = None
    """`{"action": "accept", "content": {…}}`, or the action decline or cancel. Forwarded to the agent unchanged."""


class AnswerReceipt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of an answer."""

    won: bool
    """True if this answer counts, or if it repeats the answer of the same client that counts."""
    answer: Raw
    """The answer that counts, as sent to the agent."""
    outcome: Raw | UnsetType = UNSET
    """The outcome of the answer that counts, for a permission request."""
    by: ClientId | None = None
    """The client whose answer counts; absent if that request named no client id."""


class Nothing(Struct, frozen=True):
    """An empty object."""


class _Asked(Struct, rename="camel"):
    tool_call: Raw | UnsetType = UNSET
    title: Raw | UnsetType = UNSET
    description: Raw | UnsetType = UNSET
    subject: Raw | UnsetType = UNSET
    options: Raw = Raw(b"[]")


class _Answered(Struct):
    outcome: Raw | UnsetType = UNSET


# -- requests ------------------------------------------------------------------------------------------------


async def list_requests(call: Call) -> Reply:
    state = (await call.daemon.node.peek(call.session_id)).state
    if not state.permissions:
        return Reply(PermissionRequestList([]))
    view, _ = await call.daemon.node.newest(call.session_id)
    shown = (permission_request_in(view, each, call.query.shape.version) for each in view.permissions.values())
    return Reply(PermissionRequestList([_shown(call.session_id, each) for each in shown]))


def _shown(session_id: SessionId, asked: PermissionRequested) -> PermissionRequest:
    try:
        read = msgspec.json.decode(asked.params, type=_Asked)
    except UNREADABLE:
        read = _Asked()
    return PermissionRequest(
        request_id=asked.request_id,
        session_id=session_id,
        method=asked.method,
        at=asked.at,
        params=asked.params,
        tool_call=read.tool_call,
        title=read.title,
        description=read.description,
        subject=read.subject,
        options=read.options,
        prompt_id=asked.prompt_id,
        child=asked.child,
    )


# -- answers -------------------------------------------------------------------------------------------------


async def answer_request(call: Call) -> Reply:
    counts = await _answer(call, call.session_id)
    try:
        outcome = msgspec.json.decode(counts.answer, type=_Answered).outcome
    except UNREADABLE:
        outcome = UNSET
    return Reply(AnswerReceipt(won=counts.won, answer=counts.answer, outcome=outcome, by=counts.client_id))


async def answer_compat(call: Call) -> Reply:
    return await _answer_or_404(call, call.session_id)


async def answer_anywhere(call: Call) -> Reply:
    """Answer without a session id. All active sessions are searched: one with an open request is always active."""
    node, request_id = call.daemon.node, _named(call)
    for session_id in filter(call.who.may_touch, await node.active()):
        with suppress(SessionNotFound):
            if _knows((await node.peek(session_id)).state, request_id):
                return await _answer_or_404(call, session_id)
    raise PermissionNotFound("no such permission request is open; it may have ended with its turn")


async def _answer_or_404(call: Call, session_id: SessionId) -> Reply:
    try:
        counts = await _answer(call, session_id)
    except SessionClosed:
        raise PermissionNotFound("the session is closed, and its permission requests with it") from None
    if not counts.won:
        raise PermissionNotFound("somebody else has answered this permission request")
    return Reply(Nothing())


async def _answer(call: Call, session_id: SessionId) -> PermissionAnswer:
    body: AnswerBody = call.body
    request_id = _named(call)
    state = (await call.daemon.node.peek(session_id)).state
    asked = next((each for each in state.permissions if each.request_id == request_id), None)
    answered = await call.submit(
        AnswerPermission,
        session_id,
        request_id=request_id,
        answer=_result(body, None if asked is None else asked.method),
        option_id=body.outcome.option_id if isinstance(body.outcome, Selected) else None,
    )
    return cast("PermissionAnswer", answered)


def _result(body: AnswerBody, method: str | None) -> Raw:
    """Return the JSON-RPC result for the agent. The method of a request that is no longer open is unknown."""
    if (body.outcome is None) == (body.answer is None):
        raise BadRequest("give `outcome` for a permission request, or `answer` for an elicitation")
    if body.answer is not None:
        if method == SESSION_REQUEST_PERMISSION:
            # A selection is checked against the offered options, and only an outcome names a selection.
            raise BadRequest("this is a permission request; answer it with `outcome`")
        if body.answer.get("action") not in ACTIONS:
            raise BadRequest(f"the `action` of an answer is one of {', '.join(ACTIONS)}")
        if not isinstance(body.answer.get("content"), dict | None):
            raise BadRequest("the `content` of an answer is an object with the fields of the form")
        return raw(body.answer)
    return (
        raw({"outcome": body.outcome})
        if isinstance(body.outcome, Selected)
        else NOT_ANSWERED[method or SESSION_REQUEST_PERMISSION]
    )


def _named(call: Call) -> PermissionId:
    return PermissionId(call.request.path_params["request_id"])


def _knows(state: SessionState, request_id: PermissionId) -> bool:
    return any(each.request_id == request_id for each in (*state.permissions, *state.resolved))


_COMPAT_REFUSES = (
    *READS,
    BadRequest,
    UnknownClient,
    InvalidOption,
    PermissionNotFound,
    LimitExceeded,
    LogFull,
)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/session/{session_id}/permissions",
        act=list_requests,
        summary="Permission requests of the agent that wait for an answer",
        role=Role.OBSERVER,
        query=ShapeQuery,
        gives=PermissionRequestList,
        refuses=READS,
        tag="permissions",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/permissions/{request_id}",
        act=answer_request,
        summary="Answer a permission request; the first answer counts, and every answer hears which one does",
        role=Role.CONTROLLER,
        takes=AnswerBody,
        body=BodyKind.CONTENT,
        gives=AnswerReceipt,
        refuses=(*ACTS, BadRequest, InvalidOption, PermissionNotFound),
        tag="permissions",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/permission/{request_id}",
        act=answer_compat,
        summary="Answer a permission request, as older clients do: 404 if the answer does not count",
        role=Role.CONTROLLER,
        takes=AnswerBody,
        body=BodyKind.CONTENT,
        gives=Nothing,
        refuses=_COMPAT_REFUSES,
        tag="permissions",
    ),
    Endpoint(
        method="POST",
        path="/permission/{request_id}",
        act=answer_anywhere,
        summary="Answer a permission request without naming its session, as older clients do",
        role=Role.CONTROLLER,
        takes=AnswerBody,
        body=BodyKind.CONTENT,
        gives=Nothing,
        narrows=True,
        refuses=_COMPAT_REFUSES,
        tag="permissions",
    ),
)
"""The routes of permissions."""
