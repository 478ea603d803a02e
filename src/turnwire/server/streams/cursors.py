"""The cursor of a stream over many sessions: one line of text that says how far it is in each of them.

Takes positions as the stream moves on; gives the text that every event of the stream has as its id, and reads it
back. Clients take it as it is: a browser sends it back as `Last-Event-ID`.

Theory of operation
-------------------
The text must hold everything, because it is all that a client brings back: also after a restart, and also to
another node. But a line that names a thousand sessions is too long to go with every event. So it names the sessions
that moved last, `NAMED` at most, and has one number for all the others: the exclusive or over a digest of each with
its position. A session that moves leaves the number and is named; the one that was named longest goes back into it.

    C1  As long as a stream has no more than `NAMED` sessions, all of them are named and the number is 0. Coming
        back is exact.
    C2  With more, those that are named come back exactly. If the number equals what it would be with every other
        session at its head, nothing happened in those. If not, the stream says once that it cannot tell which.
    C3  A session is named by a digest of its id and its epoch. Another life of it is another name.

The form is `m1.<rest>.<named>.<tag>.<offset>`: the number and the named ones in base64 (for each a tag of 6 bytes
and a varint), then the session of this event, whose offset alone changes from event to event of a page.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from hashlib import blake2b

from turnwire.errors import BadRequest
from turnwire.ids import Epoch, SessionId

NAMED = 64
"""A cursor of this many sessions is about 700 bytes; a page with a dozen sends 150 with each event."""

_FORM = "m1"
_TAG = 6
_REST = 8
_MOST_OFFSET = 2**63 - 1


def tag_of(session_id: SessionId, epoch: Epoch) -> bytes:
    """The name of one life of a session in a cursor."""
    return blake2b(f"{session_id}\0{epoch}".encode("utf-8", "surrogatepass"), digest_size=_TAG).digest()


class ManyCursor:
    """How far a stream is in each of its sessions."""

    def __init__(self, named: dict[bytes, int] | None = None, rest: int = 0) -> None:
        self.named = named or {}
        """Tag → offset, the one that moved last at the end."""
        self.rest = rest
        self._prefix: tuple[bytes, bytes] | None = None

    def place(self, tag: bytes, offset: int) -> None:
        """A session that the stream has just begun to follow is here."""
        if len(self.named) < NAMED:
            self.named[tag] = offset
        else:
            self.rest ^= digest(tag, offset)
        self._prefix = None

    def move(self, tag: bytes, before: int, after: int) -> None:
        """The stream has shown the session's events from `before` to `after`."""
        if self.named.pop(tag, None) is None:
            self._prefix = None
            self.rest ^= digest(tag, before)
            if len(self.named) >= NAMED:
                oldest = next(iter(self.named))
                self.rest ^= digest(oldest, self.named.pop(oldest))
        self.named[tag] = after

    def before(self, tag: bytes) -> bytes:
        """The text for an event of this session, but for the offset at its end."""
        if self._prefix is None or self._prefix[0] != tag:
            others = b"".join(each + _varint(offset) for each, offset in self.named.items() if each != tag)
            rest = self.rest.to_bytes(_REST, "big") if self.rest else b""
            text = f"{_FORM}.{_encode(rest)}.{_encode(others)}.{_encode(tag)}."
            self._prefix = tag, text.encode()
        return self._prefix[1]

    def text(self) -> bytes:
        """The cursor as it is now."""
        if not self.named:
            return self.before(b"") + b"0"
        tag, offset = next(reversed(self.named.items()))
        return self.before(tag) + b"%d" % offset


def read_cursor(text: str) -> ManyCursor:
    """The cursor that a client brings back. Raises `BadRequest`."""
    try:
        form, rest, others, tag, offset = text.split(".")
        if form != _FORM or not (offset.isascii() and offset.isdigit()):
            raise ValueError
        named = dict(_entries(_decode(others)))
        last = _decode(tag)
        if last:
            named[last] = int(offset)
        if any(len(each) != _TAG or at > _MOST_OFFSET for each, at in named.items()):
            raise ValueError
        return ManyCursor(named, int.from_bytes(_decode(rest), "big"))
    except (ValueError, IndexError):
        raise BadRequest("this is no cursor of this stream; send back the id of its last event as it was") from None


def digest(tag: bytes, offset: int) -> int:
    """What one session adds to the number of those that are not named."""
    return int.from_bytes(blake2b(tag + offset.to_bytes(8, "big"), digest_size=_REST).digest(), "big")


def _entries(packed: bytes) -> Iterator[tuple[bytes, int]]:
    at = 0
    while at < len(packed):
        tag = packed[at : at + _TAG]
        at += _TAG
        offset = shift = 0
        while True:
            byte = packed[at]
            at += 1
            offset |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        yield tag, offset


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
