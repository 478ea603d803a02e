"""Permission requests of the agent to its users, forms among them: which are open, and their answers.

Anybody who may control the session may answer. The first answer counts, a repeat of it is harmless, and another one
is told that it came too late. The routes named `permission` are those of older clients: to them an answer that does
not count is 404.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.events import PermissionRequested
from turnwire.core.inputs import AnswerPermission
from turnwire.core.permissions import ACTIONS, NOT_ANSWERED, PermissionAnswer
from turnwire.core.state import SessionState
from turnwire.core.translate.views import permission_request_in
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
from turnwire.server.access.identity import Role
from turnwire.server.bodies import BodyKind
from turnwire.server.endpoint import Call, Endpoint, Reply, ShapeQuery
from turnwire.server.routes.turns import ACTS, READS
from turnwire.wire.jsonrpc import UNREADABLE, raw
from turnwire.wire.methods import SESSION_REQUEST_PERMISSION


class PermissionRequest(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A permission request that waits for an answer."""

    request_id: PermissionId
    session_id: SessionId
    method: str
    """`session/request_permission` or `elicitation/create`."""
    at: int
    params: Raw
    """All that the agent sent with it."""
    tool_call: Raw | UnsetType = UNSET
    """What it wants to do, for a permission request in the words of v1."""
    title: Raw | UnsetType = UNSET
    description: Raw | UnsetType = UNSET
    subject: Raw | UnsetType = UNSET
    """The same in the words of v2."""
    options: Raw
    """What can be selected."""
    prompt_id: PromptId | None = None
    child: ChildId | None = None
    """The child session that asks."""


class PermissionRequestList(Struct, frozen=True):
    """Open permission requests, oldest first."""

    permissions: list[PermissionRequest]


class Selected(Struct, frozen=True, tag="selected", tag_field="outcome", rename="camel"):
    option_id: str


class Refused(Struct, frozen=True, tag="cancelled", tag_field="outcome"):
    """No option; the agent hears that the user did not choose."""


Outcome: TypeAlias = Selected | Refused


class AnswerBody(Struct, frozen=True, kw_only=True):
    """`outcome` answers a permission request, `answer` an elicitation."""

    outcome: Outcome | None = None
    answer: dict[str, Any] | None = None
    """`{"action": "accept", "content": {…}}`, or the action decline or cancel. The agent gets it as it is."""


class AnswerReceipt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of an answer."""

    won: bool
    """It counts, or it is the same as the one of the same client that does."""
    answer: Raw
    """The answer that counts, as the agent got it."""
    outcome: Raw | UnsetType = UNSET
    """Its outcome, for a permission request."""
    by: ClientId | None = None
    """Whose it is; none if nobody's who named a client id."""


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
    """The request is looked for in all sessions that are at work: one with a request always is."""
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
    answered = AnswerPermission(
        at=call.daemon.clock.now_ms(),
        author=call.who.name,
        client_id=await call.daemon.clients.known(session_id, call.client_id, call.who),
        request_id=request_id,
        answer=_result(body, None if asked is None else asked.method),
        option_id=body.outcome.option_id if isinstance(body.outcome, Selected) else None,
    )
    return cast("PermissionAnswer", await call.daemon.node.submit(session_id, answered))


def _result(body: AnswerBody, method: str | None) -> Raw:
    """The JSON-RPC result for the agent. Of a request that is not open any more the method is not known."""
    if (body.outcome is None) == (body.answer is None):
        raise BadRequest("give `outcome` for a permission request, or `answer` for an elicitation")
    if body.answer is not None:
        if method == SESSION_REQUEST_PERMISSION:
            # What is selected is checked against what was offered, and only an outcome says what is selected.
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
