"""Announce to anyio, in event loop callbacks, that asyncio is running.

anyio detects the library from the current task. A callback has no task. If sniffio is installed, anyio then reads
its context variable (`current_async_library_cvar`, the documented way to announce a library). `anyio.run` sets it
and `asyncio.run` does not, so a program that embeds turnwire may have a loop without it. Every entry point sets it;
callbacks inherit the context of the code that scheduled them.
"""

from __future__ import annotations

from contextvars import ContextVar
from importlib import import_module
from typing import Any


def _library() -> ContextVar[Any] | None:
    try:
        return import_module("sniffio").current_async_library_cvar
    except ModuleNotFoundError:
        # anyio then asks for the running loop, which callbacks have as well.
        return None


_LIBRARY = _library()


def mark_asyncio() -> None:
    """Mark this context, and those that are copied from it, as run by asyncio."""
    if _LIBRARY is not None:
        _LIBRARY.set("asyncio")
