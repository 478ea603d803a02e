"""Open JSON-RPC requests of one connection, in both directions.

It records the ids of frames, finds the request that an answer belongs to, and checks that an answer of ours is
still expected. Ids keep their JSON type: `2` and `"2"` are two requests, and each side has a separate id space. It
does no I/O and never waits; `link.peer` drives it over a link.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

from turnwire.errors import LocalProtocolError
from turnwire.ids import RequestId

Context = TypeVar("Context")
Incoming = TypeVar("Incoming")

ExactId: TypeAlias = tuple[bool, RequestId]
"""An id with its JSON type, as a key."""


def exact(request_id: RequestId) -> ExactId:
    """Return a key that differs for `1` and `"1"`."""
    return (isinstance(request_id, str), request_id)


def same_id(one: RequestId, other: RequestId) -> bool:
    """True if two ids are equal in value and JSON type."""
    return exact(one) == exact(other)


def names(written: RequestId, ours: RequestId) -> bool:
    """True if a peer that repeats an id in a payload means `ours`.

    The exact type matches first; a decimal string is accepted for an integer, because drafts and agents write `"2"`
    for `2`. Our ids are integers only, so `2` and `"2"` are never open together.
    """
    return same_id(written, ours) or (isinstance(written, str) and written == str(ours))


class Correlation(Generic[Context, Incoming]):
    """Open requests of one connection, in both directions."""

    def __init__(self, last_id: int = 0) -> None:
        """`last_id`: the highest id that an earlier process may have used."""
        self._count = last_id
        self._ours: dict[ExactId, Context] = {}
        self._theirs: dict[ExactId, Incoming] = {}

    def open(self, context: Context) -> RequestId:
        """Return a new id for a request of ours. `close` returns `context` when its answer arrives."""
        self._count += 1
        self._ours[exact(self._count)] = context
        return self._count

    def reopen(self, request_id: RequestId, context: Context) -> None:
        """Register a request that an earlier process has sent."""
        self._ours[exact(request_id)] = context

    def close(self, request_id: RequestId | None) -> Context | None:
        """Return the context of an answered request; `None` if it is not open (unknown, or answered before)."""
        return None if request_id is None else self._ours.pop(exact(request_id), None)

    def asked(self, request_id: RequestId, request: Incoming) -> bool:
        """Register a request of the peer. Return False if one with this id is still open: the two cannot be told
        apart.
        """
        if exact(request_id) in self._theirs:
            return False
        self._theirs[exact(request_id)] = request
        return True

    def find_asked(self, request_id: RequestId) -> Incoming | None:
        """Return the peer's open request with this id."""
        return self._theirs.get(exact(request_id))

    def answered(self, request_id: RequestId) -> None:
        """Close a request of the peer before answering it. Raises `LocalProtocolError` if it is not open."""
        if self._theirs.pop(exact(request_id), None) is None:
            raise LocalProtocolError("the peer has no open request with this id", request_id=request_id)

    @property
    def open_requests(self) -> int:
        """The number of our requests that wait for an answer."""
        return len(self._ours)

    def end(self) -> list[Context]:
        """End the connection. Return our unanswered requests, oldest first; no request stays open."""
        lost = list(self._ours.values())
        self._ours.clear()
        self._theirs.clear()
        return lost
