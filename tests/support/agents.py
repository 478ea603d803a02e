"""An agent controlled by the test, which reads its input and writes its output frame by frame.

It uses a link's far end: it returns requests as they come, and sends any answer, update or request. It never
answers by itself.
"""

from __future__ import annotations

from typing import Any

import anyio
import msgspec

from turnwire.hosting.memory import MemoryLink, memory_pair
from turnwire.hosting.source import LinkedAgent
from turnwire.wire.jsonrpc import Notification, Request, Result, decode
from turnwire_testing.patience import WAIT_S

V1: dict[str, Any] = {"protocolVersion": 1, "agentCapabilities": {}}
READY: dict[str, Any] = {"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": {"ready": {}}}}


class HandAgent:
    """The far end of a link, as an agent would hold it."""

    def __init__(self, link: MemoryLink) -> None:
        self.link = link
        self._arrived: list[Request | Notification | Result] = []

    async def next(self, method: str) -> Request | Notification:
        """The next frame, which has this method."""
        frame = await self._next()
        assert isinstance(frame, Request | Notification)
        assert frame.method == method
        return frame

    async def next_result(self) -> Result:
        frame = await self._next()
        assert isinstance(frame, Result)
        return frame

    async def _next(self) -> Request | Notification | Result:
        with anyio.fail_after(WAIT_S):
            while not self._arrived:
                for line in await self.link.receive():
                    frame = decode(line)
                    assert isinstance(frame, Request | Notification | Result)
                    self._arrived.append(frame)
        return self._arrived.pop(0)

    def waiting(self) -> int:
        """Return the number of arrived frames that were not read. The link must be quiet."""
        return len(self._arrived) + self.link.waiting

    async def answer(self, method: str, result: object) -> Request:
        """Wait for a request with this method and answer it."""
        request = await self.next(method)
        assert isinstance(request, Request)
        self.send({"id": request.id, "result": result})
        return request

    async def greet(self, result: object = V1, session_id: str = "a1") -> None:
        """The handshake and the first session."""
        await self.answer("initialize", result)
        await self.answer("session/new", {"sessionId": session_id})

    def send(self, frame: dict[str, Any]) -> None:
        self.link.send_nowait(msgspec.json.encode({"jsonrpc": "2.0", **frame}))

    def update(self, text: str, session_id: str = "a1") -> None:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        self.send({"method": "session/update", "params": {"sessionId": session_id, "update": update}})

    def ask(
        self, request_id: int | str, method: str = "session/request_permission", session_id: str = "a1"
    ) -> None:
        params = {"sessionId": session_id, "options": [{"optionId": "yes"}]}
        self.send({"id": request_id, "method": method, "params": params})


class HandSource:
    """A source whose agents are controlled by the test, in the order in which they are requested."""

    def __init__(self, max_frames: int = 1024) -> None:
        self._max_frames = max_frames
        self._agents: list[HandAgent] = []
        self._more = anyio.Event()

    async def connect(self) -> LinkedAgent:
        ours, theirs = memory_pair(self._max_frames)
        self._agents.append(HandAgent(theirs))
        self._more.set()
        self._more = anyio.Event()
        return LinkedAgent(ours)

    async def agent(self, number: int = 0) -> HandAgent:
        """The nth agent, once it has been asked for."""
        with anyio.fail_after(WAIT_S):
            while len(self._agents) <= number:
                await self._more.wait()
        return self._agents[number]
