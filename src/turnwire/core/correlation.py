"""JSON-RPC bookkeeping for one peer: which requests are open, ours and theirs.

Takes the ids of frames as they pass; says which of our requests an answer belongs to and whether an answer of
ours is still wanted. Ids keep their JSON type: `2` and `"2"` are two requests, and each side has its own
space. Never sends, never waits; `link.peer` drives it over a link.
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
    """A key under which `1` and `"1"` differ."""
    return (isinstance(request_id, str), request_id)


def same_id(one: RequestId, other: RequestId) -> bool:
    """Whether two ids are the same request: equal in value and JSON type."""
    return exact(one) == exact(other)


def names(written: RequestId, ours: RequestId) -> bool:
    """Whether a peer that repeats an id in a payload means `ours`.

    Exact type first; a decimal string is accepted for an integer, because drafts and agents write `"2"` for `2`.
    We number with integers only, so `2` and `"2"` are never open together.
    """
    return same_id(written, ours) or (isinstance(written, str) and written == str(ours))


def spellings(request_id: RequestId) -> tuple[RequestId, ...]:
    """The id, and the one that a reader may take it for: a decimal string for an integer, or the reverse."""
    if isinstance(request_id, int):
        return (request_id, str(request_id))
    try:
        return (request_id, int(request_id))
    except ValueError:
        return (request_id,)


class Correlation(Generic[Context, Incoming]):
    """Open requests of one connection, both ways."""

    def __init__(self) -> None:
        self._count = 0
        self._ours: dict[ExactId, Context] = {}
        self._theirs: dict[ExactId, Incoming] = {}

    def open(self, context: Context) -> RequestId:
        """A new id for a request of ours. `context` comes back with its answer."""
        self._count += 1
        self._ours[exact(self._count)] = context
        return self._count

    def close(self, request_id: RequestId | None) -> Context | None:
        """An answer came: whose it is, or none if no such request is open (unknown, or answered before)."""
        return None if request_id is None else self._ours.pop(exact(request_id), None)

    def asked(self, request_id: RequestId, request: Incoming) -> bool:
        """A request of theirs came. False if one with this id is still open: it cannot be answered apart."""
        if exact(request_id) in self._theirs:
            return False
        self._theirs[exact(request_id)] = request
        return True

    def find_asked(self, request_id: RequestId) -> Incoming | None:
        """Their open request with this id."""
        return self._theirs.get(exact(request_id))

    def answered(self, request_id: RequestId) -> None:
        """We answer a request of theirs. Raises `LocalProtocolError` if it is not open: nothing may be sent."""
        if self._theirs.pop(exact(request_id), None) is None:
            raise LocalProtocolError("the peer has no open request with this id", request_id=request_id)

    @property
    def open_requests(self) -> int:
        """How many of our requests wait for an answer."""
        return len(self._ours)

    def end(self) -> list[Context]:
        """The connection is over: our requests that will never be answered, oldest first. Nothing stays open."""
        lost = list(self._ours.values())
        self._ours.clear()
        self._theirs.clear()
        return lost
