"""Reading JSON of which nothing is known yet.

Takes any value; gives typed ones, empty where the shape is another. Never raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, cast


def is_objects(value: object) -> TypeGuard[list[dict[str, Any]]]:
    """Whether this is a list of JSON objects."""
    return isinstance(value, list) and all(isinstance(each, dict) for each in cast("list[object]", value))


def inner(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object below `key`."""
    value: object = body.get(key)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def rows(body: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The list of objects below `key`."""
    value: object = body.get(key)
    return value if is_objects(value) else []
