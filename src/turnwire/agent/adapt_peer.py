"""An object written for the official Python SDK, reached as the v1 agent that it is, without a pipe between.

Takes the object and who hears it; gives requests and notifications to it. The SDK's own connection stands in front
of the object, so it gets the SDK's models and its `conn` is the SDK's; only what would be bytes on a pipe are
messages here. They come one after the other in the order they were sent, and what it asks is done inside the task
that asks, so that what is cancelled there is cancelled here. Needs the package `agent-client-protocol`, and never
imports it before an object is adapted.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

import anyio
import msgspec

from turnwire.errors import AgentFailure, ConfigError, LinkBroken, NotOffered, TurnwireError
from turnwire.wire.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND

PACKAGE = "agent-client-protocol"

Json = dict[str, Any]


class Listener(Protocol):
    """Who hears the object."""

    async def told(self, method: str, params: Json) -> None:
        """A notification."""
        ...

    async def asked(self, method: str, params: Json) -> Json:
        """A request; gives its result. Raises what `AgentFailure` and others say."""
        ...


def official() -> Any:
    """The official SDK. Raises `ConfigError` if it is not installed."""
    try:
        import acp  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(f"adapting needs the official SDK; install it: pip install {PACKAGE}") from None
    if not hasattr(acp, "AgentSideConnection"):
        raise ConfigError(f"the module `acp` is not the official SDK; install it: pip install {PACKAGE}")
    return acp


class Waiting:
    """A request to the object. Any number of tasks may wait for its answer, one after the other."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._came = anyio.Event()
        self._message: Json | None = None

    @property
    def is_done(self) -> bool:
        return self._came.is_set()

    def give(self, message: Json | None) -> None:
        """The answer; None if there will be none."""
        self._message = message
        self._came.set()

    async def result(self) -> Json:
        """What it answers.

        Raises:
            AgentFailure: An error.
            LinkBroken: It was ended first.
        """
        await self._came.wait()
        if self._message is None:
            raise LinkBroken("the agent was ended before it answered", method=self._method)
        if "error" in self._message:
            raise _failure(self._message["error"])
        return self._message.get("result") or {}


class OfficialPeer:
    """One object of the official SDK. `open` it inside a running event loop; `aclose` it there."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._numbers = count(1)
        self._waiting: dict[int, Waiting] = {}
        self._to_it, self._from_us = anyio.create_memory_object_stream[Json | None](float("inf"))
        self._connection: Any = None

    def open(self, to_agent: Any) -> None:
        """Put the SDK's connection in front of the object, which hears of it in `on_connect`."""
        connect: Callable[..., Any] = official().AgentSideConnection
        self._connection = connect(to_agent, self, use_unstable_protocol=True)

    async def aclose(self) -> None:
        """End it: its tasks are cancelled."""
        for waiting in self._waiting.values():
            waiting.give(None)
        if self._connection is not None:
            await self._connection.close()
        self._to_it.close()
        self._from_us.close()

    # -- to the object ---------------------------------------------------------------------------------------

    def begin(self, method: str, params: Json) -> Waiting:
        """Send a request; its answer can be waited for."""
        number = next(self._numbers)
        self._waiting[number] = waiting = Waiting(method)
        self._to_it.send_nowait({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return waiting

    async def ask(self, method: str, params: Json) -> Json:
        """Send a request and give its result. Raises `AgentFailure`, `LinkBroken`."""
        return await self.begin(method, params).result()

    def notify(self, method: str, params: Json) -> None:
        """Send a notification."""
        self._to_it.send_nowait({"jsonrpc": "2.0", "method": method, "params": params})

    # -- what the SDK calls: it takes this for its pipe ----------------------------------------------------------

    async def receive(self) -> Json | None:
        """The next message for the object; none when there will be no more."""
        try:
            return await self._from_us.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            return None

    async def send(self, message: Json) -> None:
        """A message of the object. Returns when it was heard, and a request when it was answered."""
        method, number = message.get("method"), message.get("id")
        if method is None:
            if (waiting := self._waiting.pop(number or 0, None)) is not None:
                waiting.give(message)
        elif number is None:
            await self._listener.told(method, message.get("params") or {})
        else:
            answer = {"jsonrpc": "2.0", "id": number}
            self._to_it.send_nowait({**answer, **await self._outcome(method, message.get("params") or {})})

    async def close(self) -> None:
        """The SDK has closed its side."""
        self._to_it.close()

    async def _outcome(self, method: str, params: Json) -> Json:
        try:
            return {"result": await self._listener.asked(method, params)}
        except NotOffered as error:
            return {"error": {"code": METHOD_NOT_FOUND, "message": str(error)}}
        except TurnwireError as error:
            code = error.context.get("jsonrpc")
            return {"error": {"code": code if isinstance(code, int) else INTERNAL_ERROR, "message": str(error)}}


def _failure(error: Json) -> AgentFailure:
    """What the object's author said, but nothing of an exception that was nobody's word."""
    code = int(error.get("code", INTERNAL_ERROR))
    details = error.get("data")
    if code == INTERNAL_ERROR or details is None:
        return AgentFailure(str(error.get("message") or "the agent failed"), jsonrpc=code)
    return AgentFailure(
        str(error.get("message") or "the agent refused"), jsonrpc=code, data=msgspec.json.encode(details)
    )
