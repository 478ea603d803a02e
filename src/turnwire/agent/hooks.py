"""What the author of an agent gave: functions for prompts, commands and what happens to sessions.

Takes functions, plain or async; gives them a uniform call. Never runs one by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, TypeAlias

from turnwire.agent.options import Command
from turnwire.errors import LocalProtocolError
from turnwire.runtime.cancellation import contained

Function: TypeAlias = Callable[..., Any]


@dataclass
class Hooks:
    """The author's functions; None where there is none."""

    prompt: Function | None = None
    opened: Function | None = None
    closed: Function | None = None
    authenticate: Function | None = None
    changed: Function | None = None
    steer: Function | None = None
    named: Function | None = None
    """`(opening, meta, forked)`: the id of a new session. None has one made."""
    missing: Function | None = None
    """`(opening, meta)`: a session that the store has not, as `Kept`; None if there is none."""
    commands: dict[str, tuple[Command, Function]] = field(default_factory=dict[str, tuple[Command, Function]])
    extensions: dict[str, Function] = field(default_factory=dict[str, Function])


async def call(function: Function | None, *args: Any) -> Any:
    """Call it, and wait for it if it is async. None if there is none.

    Raises what it raises; `LocalProtocolError` if it cancels itself, which would look like a cancel from outside.
    """
    if function is None:
        return None
    with contained():
        result: Any | Awaitable[Any] = function(*args)
        return await result if isawaitable(result) else result
    raise LocalProtocolError("the function raised the exception that cancels, and nobody had cancelled it")
