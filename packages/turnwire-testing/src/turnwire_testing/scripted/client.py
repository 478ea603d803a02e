"""A bare client for tests: speaks JSON to an agent over any link, and records everything in order.

Calls wait for their answer; `seen` is every frame the agent sent. Requests of the agent are answered from
`answers`; without an entry they stay open. The protocol is not checked here: tests do that. Every wait is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, cast

import anyio
import msgspec

from turnwire.hosting.base import FrameLink
from turnwire.wire.methods import SESSION_NEW, SESSION_PROMPT, SESSION_UPDATE
from turnwire_testing.patience import WAIT_S
from turnwire_testing.scripted.shapes import Json, member, text_block

CAPABILITIES: Json = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "elicitation": {"form": {}},
}
"""The client's default capabilities: everything a scripted agent can ask for."""


class BareClient:
    """One client on one link. Only one task may use it at a time."""

    def __init__(self, link: FrameLink, answers: Mapping[str, Any] | None = None) -> None:
        self.answers = dict(answers or {})
        """The result for each method the agent may call."""
        self.seen: list[Json] = []
        """Every frame so far, oldest first."""
        self.noise: list[bytes] = []
        """Every line that was no JSON object."""
        self._link = link
        self._ids = count(1)
        self._read = 0

    async def initialize(self, version: int = 1, capabilities: Json | None = None) -> Json:
        """Initialize the connection and return the result. The params carry the fields of both versions."""
        offered = CAPABILITIES if capabilities is None else capabilities
        identity = {"name": "bare-client", "version": "1"}
        params = {
            "protocolVersion": version,
            "clientCapabilities": offered,
            "clientInfo": identity,
            "capabilities": offered,
            "info": identity,
        }
        return (await self.call("initialize", params))["result"]

    async def new_session(self, cwd: str = "/") -> str:
        """Open a session and return its id."""
        answer = await self.call(SESSION_NEW, {"cwd": cwd, "mcpServers": []})
        return answer["result"]["sessionId"]

    async def prompt(self, session_id: str, text: str) -> Json:
        """Prompt, and wait for the end of the turn: the answer in v1, the next idle update in v2."""
        answer = await self.call(SESSION_PROMPT, prompt_params(session_id, text))
        if member(answer, "result", "messageId") is None:
            return answer
        return await self.until(lambda frame: is_idle(frame, session_id))

    async def call(self, method: str, params: Json) -> Json:
        """Send a request and wait for the frame that answers it."""
        request_id = await self.request(method, params)
        return await self.until(lambda frame: "method" not in frame and frame.get("id") == request_id)

    async def request(self, method: str, params: Json, request_id: int | str | None = None) -> int | str:
        """Send a request without waiting, and return its id."""
        chosen = next(self._ids) if request_id is None else request_id
        await self.send({"jsonrpc": "2.0", "id": chosen, "method": method, "params": params})
        return chosen

    async def notify(self, method: str, params: Json) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def send(self, frame: Json) -> None:
        await self._link.send(msgspec.json.encode(frame))

    async def until(self, wanted: Callable[[Json], bool]) -> Json:
        """The next wanted frame after the one that was returned last. Raises `LinkBroken`, `TimeoutError`."""
        with anyio.fail_after(WAIT_S):
            while True:
                while self._read < len(self.seen):
                    frame = self.seen[self._read]
                    self._read += 1
                    if wanted(frame):
                        return frame
                await self._receive()

    async def update(self, kind: str) -> Json:
        """The next session update of a kind."""
        frame = await self.until(lambda each: member(each, "params", "update", "sessionUpdate") == kind)
        return frame["params"]["update"]

    def updates(self) -> list[Json]:
        """Every session update seen so far."""
        return [frame["params"]["update"] for frame in self.seen if frame.get("method") == SESSION_UPDATE]

    def text(self) -> str:
        """Return the text of all the agent's messages."""
        chunks = (each for each in self.updates() if each.get("sessionUpdate") == "agent_message_chunk")
        return "".join(each["content"]["text"] for each in chunks)

    async def _receive(self) -> None:
        for frame in self._decoded(await self._link.receive()):
            self.seen.append(frame)
            method = frame.get("method")
            if "id" in frame and method in self.answers:
                await self.send({"jsonrpc": "2.0", "id": frame["id"], "result": self.answers[method]})

    def _decoded(self, lines: Iterable[bytes]) -> Iterable[Json]:
        for line in lines:
            try:
                value: Any = msgspec.json.decode(line)
            except msgspec.DecodeError:
                value = None
            if isinstance(value, dict):
                yield cast("Json", value)
            else:
                self.noise.append(line)


def prompt_params(session_id: str, text: str) -> Json:
    """The params of a prompt with one text block."""
    return {"sessionId": session_id, "prompt": [text_block(text)]}


def is_idle(frame: Json, session_id: str) -> bool:
    """Return True if a frame reports that a session is idle (v2)."""
    update = member(frame, "params", "update")
    return (
        member(frame, "params", "sessionId") == session_id
        and member(update, "sessionUpdate") == "state_update"
        and member(update, "state") == "idle"
    )
