"""The received frames of one side of a connection, in order of arrival, with bounded waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Condition
from time import monotonic
from typing import Any, cast

from tests.patience import SOON_S

START_S = 60.0
"""Timeout for steps that may have to start a process first."""

Frame = dict[str, Any]
Fits = Callable[[Frame], bool]


class Heard:
    """Frames that a reader thread adds, and that a test waits for."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._changed = Condition()
        self.is_over = False

    def add(self, frame: Frame) -> None:
        with self._changed:
            self._frames.append(frame)
            self._changed.notify_all()

    def over(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def all(self) -> list[Frame]:
        with self._changed:
            return list(self._frames)

    def find(self, fits: Fits) -> Frame | None:
        return next((frame for frame in self.all() if fits(frame)), None)

    def until(self, fits: Fits, *, what: str = "frame", within: float = SOON_S) -> Frame:
        """The first frame that fits, however long ago it came."""
        [found] = self.several(fits, 1, what=what, within=within)
        return found

    def several(self, fits: Fits, count: int, *, what: str = "frame", within: float = SOON_S) -> list[Frame]:
        """The first `count` frames that fit."""
        deadline = monotonic() + within
        with self._changed:
            while True:
                found = [frame for frame in self._frames if fits(frame)][:count]
                if len(found) == count:
                    return found
                left = deadline - monotonic()
                if self.is_over or left <= 0:
                    why = "the wire ended" if self.is_over else f"nothing for {within:g} s"
                    raise AssertionError(f"no {what}: {why}; heard\n{shown(self._frames)}")
                self._changed.wait(left)


def shown(frames: list[Frame]) -> str:
    """The newest frames, for the message of a failed test."""
    return "\n".join(f"  {json.dumps(frame, default=str)[:300]}" for frame in frames[-12:])


def member(value: Any, *names: str) -> Any:
    """Return the value at this path of a frame, or `None`."""
    for name in names:
        value = cast("Frame", value).get(name) if isinstance(value, dict) else None
    return value


def about(frame: Frame) -> str | None:
    """The session that a message names."""
    found: str | None = member(frame, "params", "sessionId")
    return found


def answers(request_id: object) -> Fits:
    """The response with exactly this id: `2` is not `"2"`."""
    return lambda frame: (
        "method" not in frame and frame.get("id") == request_id and type(frame.get("id")) is type(request_id)
    )
