"""The file of `turnwire export`: the stored events of a session, byte for byte, and the check of its receipts.

    {"form":"turnwire export 1","sessionId":…,"epoch":…,"first":1}
    {"type":"session_created",…}
    …
    {"sha256":…}

A body that contains line ends is written as `{"base64":…}`. The last line is a hash over all lines before it: it
covers what no receipt covers, such as the events after the last turn, and shows that the file is complete.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from turnwire.errors import LogCorrupt, LogVersionMismatch
from turnwire.ids import Epoch, SessionId
from turnwire.session.codec import decode, stored_prefix
from turnwire.session.events import TerminalEvent, TurnCompleted, TurnFailed
from turnwire.session.receipts import Chain, with_receipt, without_receipt
from turnwire.wire.jsonrpc import UNREADABLE

FORM: Final = "turnwire export 1"
_ENDS: Final = tuple(stored_prefix(each) for each in (TurnCompleted, TurnFailed))
_BASE64: Final = re.compile(rb'\{"base64":"([A-Za-z0-9+/=]*)"\}')
_LAST_LINE: Final = b'{"sha256":"%b"}\n'
_encode = msgspec.json.Encoder().encode


class Head(Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line. `first` is the offset of the first event, more than 1 if the log was trimmed."""

    form: str = FORM
    session_id: SessionId
    epoch: Epoch
    first: int


_read_head = msgspec.json.Decoder(Head).decode


class StoredFile:
    """Incremental writer of such a file."""

    def __init__(self, head: Head) -> None:
        self.head = _encode(head) + b"\n"
        self._hash = sha256(self.head)

    def lines(self, bodies: Iterable[bytes]) -> bytes:
        """Return the lines of the next events."""
        text = b"".join(map(_line, bodies))
        self._hash.update(text)
        return text

    def last_line(self) -> bytes:
        return _LAST_LINE % self._hash.hexdigest().encode()


def _line(body: bytes) -> bytes:
    return b'{"base64":"%b"}\n' % b64encode(body) if b"\n" in body or b"\r" in body else body + b"\n"


def read_head(line: bytes) -> Head | None:
    """Decode the first line of such a file; return `None` for any other file."""
    try:
        head = _read_head(line)
    except UNREADABLE:
        return None
    return head if head.form == FORM else None


def read_body(line: bytes) -> bytes | None:
    """Return the stored event of a line; `None` for the last line, which is not an event."""
    if line.startswith(_LAST_LINE[:11]):
        return None
    packed = _BASE64.fullmatch(line.removesuffix(b"\n"))
    if packed is None:
        return line.removesuffix(b"\n")
    try:
        return b64decode(packed[1])
    except ValueError:
        return b""


class Report(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The result of a check."""

    session_id: SessionId
    first: int
    last: int
    turns: int = 0
    """The number of turns with a correct receipt."""
    unproven: Sequence[tuple[int, int]] = ()
    """Events of no complete turn, first and last offset. Only the last line of the file covers them."""
    hash: str | None = None
    """Hash of the last receipt."""
    problem: str | None = None


def check(head: Head, lines: Iterable[bytes], expected: str | None = None) -> Report:
    """Recompute the receipt of every turn in a file, up to the first that does not match.

    Args:
        head: The first line, decoded.
        lines: All lines of the file, with their line ends.
        expected: The hash that the last receipt must have.
    """
    rest = iter(lines)
    whole, chain = sha256(next(rest, b"")), Chain(head.first)
    turns, unproven, last_line, problem = 0, list[tuple[int, int]](), b"", None
    for line in rest:
        body = read_body(line)
        if body is None:
            last_line = line + b"".join(rest)
            break
        whole.update(line)
        # A zero byte would separate two events.
        body = b"" if b"\0" in body else body
        if not body.startswith(_ENDS):
            chain.take((body,))
            continue
        first, own = chain.first, without_receipt(body)
        chain.take((own,))
        chain = chain.close()
        if first == head.first > 1:
            # The turn may have begun before the file. The next receipt depends on this one.
            unproven.append((first, chain.offset))
            chain = Chain(chain.first, body[-67:-3].decode(errors="replace"))
        elif body != with_receipt(own, chain.previous):
            problem = f"turn {turns + 1} ({_name(body)}events {first}-{chain.offset}) does not match its receipt"
            break
        else:
            turns += 1
    if chain.count:
        unproven.append((chain.first, chain.offset))
    if problem is None and not last_line:
        problem = f"the file is cut off after event {chain.offset}"
    elif problem is None and last_line != _LAST_LINE % whole.hexdigest().encode():
        problem = "the file was changed in a place that no receipt covers, such as an event after the last turn"
    elif problem is None and expected is not None and chain.previous != expected:
        problem = f"the last receipt is {chain.previous or 'missing'}, which is not the expected one"
    return Report(
        session_id=head.session_id,
        first=head.first,
        last=chain.offset,
        turns=turns,
        unproven=unproven,
        hash=(chain.previous or None) if problem is None else None,
        problem=problem,
    )


def _name(body: bytes) -> str:
    try:
        event = decode(body)
    except (LogCorrupt, LogVersionMismatch):
        return ""
    return f"prompt {event.prompt_id}, " if isinstance(event, TerminalEvent) else ""
