"""A table of paths: what is at a path is found by its segments, however long the table is.

A template is written as Starlette writes it. `{name}` stands for one segment that is not empty, `{name:path}` for
any number of them. Of the templates that fit a path the one that was added first is found. A path is taken as it
came, decoded once: one slash more or less, at the end too, makes another path.
"""

from __future__ import annotations

import re
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.routing import compile_path

T = TypeVar("T")


def own_path(scope: Any) -> str:
    """The path of a request below where another application has put us, if one has."""
    path: str = scope["path"]
    mount: str = scope.get("root_path", "")
    below = path.removeprefix(mount)
    return below if not below or below.startswith("/") else path


class Found(NamedTuple, Generic[T]):
    """What is at a path."""

    value: T
    params: dict[str, str]
    """What stands for the names of its template."""


class _Entry(NamedTuple, Generic[T]):
    place: int
    """In the order of the templates."""
    value: T
    names: tuple[tuple[str, int], ...]
    """Of each name, which segment stands for it."""


class _Long(NamedTuple, Generic[T]):
    """A template with `{name:path}`."""

    place: int
    value: T
    begins: str
    pattern: re.Pattern[str]


class _Node(Generic[T]):
    """What may follow the segments before it."""

    def __init__(self) -> None:
        self.named: dict[str, _Node[T]] = {}
        self.any: _Node[T] | None = None
        self.entry: _Entry[T] | None = None


class PathTable(Generic[T]):
    """Values by the templates of their paths."""

    def __init__(self) -> None:
        self._root = _Node[T]()
        self._long: list[_Long[T]] = []
        self._size = 0

    def add(self, template: str, value: T) -> None:
        """Put it behind those that are there."""
        self._size += 1
        if ":path}" in template:
            pattern = compile_path(template)[0]
            self._long.append(_Long(self._size, value, template.partition("{")[0], pattern))
            return
        node, names = self._root, list[tuple[str, int]]()
        for at, segment in enumerate(template.split("/")):
            if segment.startswith("{"):
                names.append((segment.strip("{}"), at))
                node.any = node = node.any or _Node[T]()
            else:
                node = node.named.setdefault(segment, _Node[T]())
        node.entry = node.entry or _Entry(self._size, value, tuple(names))

    def find(self, path: str) -> Found[T] | None:
        """What is at this path."""
        segments = path.split("/")
        entry = _find(self._root, segments, 0)
        for each in self._long:
            if path.startswith(each.begins) and (entry is None or each.place < entry.place):
                match = each.pattern.fullmatch(path)
                if match is not None:
                    return Found(each.value, match.groupdict())
        return None if entry is None else Found(entry.value, {name: segments[at] for name, at in entry.names})


def _find(node: _Node[T], segments: list[str], at: int) -> _Entry[T] | None:
    if at == len(segments):
        return node.entry
    segment = segments[at]
    named = node.named.get(segment)
    found = None if named is None else _find(named, segments, at + 1)
    if node.any is not None and segment:
        other = _find(node.any, segments, at + 1)
        if found is None or (other is not None and other.place < found.place):
            return other
    return found
