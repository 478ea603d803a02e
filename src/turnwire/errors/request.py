"""Errors of an HTTP request that never reached a session. See `turnwire.errors`."""

from __future__ import annotations

from turnwire.errors.base import TurnwireError


class RequestError(TurnwireError):
    """A request was refused before it reached a session. Nothing was changed."""

    code = "request_error"


class BadRequest(RequestError):
    code = "bad_request"


class InvalidCwd(BadRequest):
    """A session cannot work there: no absolute path, or no directory."""

    code = "invalid_cwd"


class HeadersTooLarge(RequestError):
    code = "headers_too_large"


class UnsupportedMedia(RequestError):
    code = "unsupported_media_type"


class NotAcceptable(RequestError):
    code = "not_acceptable"


class Unauthenticated(RequestError):
    code = "unauthenticated"


class Forbidden(RequestError):
    code = "forbidden"


class NotFound(RequestError):
    code = "not_found"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"


class UnknownClient(RequestError):
    code = "invalid_client_id"


class TooManyRequests(RequestError):
    code = "rate_limited"
    retryable = True


class ConnectionLimitReached(RequestError):
    code = "connection_limit_exceeded"
    retryable = True


class ShuttingDown(RequestError):
    code = "shutting_down"
    retryable = True
