"""The mark by which anyio knows in callbacks that asyncio runs.

In a task anyio sees that for itself. In a callback of the loop, from which tasks are started too, it looks for a
mark in the context, which `anyio.run` makes and `asyncio.run` does not. A program that embeds turnwire may have
begun its loop either way, so whatever it enters us by makes the mark. A callback has the context of who ordered it.
"""

from __future__ import annotations

from contextvars import ContextVar
from importlib import import_module
from typing import Any


def _mark() -> ContextVar[Any] | None:
    try:
        return import_module("sniffio").current_async_library_cvar
    except ModuleNotFoundError:
        # Then anyio asks for the running loop, which callbacks have as well.
        return None


_MARK = _mark()


def mark_asyncio() -> None:
    """In this context, and in what is ordered from it, asyncio runs."""
    if _MARK is not None:
        _MARK.set("asyncio")
