"""The methods that clients call: one row for each, and how a call is served.

Takes a request or a notification; finds its row, checks the role, has it done and answered. What begins with `_` is
the agent's own affair and goes there and back as it is. Never lets a slow method keep later messages waiting: such
a one is a task of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import anyio
from msgspec import Raw

from turnwire.core.correlation import exact
from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.server.access.identity import Role
from turnwire.server.acp import acting, opening, setting, stopping
from turnwire.server.acp.failures import read_params, refusal
from turnwire.server.acp.front import Front
from turnwire.wire.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    REQUEST_CANCELLED,
    Notification,
    Request,
    encode,
)
from turnwire.wire.jsonrpc import Failure as FailureFrame
from turnwire.wire.methods import is_extension
from turnwire.wire.peek import peek_session_id

REQUEST_OPEN = "request_open"
"""By which a client that asks again after a loss knows that its first request is not lost."""

logger = logging.getLogger(__name__)

Act = Callable[[Front, Request], Awaitable[Raw | None]]
Hear = Callable[[Front, Raw], Awaitable[None]]


class Row(NamedTuple):
    """A method."""

    act: Act
    """Gives the result; none if the answer comes another way."""
    role: Role
    is_slow: bool = True
    """It waits for somebody, so it is done beside what comes after it."""
    on_session: bool = False
    """It is answered on the session's stream."""
    versions: tuple[int, ...] = (1, 2)


_READ, _ACT, _OWN = Role.OBSERVER, Role.CONTROLLER, Role.OWNER

ROWS: dict[str, Row] = {
    "authenticate": Row(setting.login, _ACT, versions=(1,)),
    "auth/login": Row(setting.login, _ACT, versions=(2,)),
    "logout": Row(setting.logout, _OWN, versions=(1,)),
    "auth/logout": Row(setting.logout, _OWN, versions=(2,)),
    "session/new": Row(opening.new, _ACT),
    "session/fork": Row(opening.fork, _ACT),
    "session/list": Row(setting.list_sessions, _READ),
    "session/load": Row(opening.load, _READ, is_slow=False, versions=(1,)),
    "session/resume": Row(opening.load, _READ, is_slow=False),
    "session/attach": Row(opening.attach, _READ, is_slow=False),
    "session/detach": Row(acting.detach, _READ, is_slow=False),
    "session/close": Row(acting.close, _ACT, on_session=True),
    "session/delete": Row(acting.delete, _OWN),
    "session/prompt": Row(acting.prompt, _ACT, is_slow=False, on_session=True),
    "session/set_mode": Row(setting.choose, _ACT, on_session=True, versions=(1,)),
    "session/set_model": Row(setting.choose_model, _ACT, on_session=True, versions=(1,)),
    "session/set_config_option": Row(setting.choose, _ACT, on_session=True),
    "tool_call/cancel": Row(stopping.stop, _ACT, on_session=True, versions=(2,)),
    "terminal/cancel": Row(stopping.stop, _ACT, on_session=True, versions=(2,)),
}
"""Every request that a client may send, but for `initialize`."""

NOTIFICATIONS: dict[str, tuple[Hear, Role]] = {
    "session/cancel": (acting.cancel, _ACT),
    "session/ready": (acting.ready, _READ),
    "_session/ready": (acting.ready, _READ),
    "$/cancel_request": (acting.take_back, _READ),
}


async def call(front: Front, request: Request) -> None:
    """Serve a request of the client."""
    row = ROWS.get(request.method)
    if row is None and is_extension(request.method):
        row = Row(_pass_on, _ACT, on_session=True)
    if row is None or front.client.version not in row.versions:
        front.put(refusal(request.id, METHOD_NOT_FOUND, "there is no such method"), None)
    elif acting.known_ids(front, request.id):
        facts = {"code": REQUEST_OPEN}
        front.put(refusal(request.id, INVALID_REQUEST, "a request with this id is open already", facts), None)
    elif row.is_slow:
        scope = front.start(_serve, front, row, request)
        if row.on_session:
            front.requests[exact(request.id)] = scope
    else:
        await _serve(front, row, request)


async def _serve(front: Front, row: Row, request: Request) -> None:
    named = peek_session_id(request.params)
    seat = front.seats.get(SessionId(named)) if row.on_session and named is not None else None
    try:
        front.need(row.role)
        result = await row.act(front, request)
        if result is not None:
            front.answer(request.id, result, seat)
        if request.method == "session/close" and seat is not None:
            seat.leave_behind_notes(partial(front.start, acting.leave, front, seat))
    except TurnwireError as error:
        front.fail(request.id, error, seat)
    except anyio.get_cancelled_exc_class():
        front.put(refusal(request.id, REQUEST_CANCELLED, "the request was taken back"), seat)
        raise
    except Exception:  # whatever it is, its client must hear of it
        logger.exception("a request failed", extra={"event": "acp_request_failed", "method": request.method})
        front.fail(request.id, TurnwireError("something went wrong here; the daemon's log says what"), seat)
    finally:
        front.requests.pop(exact(request.id), None)


async def hear(front: Front, said: Notification) -> None:
    """Take a notification of the client. What is wrong with it is nobody's to hear."""
    known = NOTIFICATIONS.get(said.method)
    try:
        if known is not None:
            front.need(known[1])
            await known[0](front, said.params)
        elif is_extension(said.method):
            front.need(_ACT)
            session_id, params = _for_agent(front, said.params)
            await front.daemon.node.agents.notify(session_id, said.method, params)
    except TurnwireError as error:
        extra = {"event": "acp_notification_refused", "method": said.method, "code": error.code}
        logger.info("a notification of a client was refused", extra=extra)


async def _pass_on(front: Front, request: Request) -> Raw | None:
    """A request beside ACP: to the agent as it is, and its answer back as it is."""
    session_id, params = _for_agent(front, request.params)
    answer = await front.daemon.node.agents.call(session_id, request.method, params)
    if isinstance(answer, FailureFrame):
        seat = None if session_id is None else front.seats.get(session_id)
        front.put(encode(FailureFrame(request.id, answer.error)), seat)
        return None
    return answer.result


def _for_agent(front: Front, params: Raw) -> tuple[SessionId | None, dict[str, Raw]]:
    """The session that it is about, and the rest of the params."""
    members = read_params(params, dict[str, Raw])
    named = peek_session_id(params)
    if named is None:
        return None, members
    del members["sessionId"]
    return front.attached(SessionId(named)).session_id, members
