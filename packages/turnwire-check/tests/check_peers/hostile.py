"""Peers that put values of wrong types into what they say, at random by a seed."""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

import json
import random
from typing import Any

WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 10**30, float("inf"), "", "x", "\ud800", "\x00\x1b[2J\ufffe", "é" * 500),
    *([], [[]], ["read"], [{}], [None, 1, "x"], {}, {"a": []}, {"type": []}, {"text": {"text": 1}}),
)


class Hostility:
    """Changes some members of some messages."""

    def __init__(self, seed: int, share: float) -> None:
        self._random = random.Random(seed)
        self._share = share

    def changed(self, value: Any, depth: int = 0) -> Any:
        """The same message, but for some members below its first level."""
        if depth > 1 and self._random.random() < self._share:
            return self._random.choice(WRONG)
        if isinstance(value, dict):
            return {key: self.changed(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list):
            return [self.changed(each, depth + 1) for each in value]
        return value

    def line(self, line: bytes) -> bytes:
        try:
            return json.dumps(self.changed(json.loads(line))).encode()
        except ValueError:
            return line
