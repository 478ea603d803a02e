"""An agent that answers from a table and records every frame it gets: turnwire as an agent's client.

The input is its capabilities and its answers by method; it returns the received frames in order, and sends frames
on the test's command. A method without an answer in the table is left open for the test. Every wait is bounded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import msgspec
from tests.support.acp import Place, acp_daemon
from tests.support.heard import Heard, Json

from turnwire.errors import LinkError
from turnwire.hosting.memory import MemoryLink, memory_pair
from turnwire.hosting.source import LinkedAgent

Reply: TypeAlias = "Json | Callable[[Json], Json]"
"""`{"result": …}` or `{"error": …}`, or a function of the params that returns one."""

INFO: Json = {"name": "recorder", "version": "1"}
V2_AGENT: Json = {"protocolVersion": 2, "info": INFO, "capabilities": {"session": {}}}


def v1_agent(**capabilities: Any) -> Json:
    """The answer of a v1 agent to `initialize`."""
    return {"protocolVersion": 1, "agentInfo": INFO, "agentCapabilities": capabilities}


class Recorder(Heard):
    """A source of such agents. They share one record."""

    def __init__(self, says: Json, **replies: Reply) -> None:
        """`replies`: by method, with `__` for the slash."""
        super().__init__()
        self.replies: dict[str, Reply] = {
            "initialize": {"result": says},
            "session/new": self._new,
            **{name.replace("__", "/"): reply for name, reply in replies.items()},
        }
        self.opened = 0
        self._link: MemoryLink | None = None
        self._tasks = anyio.create_task_group()

    def _new(self, params: Json) -> Json:
        self.opened += 1
        return {"result": {"sessionId": f"a{self.opened}"}}

    async def connect(self) -> LinkedAgent:
        ours, self._link = memory_pair()
        self._tasks.start_soon(self._run, self._link)
        return LinkedAgent(ours)

    async def _run(self, link: MemoryLink) -> None:
        try:
            while True:
                for line in await link.receive():
                    self._take(msgspec.json.decode(line))
        except LinkError:
            pass

    def _take(self, frame: Json) -> None:
        self.hear(frame)
        reply = self.replies.get(frame.get("method", ""))
        if reply is not None and "id" in frame:
            outcome = reply(frame["params"]) if callable(reply) else reply
            self.send({"id": frame["id"], **outcome})

    def send(self, frame: Json) -> None:
        """Send a frame to turnwire."""
        self.send_line(msgspec.json.encode({"jsonrpc": "2.0", **frame}))

    def send_line(self, line: bytes) -> None:
        assert self._link is not None, "an agent is there"
        self._link.send_nowait(line)

    def update(self, kind: str, session_id: str = "a1", /, **members: Any) -> None:
        params = {"sessionId": session_id, "update": {"sessionUpdate": kind, **members}}
        self.send({"method": "session/update", "params": params})

    def say(self, text: str, session_id: str = "a1", **members: Any) -> None:
        self.update("agent_message_chunk", session_id, content={"type": "text", "text": text}, **members)

    async def asked(self, method: str) -> Json:
        """The first request or notification with this method."""
        return await self.until(lambda each: each.get("method") == method)

    async def prompted(self, count: int = 1) -> Json:
        """The nth prompt."""
        prompts = [each for each in self.frames if each.get("method") == "session/prompt"]
        if len(prompts) >= count:
            return prompts[count - 1]
        await self.until(lambda each: each.get("method") == "session/prompt", len(self.frames))
        return await self.prompted(count)

    def methods(self) -> list[str]:
        """Return the received requests and notifications in order, without answers."""
        return [each["method"] for each in self.frames if "method" in each]

    async def cut(self) -> None:
        """The newest agent goes without a word."""
        assert self._link is not None, "an agent is there"
        await self._link.aclose()

    async def __aenter__(self) -> Recorder:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *trace: Any) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(*trace)


@asynccontextmanager
async def recorded(says: Json, **replies: Reply) -> AsyncGenerator[tuple[Place, Recorder]]:
    """Run a daemon whose agents are recorders."""
    async with Recorder(says, **replies) as agent, acp_daemon(source=agent) as place:
        yield place, agent
