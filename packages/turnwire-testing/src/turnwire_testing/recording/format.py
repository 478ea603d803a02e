"""The file of a recording: a header line, then one line for each frame in the order in which it passed.

    {"format":"turnwire-recording","version":1,"turnwire":"0.9.0","redacted":["env","home"]}
    {"n":1,"ms":0,"from":"client","frame":{"jsonrpc":"2.0","id":0,"method":"initialize",...}}
    {"n":2,"ms":41,"from":"agent","frame":{...}}
    {"n":3,"ms":99,"from":"agent","text":"a line that is no JSON"}
    {"n":4,"ms":120,"from":"client","closed":true}
    {"n":5,"ms":122,"from":"agent","exit":0}

`n` counts from 1 and identifies a frame everywhere; `ms` are milliseconds since the recording began. A frame is
stored byte for byte. `closed` marks the point where the client closed the agent's input. The last line has the
agent's end, if it ended: its exit code, or minus the number of the signal. Unknown members are ignored; another
`version` is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from turnwire import __version__
from turnwire.errors import RecordingUnreadable, RemoteProtocolError
from turnwire.session.correlation import exact
from turnwire.wire.jsonrpc import UNREADABLE, Batch, Failure, Frame, Notification, Request, Result, decode
from turnwire.wire.methods import SESSION_UPDATE

FORMAT: Final = "turnwire-recording"
VERSION: Final = 1
SHOWN: Final = 60
"""Characters of a prompt that are shown when its frame is named."""

Side: TypeAlias = Literal["client", "agent"]


class Header(Struct, frozen=True, omit_defaults=True):
    """The first line of the file."""

    format: str
    version: int
    turnwire: str = ""
    redacted: tuple[str, ...] = ()
    """The rules by which it was redacted."""


class _Line(Struct, frozen=True, omit_defaults=True):
    n: int
    ms: int
    side: Side = field(name="from")
    frame: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    exit: int | UnsetType = UNSET
    closed: bool = False


class Entry(Struct, dict=True):
    """One frame that passed, or the end of one side."""

    number: int
    ms: int
    side: Side
    line: bytes
    """The frame as it passed, without its line end; empty for an end."""
    exit: int | None = None
    """The agent's exit status, if this is its end."""
    closed: bool = False
    """The client ends the agent's input here."""

    @cached_property
    def message(self) -> Frame | None:
        """Return the JSON-RPC message, or None if the frame is not one."""
        try:
            found = decode(self.line)
        except RemoteProtocolError:
            return None
        return None if isinstance(found, Batch) else found

    @cached_property
    def payload(self) -> dict[str, Any]:
        """Return the params or the result; empty if it is absent or not an object."""
        message = self.message
        if isinstance(message, Request | Notification):
            return members(message.params)
        return members(message.result) if isinstance(message, Result) else {}

    @property
    def method(self) -> str | None:
        message = self.message
        return message.method if isinstance(message, Request | Notification) else None

    @property
    def update(self) -> dict[str, Any]:
        """Return the update in this frame; empty if there is none."""
        found = self.payload.get("update") if self.method == SESSION_UPDATE else None
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def answers(self, asked: Request) -> bool:
        """Return True if this is the agent's answer to `asked`."""
        answer = self.message
        if self.side == "client" or not isinstance(answer, Result | Failure) or answer.id is None:
            return False
        return exact(answer.id) == exact(asked.id)

    def __str__(self) -> str:
        return f"frame {self.number} ({self.side}: {self.named()})"

    def named(self) -> str:
        """Return a short description of the entry."""
        match self.message:
            case Request(method=method) | Notification(method=method):
                kind, text = self.update.get("sessionUpdate"), prompt_text(self.payload)
                words = f" {_short(text)}" if text is not None else f" {kind}" if kind else ""
                return f"{method}{words}"
            case Result(id=number):
                return f"answer to {number!r}"
            case Failure(id=number):
                return f"error to {number!r}"
            case None:
                return "the end" if self.closed or self.exit is not None else "no message"


class Recording(Struct):
    """A complete recording."""

    header: Header
    entries: list[Entry]


def first_line(redacted: Sequence[str] = ()) -> bytes:
    """The header of a new file, with its line end."""
    return msgspec.json.encode(Header(FORMAT, VERSION, __version__, tuple(redacted))) + b"\n"


def entry_line(entry: Entry) -> bytes:
    """Return one entry as a line, including its line end."""
    parts = _content(entry.line) if entry.line else {}
    ends: dict[str, Any] = {} if entry.exit is None else {"exit": entry.exit}
    return (
        msgspec.json.encode(_Line(entry.number, entry.ms, entry.side, closed=entry.closed, **parts, **ends)) + b"\n"
    )


def read_recording(path: Path) -> Recording:
    """Read a recording; a file that was cut off within a line is valid up to that line.

    Raises:
        RecordingUnreadable: The file is not a recording, or has another version.
    """
    return Recording(_header(path), list(_entries(path)))


def _header(path: Path) -> Header:
    """Read the header. Raises `RecordingUnreadable`."""
    try:
        with path.open("rb") as file:
            header = msgspec.json.decode(file.readline(), type=Header)
    except UNREADABLE:
        raise RecordingUnreadable(f"{path} does not begin as a recording does", path=str(path)) from None
    if header.format != FORMAT:
        raise RecordingUnreadable(f"{path} is no recording; `turnwire record` makes one", path=str(path))
    if header.version != VERSION:
        known = f"version {VERSION} is what this turnwire reads"
        raise RecordingUnreadable(f"{path} is of version {header.version}; {known}", path=str(path))
    return header


def _entries(path: Path) -> Iterator[Entry]:
    lines = path.read_bytes().split(b"\n")
    for place, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        entry = _entry(line)
        if entry is not None:
            yield entry
        elif place < len(lines):
            raise RecordingUnreadable(f"line {place} of {path} is no frame of a recording", path=str(path))
        # The writer was killed while writing the last line.


def _entry(line: bytes) -> Entry | None:
    """Decode one entry written by `entry_line`; None if the line is not one."""
    try:
        found = msgspec.json.decode(line, type=_Line)
    except UNREADABLE:
        return None
    ended = None if found.exit is UNSET else found.exit
    return Entry(found.n, found.ms, found.side, _bytes_of(found), ended, found.closed)


def _content(line: bytes) -> dict[str, Any]:
    """Return the stored form of a frame's bytes: unchanged if they are one line of JSON."""
    try:
        msgspec.json.decode(line.decode())
    except UNREADABLE:
        return {"text": line.decode(errors="replace")}
    return {"frame": Raw(line.replace(b"\r", b" ").replace(b"\n", b" "))}


def _bytes_of(line: _Line) -> bytes:
    if line.frame is not UNSET:
        return bytes(line.frame)
    return b"" if line.text is UNSET else line.text.encode()


def members(payload: Raw) -> dict[str, Any]:
    """Return a payload as Python values; empty if it is not an object."""
    try:
        found: Any = msgspec.json.decode(payload) if payload else {}
    except UNREADABLE:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def prompt_text(params: dict[str, Any]) -> str | None:
    """Return the text of a prompt, or None if these are not the params of a prompt."""
    blocks = params.get("prompt")
    if not isinstance(blocks, list):
        return None
    texts = [
        cast("dict[str, Any]", each).get("text") for each in cast("list[Any]", blocks) if isinstance(each, dict)
    ]
    return "".join(each for each in texts if isinstance(each, str))


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
