"""How a call of a client is served, whatever its method.

Which versions have a method is in the table of `wire.methods`; who may call it and what it does is in the table at
the end of the module that serves it. What begins with `_` is the agent's own affair and goes there and back as it
is. A slow method keeps no later message waiting: it is a task of its own.
"""

from __future__ import annotations

import logging

import anyio

from turnwire.core.correlation import exact
from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.server.access.identity import Role
from turnwire.server.acp import passthrough, prompt_methods, session_methods
from turnwire.server.acp.client_state import ClientState, NotificationRow, Row
from turnwire.server.acp.rpc import refusal
from turnwire.wire.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    REQUEST_CANCELLED,
    Notification,
    Request,
)
from turnwire.wire.methods import SESSION_CANCEL, find_method, is_extension
from turnwire.wire.peek import peek_session_id

TAKEN_BACK = 499
"""The status, in the audit, of a request whose client did not wait for it."""
REQUEST_OPEN = "request_open"
"""By which a client that asks again after a loss knows that its first request is not lost."""

logger = logging.getLogger(__name__)

ROWS: dict[str, Row] = session_methods.ROWS | prompt_methods.ROWS | passthrough.ROWS
"""Every request that a client may send, but for `initialize`."""

_EXTENSION = Row(passthrough.request_extension, Role.CONTROLLER, on_session=True)
"""Every other one whose name begins with `_`."""

NOTIFICATIONS: dict[str, NotificationRow] = session_methods.NOTIFICATIONS | prompt_methods.NOTIFICATIONS


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
            client.need(known.role)
            await known.act(client, said.params)
        elif is_extension(said.method):
            client.need(Role.CONTROLLER)
            await passthrough.notify_extension(client, said)
    except TurnwireError as error:
        status = error.http_status
        extra = {"event": "acp_notification_refused", "method": said.method, "code": error.code}
        logger.info("a notification of a client was refused", extra=extra)
    finally:
        if said.method == SESSION_CANCEL or (known is None and is_extension(said.method)):
            named = peek_session_id(said.params)
            client.audit(said.method, None if named is None else SessionId(named), status)
