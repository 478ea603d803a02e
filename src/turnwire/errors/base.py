"""The root of all errors, and those that any layer raises. See `turnwire.errors`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, TypeAlias, cast

Shown: TypeAlias = str | int | float | bool | tuple[str, ...] | None
"""What may be in the context of an error."""


class TurnwireError(Exception):
    """The root. `str(error)` says what is wrong and what to do about it."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **context: Shown) -> None:
        super().__init__(message)
        self.context = context


class ProtocolError(TurnwireError):
    """A rule of ACP or JSON-RPC was broken."""

    code = "protocol_error"


class LocalProtocolError(ProtocolError):
    """Our own side asked for something that is not legal now. Nothing was changed."""

    code = "not_legal_now"


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not ACP or not JSON-RPC."""

    code = "peer_broke_protocol"


class LimitExceeded(TurnwireError):
    """A bound of `turnwire.limits` was passed; `context` names it."""

    code = "limit_exceeded"


class FrameTooLarge(LimitExceeded):
    code = "frame_too_large"


class ConfigError(TurnwireError):
    """A setting makes no sense. Raised before anything starts."""

    code = "config_error"


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors that a group holds, however deep; the error itself, if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(each)
    else:
        yield error
