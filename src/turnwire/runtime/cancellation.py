"""Telling a real cancellation from one that a user's function raised by itself, among our own tasks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from math import inf

import anyio


def is_cancelled() -> bool:
    """Return true if an enclosing cancel scope is cancelled."""
    return anyio.current_effective_deadline() == -inf


@contextmanager
def contained() -> Generator[None]:
    """Suppress a cancellation exception if no enclosing scope is cancelled.

    A user's function may raise one by itself, or again after it swallowed a real one. In a task group such an
    exception would end all other tasks.
    """
    try:
        yield
    except anyio.get_cancelled_exc_class():
        if is_cancelled():
            raise
