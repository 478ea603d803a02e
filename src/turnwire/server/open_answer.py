"""Detached answers: a response body that is written without a task.

A stream that is open for days and mostly silent needs no task with its stack of functions: once the head is
written, the request may end and an `OpenAnswer` remains. `scope["extensions"]["turnwire.detach"]["call"]` detaches
the answer on our listener. On another server the request's task writes the body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from starlette.types import Scope

DETACH = "turnwire.detach"
"""ASGI extension: `call` returns an `OpenAnswer` or None. Call it after the head of a chunked answer."""
DETACHED = "turnwire.detached"
"""Key of the detached answer in the scope of its request."""


class Holder(Protocol):
    """The writer of a detached answer, with its callbacks."""

    def has_room(self) -> None:
        """Called when the answer was full and accepts more again."""
        ...

    def left(self) -> None:
        """Called once, as the last callback, when the client has disconnected or the connection was dropped."""
        ...


class OpenAnswer(Protocol):
    """The body of one answer, written in chunks (see `chunk`)."""

    holder: Holder | None
    """Receives the callbacks."""

    @property
    def is_full(self) -> bool:
        """True if the client reads more slowly than we write. Further writes are buffered by the server."""
        ...

    def write(self, chunk: bytes) -> None:
        """Write some chunks."""
        ...

    def end(self, chunk: bytes) -> None:
        """Write the last chunks and end the answer. No callback follows, and nothing more may be written."""
        ...

    def drop(self) -> None:
        """Drop the connection with all unsent data."""
        ...


class DetachedAnswer(OpenAnswer, Protocol):
    """An `OpenAnswer` as the server provides it."""

    on_end: Callable[[], None] | None
    """Called once when the answer has ended, for whatever reason."""
    is_over: bool
    """True if it has ended, or its connection is closed."""


def detached(scope: Scope) -> OpenAnswer | None:
    """Detach an answer whose head is written. Return None if the request's task has to write the body."""
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    answer: DetachedAnswer | None = extensions[DETACH]["call"]() if DETACH in extensions else None
    if answer is not None:
        scope[DETACHED] = answer
    return answer


def chunk(body: bytes) -> bytes:
    """Encode part of a body as an HTTP/1.1 chunk. Readers of the same bytes share one chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""


def unchunked(chunk: bytes) -> bytes:
    """Return the body of one chunk."""
    return chunk[chunk.index(b"\n") + 1 : -2] if chunk else b""
