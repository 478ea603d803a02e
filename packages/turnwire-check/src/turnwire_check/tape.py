"""The tape: every frame of one connection in both directions, in the order in which it passed.

A frame retains its bytes unchanged. It is decoded with the standard JSON reader alone, and an invalid frame stays
on the tape with its flaw, because it may be the subject of a case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

import anyio

Flaw: TypeAlias = Literal["", "encoding", "json", "object"]
"""Why a line is no message: its bytes are no UTF-8, the text is no JSON, the JSON is no object."""


def at(value: object, *path: str) -> Any:
    """Return the value at these keys of a JSON value; `None` if there is none."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = cast("dict[str, object]", value).get(key)
    return value


def items(value: object) -> list[Any]:
    """Return the items of a JSON list; empty for any other value."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def has(value: object, key: str) -> bool:
    """Return True if this is an object with that member, even if null."""
    return isinstance(value, dict) and key in value


@dataclass(frozen=True, eq=False)
class Frame:
    """One line."""

    number: int
    """Its place on the tape."""
    is_ours: bool
    """Sent by the suite."""
    raw: bytes
    value: Any
    """The decoded JSON; `None` if there is a flaw."""
    flaw: Flaw
    at_s: float
    """Since the connection was opened."""
    channel: str = ""
    """The frame's channel, if the transport has several: a stream, or an answer to a POST."""

    @property
    def method(self) -> str | None:
        found = at(self.value, "method")
        return found if isinstance(found, str) else None

    @property
    def params(self) -> Any:
        return at(self.value, "params")

    @property
    def id(self) -> Any:
        return at(self.value, "id")

    @property
    def is_request(self) -> bool:
        return self.method is not None and has(self.value, "id")

    @property
    def is_notification(self) -> bool:
        return self.method is not None and not has(self.value, "id")

    @property
    def is_answer(self) -> bool:
        return self.value is not None and self.method is None and has(self.value, "id")

    @property
    def result(self) -> Any:
        return at(self.value, "result")

    @property
    def error(self) -> Any:
        return at(self.value, "error")

    @property
    def failed(self) -> bool:
        """True for an answer that is an error. A null member counts as absent."""
        return self.error is not None

    @property
    def succeeded(self) -> bool:
        """True for an answer that is a result, which may be null."""
        return has(self.value, "result") and not self.failed

    @property
    def update(self) -> Any:
        """The update in a `session/update`; `None` for any other frame."""
        return at(self.params, "update") if self.method == "session/update" else None

    @property
    def kind(self) -> Any:
        """The kind of the update; `None` for any other frame."""
        return at(self.update, "sessionUpdate")

    @property
    def session(self) -> Any:
        return at(self.params, "sessionId")


def read(raw: bytes) -> tuple[Any, Flaw]:
    """Decode a line as JSON, or return its flaw."""
    try:
        value: object = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return None, "encoding"
    except (ValueError, RecursionError):
        return None, "json"
    return (cast("object", value), "") if isinstance(value, dict) else (None, "object")


Match: TypeAlias = Callable[[Frame], bool]


@dataclass(eq=False)
class Tape:
    """The frames of one connection. Grows at its end only."""

    clock: Callable[[], float] = anyio.current_time
    frames: list[Frame] = field(default_factory=list[Frame])
    ended: str = ""
    """The reason of the peer's end; empty while it is connected."""

    ignored: set[str] = field(default_factory=set[str])
    """Sessions of earlier cases on this connection: late messages about them are not recorded."""

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._grown: anyio.Event | None = None

    def add(self, raw: bytes, *, is_ours: bool, channel: str = "") -> Frame:
        value, flaw = read(raw)
        frame = Frame(len(self.frames), is_ours, raw, value, flaw, self.clock() - self._began_s, channel)
        if (
            not is_ours
            and frame.is_notification
            and isinstance(frame.session, str)
            and frame.session in self.ignored
        ):
            return frame
        self.frames.append(frame)
        self._tell()
        return frame

    def end(self, how: str) -> None:
        """Nothing more will come."""
        self.ended = self.ended or how
        self._tell()

    async def longer_than(self, length: int) -> None:
        """Return when there are more frames than that, or the tape has ended."""
        while len(self.frames) <= length and not self.ended:
            self._grown = self._grown or anyio.Event()
            await self._grown.wait()

    def _tell(self) -> None:
        if self._grown is not None:
            self._grown.set()
            self._grown = None

    @property
    def began_s(self) -> float:
        return self._began_s

    def heard(self, since: int = 0, until: int | None = None) -> Iterator[Frame]:
        """Return the peer's frames between two positions."""
        return (each for each in self.frames[since:until] if not each.is_ours)


def joined(tapes: Sequence[Tape]) -> tuple[tuple[Frame, ...], Mapping[int, int]]:
    """Return all frames of a case in their time, and the position there of each frame, by its `id`.

    If a case has several connections, the channel of a frame names its connection.
    """
    if len(tapes) == 1:
        return tuple(tapes[0].frames), {id(each): each.number for each in tapes[0].frames}
    passed = [
        (tape.began_s + each.at_s, number, each) for number, tape in enumerate(tapes, 1) for each in tape.frames
    ]
    passed.sort(key=lambda found: found[0])
    frames: list[Frame] = []
    places: dict[int, int] = {}
    for at_s, number, each in passed:
        places[id(each)] = len(frames)
        channel = f"connection {number} {each.channel}".strip()
        frames.append(replace(each, number=len(frames), at_s=at_s - tapes[0].began_s, channel=channel))
    return tuple(frames), places
