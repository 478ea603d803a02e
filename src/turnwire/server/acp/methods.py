"""The methods that clients call: one row for each, and how a call is served.

Which versions have a method is in the table of `wire.methods`; here is who may call it and what it does. What
begins with `_` is the agent's own affair and goes there and back as it is. A slow method keeps no later message
waiting: it is a task of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio
from msgspec import Raw

from turnwire.core.correlation import exact
from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.server.access.identity import Role
from turnwire.server.acp import passthrough, prompt_methods, session_methods
from turnwire.server.acp.client_state import ClientState
from turnwire.server.acp.rpc import refusal
from turnwire.wire.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    REQUEST_CANCELLED,
    Notification,
    Request,
)
from turnwire.wire.methods import (
    AUTH_LOGIN,
    AUTH_LOGOUT,
    AUTHENTICATE,
    CANCEL_REQUEST,
    LOGOUT,
    SESSION_ATTACH,
    SESSION_CANCEL,
    SESSION_CLOSE,
    SESSION_DELETE,
    SESSION_DETACH,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_LOAD,
    SESSION_NEW,
    SESSION_PROMPT,
    SESSION_READY,
    SESSION_READY_DRAFT,
    SESSION_RESUME,
    SESSION_SET_CONFIG_OPTION,
    SESSION_SET_MODE,
    SESSION_SET_MODEL,
    TERMINAL_CANCEL,
    TOOL_CALL_CANCEL,
    find_method,
    is_extension,
)
from turnwire.wire.peek import peek_session_id

TAKEN_BACK = 499
"""The status, in the audit, of a request whose client did not wait for it."""
REQUEST_OPEN = "request_open"
"""By which a client that asks again after a loss knows that its first request is not lost."""

logger = logging.getLogger(__name__)

Act = Callable[[ClientState, Request], Awaitable[Raw | None]]
Hear = Callable[[ClientState, Raw], Awaitable[None]]


class Row(NamedTuple):
    """A method."""

    act: Act
    """Gives the result; none if the answer comes another way."""
    role: Role
    is_slow: bool = True
    """It waits for somebody, so it is done beside what comes after it."""
    on_session: bool = False
    """It is answered on the session's stream."""
    tells_who: bool = True
    """It may change something, so it is audited."""


_READ, _ACT, _OWN = Role.OBSERVER, Role.CONTROLLER, Role.OWNER

ROWS: dict[str, Row] = {
    AUTHENTICATE: Row(passthrough.login, _ACT),
    AUTH_LOGIN: Row(passthrough.login, _ACT),
    LOGOUT: Row(passthrough.logout, _OWN),
    AUTH_LOGOUT: Row(passthrough.logout, _OWN),
    SESSION_NEW: Row(session_methods.new, _ACT),
    SESSION_FORK: Row(session_methods.fork, _ACT),
    SESSION_LIST: Row(session_methods.list_sessions, _READ, tells_who=False),
    SESSION_LOAD: Row(session_methods.load, _READ, is_slow=False),
    SESSION_RESUME: Row(session_methods.load, _READ, is_slow=False),
    SESSION_ATTACH: Row(session_methods.attach, _READ, is_slow=False),
    SESSION_DETACH: Row(session_methods.detach, _READ, is_slow=False),
    SESSION_CLOSE: Row(session_methods.close, _ACT, on_session=True),
    SESSION_DELETE: Row(session_methods.delete, _OWN),
    SESSION_PROMPT: Row(prompt_methods.prompt, _ACT, is_slow=False, on_session=True),
    SESSION_SET_MODE: Row(session_methods.set_option, _ACT, on_session=True),
    SESSION_SET_MODEL: Row(session_methods.set_model, _ACT, on_session=True),
    SESSION_SET_CONFIG_OPTION: Row(session_methods.set_option, _ACT, on_session=True),
    TOOL_CALL_CANCEL: Row(passthrough.cancel_item, _ACT, on_session=True),
    TERMINAL_CANCEL: Row(passthrough.cancel_item, _ACT, on_session=True),
}
"""Every request that a client may send, but for `initialize`."""

_EXTENSION = Row(passthrough.request_extension, _ACT, on_session=True)
"""Every other one whose name begins with `_`."""

NOTIFICATIONS: dict[str, tuple[Hear, Role]] = {
    SESSION_CANCEL: (prompt_methods.cancel, _ACT),
    SESSION_READY: (session_methods.ready, _READ),
    SESSION_READY_DRAFT: (session_methods.ready, _READ),
    CANCEL_REQUEST: (prompt_methods.cancel_request, _READ),
}


async def call(client: ClientState, request: Request) -> None:
    """Serve a request of the client."""
    row = _row_of(request.method, client.profile.version)
    if row is None:
        client.put(refusal(request.id, METHOD_NOT_FOUND, "there is no such method"), None)
    elif client.has_open(request.id):
        facts = {"code": REQUEST_OPEN}
        client.put(refusal(request.id, INVALID_REQUEST, "a request with this id is open already", facts), None)
    elif row.is_slow:
        scope = client.start(_serve, client, row, request)
        if row.on_session:
            client.incoming[exact(request.id)] = scope
    else:
        await _serve(client, row, request)


def _row_of(method: str, version: int) -> Row | None:
    row = ROWS.get(method)
    if row is None:
        return _EXTENSION if is_extension(method) else None
    return None if find_method(method, version) is None else row


async def _serve(client: ClientState, row: Row, request: Request) -> None:
    named = peek_session_id(request.params)
    subscription = client.subscriptions.get(SessionId(named)) if row.on_session and named is not None else None
    status = 200
    if subscription is not None:
        # Who asks about a session can take what comes of it, and its answer stands behind that.
        subscription.open_gate()
    try:
        client.need(row.role)
        result = await row.act(client, request)
        if result is not None:
            client.answer(request.id, result, subscription)
    except TurnwireError as error:
        status = error.http_status
        client.fail(request.id, error, subscription)
    except anyio.get_cancelled_exc_class():
        status = TAKEN_BACK
        client.put(refusal(request.id, REQUEST_CANCELLED, "the request was taken back"), subscription)
        raise
    except Exception:  # whatever it is, its client must hear of it
        status = TurnwireError.http_status
        logger.exception("a request failed", extra={"event": "acp_request_failed", "method": request.method})
        client.fail(
            request.id, TurnwireError("something went wrong here; the daemon's log says what"), subscription
        )
    finally:
        client.incoming.pop(exact(request.id), None)
        if row.tells_who:
            client.audit(request.method, None if named is None else SessionId(named), status)


async def hear(client: ClientState, said: Notification) -> None:
    """Take a notification of the client. What is wrong with it is nobody's to hear."""
    known = NOTIFICATIONS.get(said.method)
    status = 200
    try:
        if known is not None:
            client.need(known[1])
            await known[0](client, said.params)
        elif is_extension(said.method):
            client.need(_ACT)
            await passthrough.notify_extension(client, said)
    except TurnwireError as error:
        status = error.http_status
        extra = {"event": "acp_notification_refused", "method": said.method, "code": error.code}
        logger.info("a notification of a client was refused", extra=extra)
    finally:
        if said.method == SESSION_CANCEL or (known is None and is_extension(said.method)):
            named = peek_session_id(said.params)
            client.audit(said.method, None if named is None else SessionId(named), status)
