"""Server-sent events, read and written by the rules of the HTML standard.

The result does not depend on how the bytes were cut into blocks. Comments and unknown fields are skipped; an event
without its blank line is dropped when the input ends. The data is not inspected. At most `max_bytes` of an event
are held: a longer one ends the stream with `LimitExceeded`, because skipping it would move the cursor past an
unread event.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from turnwire.errors import LimitExceeded, LocalProtocolError

_LF: Final = 10
_CR: Final = 13
_BOM: Final = b"\xef\xbb\xbf"
_NOT_IN_FOUR_DIGITS: Final = re.compile("[\x80-\xff\U00010000-\U0010ffff]")
"""Characters that Python escapes with two or eight digits, unlike JSON."""
_RETRY_DIGITS: Final = 15
"""Longer reconnection times are ignored."""


class SseEvent(Struct, frozen=True):
    """One event of a stream."""

    id: str | None
    """The last id in the stream so far; `None` before the first."""
    event: str
    data: str
    retry: int | None
    """Reconnection time set by this event, in milliseconds."""


class SseReader:
    """Splits a stream of bytes into events."""

    last_event_id: str | None
    """The cursor to reconnect with. Moves at the end of each block, even one without data."""
    retry: int | None
    """Latest reconnection time in the stream, in milliseconds."""

    def __init__(self, max_bytes: int) -> None:
        self.last_event_id = None
        self.retry = None
        self._max_bytes = max_bytes
        self._begun = bytearray()
        self._after_cr = False
        self._first_line = True
        self._too_large = False
        self._id: str | None = None
        self._forget_block()

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that `chunk` completes.

        Raises:
            LimitExceeded: an event is over the limit. Every event before it was returned; the reader is unusable
                afterwards.
        """
        self._refuse_if_too_large()
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        lines = chunk.splitlines()
        last = chunk[-1]
        self._after_cr = last == _CR
        rest = b"" if last in (_CR, _LF) else lines.pop()
        if lines and self._begun:
            lines[0] = bytes(self._begun) + lines[0]
            self._begun.clear()
        events: list[SseEvent] = []
        for line in lines:
            self._take_line(line, events)
            if self._too_large:
                break
        self._begun += rest
        self._too_large |= len(self._begun) + self._data_bytes > self._max_bytes
        if not events:
            self._refuse_if_too_large()
        return events

    def end(self) -> None:
        """Drop the unfinished event at the end of the input. Raises `LimitExceeded` if it was too large."""
        self._refuse_if_too_large()
        self._begun.clear()
        self._id = self.last_event_id
        self._forget_block()

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        if len(line) + self._data_bytes > self._max_bytes:
            self._too_large = True
            return
        if self._first_line:
            line = line.removeprefix(_BOM)
            self._first_line = False
        if not line:
            self._end_block(events)
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(line)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            if 0 not in value:
                self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _RETRY_DIGITS:
            self._retry = self.retry = int(value)

    def _end_block(self, events: list[SseEvent]) -> None:
        self.last_event_id = self._id
        if self._data:
            data = b"\n".join(self._data).decode(errors="replace")
            events.append(SseEvent(self._id, self._event or "message", data, self._retry))
        self._forget_block()

    def _forget_block(self) -> None:
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = ""
        self._retry: int | None = None

    def _refuse_if_too_large(self) -> None:
        if self._too_large:
            raise LimitExceeded(
                f"an event of the stream is longer than {self._max_bytes} bytes; raise `frame_bytes`",
                limit="frame_bytes",
                value=self._max_bytes,
            )


def encode_event(
    *, data: bytes, event: str | None = None, id: str | int | None = None, retry: int | None = None
) -> bytes:
    """Encode one event. Raises `LocalProtocolError` if `event` or `id` does not fit on one line."""
    fields: list[bytes] = []
    if id is not None:
        fields.append(b"id: " + _one_line("id", str(id)))
    if event is not None:
        fields.append(b"event: " + _one_line("event", event))
    if retry is not None:
        fields.append(b"retry: %d" % retry)
    if _LF in data or _CR in data:
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        fields += [b"data: " + line for line in lines]
    else:
        fields.append(b"data: " + data)
    return b"\n".join(fields) + b"\n\n"


def in_ascii(json: bytes) -> bytes:
    """Escape all non-ASCII characters of a JSON text, or of a frame with one. They occur only inside strings.

    Some clients decode each network read separately, and a read can end in the middle of a character.
    """
    if json.isascii():
        return json
    # The codec escapes all other characters as JSON does, with four digits.
    return _NOT_IN_FOUR_DIGITS.sub(_escape, json.decode()).encode("ascii", "backslashreplace")


def _escape(found: re.Match[str]) -> str:
    digits = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{digits[place : place + 4]}" for place in range(0, len(digits), 4))


def encode_comment(text: str) -> bytes:
    """Encode a comment. Readers skip it; proxies see activity."""
    return b"\n".join(b": " + line for line in text.encode().splitlines() or [b""]) + b"\n\n"


def _one_line(field: str, text: str) -> bytes:
    if "\n" in text or "\r" in text or "\0" in text:
        raise LocalProtocolError(f"an SSE {field} may not hold a line end or a NUL; give one line", field=field)
    return text.encode()
