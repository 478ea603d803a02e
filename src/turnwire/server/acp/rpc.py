"""The JSON-RPC side of a method: reading params and writing errors.

A `TurnwireError` becomes the error response to a request, with the code of its class and the same facts as over
REST; an agent's own error is passed on unchanged. The text of any other exception is never sent.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, json

from turnwire.errors import AgentLaunchFailed, RemoteProtocolError, RequestRefused, TurnwireError
from turnwire.ids import RequestId, SessionId
from turnwire.server.refusals import problem_of
from turnwire.wire.jsonrpc import ErrorObject, Failure, code_of, encode, encode_failure, invalid_params, raw

_ONLY_HTTP = frozenset({"error", "type", "title", "status", "detail", "jsonrpc"})

EMPTY = Raw(b"{}")
"""The empty result."""

Shape = TypeVar("Shape")


# -- params --------------------------------------------------------------------------------------------------


class Named(Struct, rename="camel"):
    """The params of a request about one session."""

    session_id: SessionId


def read_params(params: Raw, shape: type[Shape]) -> Shape:
    """Decode the params of a request. Raises `RemoteProtocolError` (-32602) without the client's values."""
    try:
        return json.decode(params or b"{}", type=shape)
    except msgspec.ValidationError as error:
        raise invalid_params(f"the params are not as documented: {error}") from None
    except (msgspec.DecodeError, RecursionError):
        raise invalid_params("the params are not as documented") from None


# -- errors --------------------------------------------------------------------------------------------------


def failure_of(request_id: RequestId | None, error: TurnwireError) -> bytes:
    """Return the error response, without an id if the request's id could not be read."""
    if isinstance(error, AgentLaunchFailed) and error.agent_error is not None:
        return encode_failure(request_id, error.agent_error)
    # Other errors carry a code too: that of an agent's author, which is not a response to this request.
    carries = isinstance(error, RemoteProtocolError | RequestRefused)
    code = code_of(error, error.jsonrpc_code) if carries else error.jsonrpc_code
    return refusal(request_id, code, str(error), _facts(error))


def refusal(request_id: RequestId | None, code: int, message: str, data: dict[str, Any] | None = None) -> bytes:
    """Return an error response with this message."""
    error = ErrorObject(code, message) if not data else ErrorObject(code, message, raw(data))
    return encode(Failure(request_id, error))


def _facts(error: TurnwireError) -> dict[str, Any]:
    _, _, body = problem_of(error)
    data = {name: value for name, value in body.items() if name not in _ONLY_HTTP}
    if "session" in data:
        data["sessionId"] = data.pop("session")
    if "methods" in data:
        data["authMethods"] = data.pop("methods")
    return data
