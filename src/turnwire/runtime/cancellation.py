"""Cancelling, where functions of a program run among our own tasks: a real cancel, or one that the function made
up.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from math import inf

import anyio


def is_cancelled() -> bool:
    """Whether somebody has cancelled what is around."""
    return anyio.current_effective_deadline() == -inf


@contextmanager
def contained() -> Generator[None]:
    """Keep in the exception that cancels, where nobody has cancelled what is around.

    A program's function may raise it by itself, also after it has swallowed a real one. In a task group it ends
    everything else.
    """
    try:
        yield
    except anyio.get_cancelled_exc_class():
        if is_cancelled():
            raise
