"""Small parts that stand around an adapted object, its link and its extensions.

Takes an object, a link or a way to ask; gives the same with a look at what passes. Never changes what passes, and
never hides a method that the object has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from turnwire.agent.adapt_sessions import current
from turnwire.agent.hooks import Function
from turnwire.agent.turn import Turn
from turnwire.agent.words import Json
from turnwire.link.base import FrameLink


class Watched:
    """Prompts of an object: each knows its turn, and can be stopped."""

    def __init__(self, turns: Mapping[str, Turn]) -> None:
        self._turns = turns
        self._scopes: dict[str, anyio.CancelScope] = {}

    def around(self, to_agent: Any) -> Any:
        """The object with its prompts watched; or what makes it, made so."""
        if not callable(to_agent):
            return _Around(to_agent, self)
        make: Callable[[Any], Any] = to_agent

        def around(connection: Any) -> Any:
            return _Around(make(connection), self)

        return around

    def stop(self, session_id: str) -> None:
        """Cancel the prompt that runs in a session."""
        scope = self._scopes.get(session_id)
        if scope is not None:
            scope.cancel()

    async def prompt(self, function: Callable[..., Awaitable[Any]], given: tuple[Any, ...], named: Json) -> Any:
        """Run a prompt of the object."""
        session_id = str(named["session_id"] if "session_id" in named else getattr(given[0], "session_id", ""))
        current.set(self._turns.get(session_id))
        with anyio.CancelScope() as scope:
            self._scopes[session_id] = scope
            try:
                return await function(*given, **named)
            finally:
                if self._scopes.get(session_id) is scope:
                    del self._scopes[session_id]


class _Around:
    """The object, as the SDK sees it."""

    def __init__(self, agent: Any, watched: Watched) -> None:
        self._agent = agent
        self._watched = watched

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._agent, name)
        if name != "prompt":
            return found

        async def prompt(*given: Any, **named: Any) -> Any:
            return await self._watched.prompt(found, given, named)

        # The SDK tells the old form of a method from the new one by what the function takes.
        prompt.__func__ = getattr(found, "__func__", found)  # pyright: ignore[reportFunctionMemberAccess]
        return prompt


class AnyExtension(dict[str, Function]):
    """Every method of an extension is the object's to answer."""

    def __init__(self, ask: Callable[[str, Json], Awaitable[Json]]) -> None:
        super().__init__()
        self._ask = ask

    def __contains__(self, method: object) -> bool:
        return isinstance(method, str) and method.startswith("_")

    def __missing__(self, method: str) -> Function:
        async def answer(params: Json, session: object) -> Json:
            return await self._ask(method, params)

        return answer


class Ahead:
    """A link whose messages somebody looks at before they are taken."""

    def __init__(self, link: FrameLink, look: Callable[[bytes], Awaitable[bool]]) -> None:
        self._link = link
        self._look = look

    async def receive(self) -> list[bytes]:
        """What has arrived and is for the reader. Raises `LinkBroken`, `LinkClosed`."""
        while True:
            lines = [line for line in await self._link.receive() if await self._look(line)]
            if lines:
                return lines

    async def send(self, frame: bytes) -> None:
        """Send one frame, waiting for room."""
        await self._link.send(frame)

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame or refuse."""
        self._link.send_nowait(frame)

    async def aclose(self) -> None:
        """Close our side."""
        await self._link.aclose()
