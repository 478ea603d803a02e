"""Errors as clients see them: a JSON-RPC error object for every exception.

An author's `AgentFailure` is passed on. The text of any foreign exception stays inside, because it may contain
anything.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Raw

from turnwire.errors import (
    AgentFailure,
    InvalidOption,
    RemoteProtocolError,
    RequestRefused,
    SessionNotFound,
    TurnwireError,
    leaves,
)
from turnwire.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    REQUEST_CANCELLED,
    RESOURCE_NOT_FOUND,
    ErrorObject,
    code_of,
    raw,
)

CANCELLED: Final = ErrorObject(REQUEST_CANCELLED, "the request was cancelled")
FAILED: Final = ErrorObject(INTERNAL_ERROR, "the agent failed; its own log on stderr says why")
GONE: Final = "there is no such session; list the sessions, or open a new one"


def error_of(error: BaseException) -> ErrorObject:
    """Return the error object for an exception."""
    told = next((each for each in leaves(error) if isinstance(each, TurnwireError)), None)
    match told:
        case AgentFailure():
            return ErrorObject(told.jsonrpc, str(told), UNSET if told.data is None else Raw(told.data))
        case RemoteProtocolError() | RequestRefused():
            return ErrorObject(code_of(told, INVALID_PARAMS), str(told))
        case SessionNotFound():
            named = told.context.get("session_id")
            return ErrorObject(RESOURCE_NOT_FOUND, GONE, raw({"sessionId": named}) if named else UNSET)
        case InvalidOption():
            return ErrorObject(INVALID_PARAMS, str(told))
        case None:
            return FAILED
        case _:
            return ErrorObject(told.jsonrpc_code, str(told))


def is_expected(error: BaseException) -> bool:
    """Return whether the author raised the error on purpose, so that no traceback is needed."""
    return any(isinstance(each, AgentFailure) for each in leaves(error))
