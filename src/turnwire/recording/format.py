"""The file of a recording: a header line, then one line for each frame in the order in which it passed.

    {"format":"turnwire-recording","version":1,"turnwire":"0.9.0","redacted":["env","home"]}
    {"n":1,"ms":0,"from":"client","frame":{"jsonrpc":"2.0","id":0,"method":"initialize",...}}
    {"n":2,"ms":41,"from":"agent","frame":{...}}
    {"n":3,"ms":99,"from":"agent","text":"a line that is no JSON"}
    {"n":4,"ms":120,"from":"client","closed":true}
    {"n":5,"ms":122,"from":"agent","exit":0}

`n` counts from 1 and is how a frame is named everywhere; `ms` are milliseconds since the recording began. A frame
is there byte for byte. `closed` is where the client ended the agent's input. The last line says how the agent
ended, if it did: its exit code, or minus the number of the signal. A member that is not known here is passed
over; another `version` is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from turnwire import __version__
from turnwire.core.correlation import exact
from turnwire.errors import RecordingUnreadable, RemoteProtocolError
from turnwire.wire.jsonrpc import UNREADABLE, Batch, Failure, Frame, Notification, Request, Result, decode
from turnwire.wire.methods import SESSION_UPDATE

FORMAT: Final = "turnwire-recording"
VERSION: Final = 1
SHOWN: Final = 60
"""Characters of a prompt that are shown when its frame is named."""

Side: TypeAlias = Literal["client", "agent"]


class Header(Struct, frozen=True, omit_defaults=True):
    """What stands first."""

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
    """How the agent ended, if this is its end."""
    closed: bool = False
    """The client ends the agent's input here."""

    @cached_property
    def message(self) -> Frame | None:
        """What it is; none if it is no message of JSON-RPC."""
        try:
            found = decode(self.line)
        except RemoteProtocolError:
            return None
        return None if isinstance(found, Batch) else found

    @cached_property
    def payload(self) -> dict[str, Any]:
        """The params or the result; empty if it has none, or one that is no object."""
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
        """The update that it tells; empty if it tells none."""
        found = self.payload.get("update") if self.method == SESSION_UPDATE else None
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def asks(self, method: str) -> bool:
        """Whether it is this request of the client."""
        asked = self.message
        return self.side == "client" and isinstance(asked, Request) and asked.method == method

    def answers(self, asked: Request) -> bool:
        """Whether it is the agent's answer to this."""
        answer = self.message
        if self.side == "client" or not isinstance(answer, Result | Failure) or answer.id is None:
            return False
        return exact(answer.id) == exact(asked.id)

    def __str__(self) -> str:
        return f"frame {self.number} ({self.side}: {self.named()})"

    def named(self) -> str:
        """What it is, in a few words."""
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
    """A whole file."""

    header: Header
    entries: list[Entry]


def first_line(redacted: Sequence[str] = ()) -> bytes:
    """The header of a new file, with its line end."""
    return msgspec.json.encode(Header(FORMAT, VERSION, __version__, tuple(redacted))) + b"\n"


def entry_line(entry: Entry) -> bytes:
    """One entry as it is written, with its line end."""
    parts = _content(entry.line) if entry.line else {}
    ends: dict[str, Any] = {} if entry.exit is None else {"exit": entry.exit}
    return (
        msgspec.json.encode(_Line(entry.number, entry.ms, entry.side, closed=entry.closed, **parts, **ends)) + b"\n"
    )


def read_recording(path: Path) -> Recording:
    """A file as it was written; one that was cut off in the middle of a line is whole up to there.

    Raises:
        RecordingUnreadable: It is no recording, or one of another version.
    """
    return Recording(read_header(path), list(_entries(path)))


def read_header(path: Path) -> Header:
    """What stands first. Raises `RecordingUnreadable`."""
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
        entry = read_entry(line)
        if entry is not None:
            yield entry
        elif place < len(lines):
            raise RecordingUnreadable(f"line {place} of {path} is no frame of a recording", path=str(path))
        # Whoever wrote the last one was killed in the middle of it.


def read_entry(line: bytes) -> Entry | None:
    """One entry as `entry_line` wrote it; none if it is no such line."""
    try:
        found = msgspec.json.decode(line, type=_Line)
    except UNREADABLE:
        return None
    ended = None if found.exit is UNSET else found.exit
    return Entry(found.n, found.ms, found.side, _bytes_of(found), ended, found.closed)


def _content(line: bytes) -> dict[str, Any]:
    """How the bytes of a frame stand in the file: as they are, if they are JSON of one line."""
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
    """A payload as Python values; empty if it is no object."""
    try:
        found: Any = msgspec.json.decode(payload) if payload else {}
    except UNREADABLE:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def prompt_text(params: dict[str, Any]) -> str | None:
    """The text of a prompt; none if these are the params of no prompt."""
    blocks = params.get("prompt")
    if not isinstance(blocks, list):
        return None
    texts = [
        cast("dict[str, Any]", each).get("text") for each in cast("list[Any]", blocks) if isinstance(each, dict)
    ]
    return "".join(each for each in texts if isinstance(each, str))


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
