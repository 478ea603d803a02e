"""The JSON-RPC side of a method: its params are read here, and what it refuses is written.

An error of ours becomes the error answer to a request, with the code of its class and the facts that REST tells
too; an agent's own refusal is passed on in its words. The text of an exception that is not ours is never shown.
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
"""The result of what has nothing to tell."""

Shape = TypeVar("Shape")


# -- params --------------------------------------------------------------------------------------------------


class Named(Struct, rename="camel"):
    """A request about one session."""

    session_id: SessionId


def read_params(params: Raw, shape: type[Shape]) -> Shape:
    """The params of a request. Raises `RemoteProtocolError` (-32602); no value of the client is in its text."""
    try:
        return json.decode(params or b"{}", type=shape)
    except msgspec.ValidationError as error:
        raise invalid_params(f"the params are not as documented: {error}") from None
    except (msgspec.DecodeError, RecursionError):
        raise invalid_params("the params are not as documented") from None


# -- refusals ------------------------------------------------------------------------------------------------


def failure_of(request_id: RequestId | None, error: TurnwireError) -> bytes:
    """The error answer. Without an id for what had none that could be read."""
    if isinstance(error, AgentLaunchFailed) and error.agent_error is not None:
        return encode_failure(request_id, error.agent_error)
    # Others carry a code too: that of an agent's author, which is no answer to this request.
    carries = isinstance(error, RemoteProtocolError | RequestRefused)
    code = code_of(error, error.jsonrpc_code) if carries else error.jsonrpc_code
    return refusal(request_id, code, str(error), _facts(error))


def refusal(request_id: RequestId | None, code: int, message: str, data: dict[str, Any] | None = None) -> bytes:
    """An error answer with these words."""
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
