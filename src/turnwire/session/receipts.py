"""Receipts: one SHA-256 per turn over the stored bytes of its events, in log order.

The events of a turn are all events after the end of the turn before it, up to and including its own end. The hash
covers the previous receipt's hash and then each stored body, each followed by a zero byte, which no JSON contains.
The end is hashed in its stored form without the receipt. Because each receipt depends on the one before it, a
missing turn is found too.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from turnwire.session.events import AnyEvent, Receipt, TerminalEvent

_RECEIPT: Final = b',"receipt":{"hash":"%b"}}'
_RECEIPT_SIZE: Final = len(_RECEIPT % (b"0" * 64))


class Mark(Struct, frozen=True, omit_defaults=True):
    """A chain as a snapshot stores it. A partial SHA-256 cannot be stored, so the events since are read again."""

    first: int
    previous: str = ""


class Chain:
    """The hash of the events since the last end of a turn."""

    __slots__ = ("_hash", "count", "first", "previous")

    def __init__(self, first: int = 1, previous: str = "") -> None:
        self.first = first
        """Offset of the first event of the current turn."""
        self.previous = previous
        """Hash of the previous receipt; empty for the first."""
        self.count = 0
        self._hash = sha256(previous.encode() + b"\0")

    @property
    def offset(self) -> int:
        """Offset of the last event that was hashed."""
        return self.first - 1 + self.count

    @property
    def mark(self) -> Mark:
        return Mark(self.first, self.previous)

    def copy(self) -> Chain:
        other = Chain(self.first, self.previous)
        other.count, other._hash = self.count, self._hash.copy()
        return other

    def take(self, bodies: Sequence[bytes]) -> None:
        """Add the next stored events. Only the last of them may end a turn, in its form without a receipt."""
        if bodies:
            self._hash.update(b"\0".join((*bodies, b"")))
            self.count += len(bodies)

    def close(self) -> Chain:
        """Return the chain of the next turn. Its `previous` is the hash of this one."""
        return Chain(self.offset + 1, self._hash.hexdigest())


def seal(chain: Chain, events: list[AnyEvent], bodies: list[bytes]) -> Chain:
    """Add events that are about to be stored, and add receipts to the ends among them, in place.

    Return the chain after them.
    """
    begin = 0
    for place, event in enumerate(events):
        if isinstance(event, TerminalEvent):
            chain.take(bodies[begin : place + 1])
            chain = chain.close()
            events[place] = replace(event, receipt=Receipt(chain.previous))
            bodies[place] = with_receipt(bodies[place], chain.previous)
            begin = place + 1
    chain.take(bodies[begin:])
    return chain


def with_receipt(body: bytes, hash: str) -> bytes:
    """Return the stored form of an end with its receipt."""
    return body[:-1] + _RECEIPT % hash.encode()


def without_receipt(body: bytes) -> bytes:
    """Return the stored form of an end as it was hashed. For a body without a receipt the result is meaningless."""
    return body[:-_RECEIPT_SIZE] + b"}"
