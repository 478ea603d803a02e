"""Dispatch of a client's call to the method that serves it.

The table of `wire.methods` lists the versions that have a method; the table at the end of the module that serves it
lists the role it needs and its function. Methods that begin with `_` are the agent's and are passed on unchanged in
both directions. A slow method runs as a separate task and does not delay later messages.
"""

from __future__ import annotations

import logging

import anyio

from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.server.access.tokens import Role
from turnwire.server.acp import passthrough, prompt_methods, session_methods
from turnwire.server.acp.client_state import ClientState, NotificationRow, Row
from turnwire.server.acp.rpc import refusal
from turnwire.session.correlation import exact
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
"""The audit status of a request that its client cancelled."""
REQUEST_OPEN = "request_open"
"""Tells a client that repeats a request after a connection loss that the first one is not lost."""

logger = logging.getLogger(__name__)

ROWS: dict[str, Row] = session_methods.ROWS | prompt_methods.ROWS | passthrough.ROWS
"""All requests that a client may send, except `initialize`."""

_EXTENSION = Row(passthrough.request_extension, Role.CONTROLLER, on_session=True)
"""The row of every other method whose name begins with `_`."""

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
        # A client that sends a request about a session is ready for its frames, and the response must follow them.
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
    except Exception:  # the client must get a response to any error
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
    """Process a notification of the client. Errors are logged, because a notification has no response."""
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
