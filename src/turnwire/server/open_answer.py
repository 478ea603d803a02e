"""An answer whose body is written without a task: what a server gives, and what it tells whoever writes.

A request is a task with the frames of every function on the way. An answer that stays open for days and is silent
most of the time needs none of them: once its head is written, its request may end, and what is left is this. Our
own HTTP/1.1 server offers it as an ASGI extension; without it the request's task writes the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from starlette.types import Scope

DETACH = "turnwire.detach"
"""The ASGI extension: `call` gives an `OpenAnswer`, or none. Behind the head of an answer without a length."""


class Holder(Protocol):
    """Who writes."""

    def has_room(self) -> None:
        """The answer was full and takes more now."""
        ...

    def left(self) -> None:
        """The client is gone, or the connection was dropped. Said once, and the last that is said."""
        ...


class OpenAnswer(Protocol):
    """The body of one answer, in chunks (`chunk`)."""

    holder: Holder | None
    """Who is told."""

    @property
    def is_full(self) -> bool:
        """Whether the client takes less than it is given: who writes now makes the server hold it."""
        ...

    def write(self, chunk: bytes) -> None:
        """Write some chunks."""
        ...

    def end(self, chunk: bytes) -> None:
        """Write the last ones, and end the answer with its terminator. Nothing more is told or may be written."""
        ...

    def drop(self) -> None:
        """Drop the connection with all that is not sent."""
        ...


def detached(scope: Scope) -> OpenAnswer | None:
    """The answer to a request whose head is written, for whoever goes on without it; none if the task has to."""
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    return extensions[DETACH]["call"]() if DETACH in extensions else None


def chunk(body: bytes) -> bytes:
    """A piece of a body as HTTP/1.1 sends it. The same for every answer, so it is made once for all."""
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""
