"""A bare client: `send` a frame, wait for the `next` one that matches, look at all `frames` so far.

Nothing here knows of a transport; `transports.py` has one for each. Every wait is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from tests.fan.matrix import ASKING, Pair, Transport
from tests.support.acp_client import AcpClient, is_update, update_of
from tests.support.heard import Json

OPENING = frozenset({"session/new", "session/load", "session/resume"})
LAST_WORD = "usage_update"
"""The last unsolicited text of an agent when a session is new."""

INFO = {"name": "fan", "version": "1"}
_LACKING: dict[Transport, Json] = {
    "stdio": {"_meta": {"turnwire": {"turnComplete": False, "ready": False}}},
    "http": {"session": {"turnComplete": False, "ready": False}},
    "websocket": {"session": {"turnComplete": False}, "_meta": {"turnwire": {"ready": False}}},
}
"""Forms in which a client may lack the drafts: each transport has a different one, so that all are tested."""


def hello(pair: Pair) -> Json:
    """Return the params of `initialize` of a client of this dialect."""
    match pair.dialect:
        case "v1":
            return {"protocolVersion": 1, "clientCapabilities": _LACKING[pair.transport], "clientInfo": INFO}
        case "v1plus":
            return {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": INFO}
        case "v2":
            return {"protocolVersion": 2, "capabilities": {}, "info": INFO}


class End(NamedTuple):
    """The end of a turn, independent of the form in which the client received it."""

    stop_reason: str | None
    error: Json | None
    place: int
    """Index in the frames."""
    frame: Json


class FrameClient(AcpClient):
    """One client. The frames that it received since the handshake are in `frames`."""

    def __init__(self, pair: Pair, cwd: str, numbers: Iterator[int] | None = None) -> None:
        super().__init__(f"fan {number}" for number in numbers or count(1))
        self.pair = pair
        self.cwd = cwd
        self.asked: list[Json] = []
        """Its requests."""
        self.agreed: Json = {}
        """The result of `initialize`."""
        self.early: Json = {}
        """The response to a request before `initialize`; an HTTP status is `status`."""

    # -- the transport -------------------------------------------------------------------------------------

    def take(self, message: Json) -> None:
        """Handle a received frame."""
        self.hear(message)

    async def lose(self) -> None:
        """The transport is lost, without a word."""
        raise NotImplementedError(f"{self.pair.transport} has nothing to lose but itself")

    async def come_back(self) -> None:
        """On with the same connection over a new transport."""
        raise NotImplementedError

    # -- frames --------------------------------------------------------------------------------------------

    def place(self, frame: Json) -> int:
        return next(place for place, each in enumerate(self.frames) if each is frame)

    async def ask(self, method: str, /, request_id: int | str | None = None, **params: Any) -> int | str:
        chosen = await super().ask(method, request_id, **params)
        self.asked.append({"jsonrpc": "2.0", "id": chosen, "method": method, "params": params})
        return chosen

    async def echo(self) -> None:
        """Do a round trip: all earlier frames on this connection, and the updates they caused, have then
        arrived.
        """
        await self.call("session/list")


class Client(FrameClient):
    """One client with its sessions and turns, in the form of its dialect."""

    async def new(self, *, settled: bool = True) -> str:
        """Open a new session; return when the client is ready and the agent's initial updates have arrived."""
        session_id = (await self.call("session/new", cwd=self.cwd, mcpServers=[]))["sessionId"]
        if settled:
            await self.ready(session_id)
            await self.update(session_id, LAST_WORD)
        return session_id

    async def ready(self, session_id: str) -> None:
        """Send that the client is ready, in dialects that have it."""
        if self.pair.dialect in ASKING:
            await self.notify("session/ready", sessionId=session_id)

    async def load(self, session_id: str) -> Json:
        """Load a session with its history; return the answer."""
        params: Json = {"sessionId": session_id, "cwd": self.cwd, "mcpServers": []}
        if self.pair.version == 2:
            return await self.answer(await self.ask("session/resume", **params, replayFrom={"type": "start"}))
        return await self.answer(await self.ask("session/load", **params))

    async def prompt(
        self, session_id: str, *lines: str, request_id: int | str | None = None, meta: Json | None = None
    ) -> int | str:
        """Send a prompt and return its request id."""
        blocks = [{"type": "text", "text": "\n".join(lines)}]
        return await self.ask("session/prompt", request_id, sessionId=session_id, prompt=blocks, _meta=meta or {})

    async def end(self, session_id: str, request_id: int | str, after: int = 0) -> End:
        """The end of the turn that this prompt began."""
        answer = await self.answer(request_id, after)
        frame, told = answer, answer.get("result", {})
        if self.pair.version == 2 and "error" not in answer:

            def is_end(each: Json) -> bool:
                update = update_of(each, session_id)
                return update.get("state") == "idle" and "stopReason" in update

            frame = await self.until(is_end, self.place(answer))
            told = update_of(frame, session_id)
        return End(told.get("stopReason"), told.get("error") or answer.get("error"), self.place(frame), frame)

    async def run(self, session_id: str, *lines: str) -> End:
        """Run a whole turn."""
        return await self.end(session_id, await self.prompt(session_id, *lines))

    async def update(self, session_id: str, kind: str, after: int = 0, **members: Any) -> Json:
        """Wait for the first update of this kind with these members."""
        return update_of(await self.until(lambda each: is_update(each, kind, members, session_id), after))

    async def says(self, session_id: str, text: str) -> None:
        """Wait until the agent has sent this."""
        await self.until(lambda each: text_of(update_of(each, session_id)) == text)

    def updates(self, session_id: str, start: int = 0, stop: int | None = None) -> list[Json]:
        """The updates among these frames."""
        return [found for each in self.frames[start:stop] if (found := update_of(each, session_id))]

    def texts(self, session_id: str, start: int = 0, stop: int | None = None) -> list[str]:
        """Return the agent's text, chunk by chunk."""
        return [text for each in self.updates(session_id, start, stop) if (text := text_of(each))]

    async def question(self, session_id: str) -> Json:
        """The next question of the agent."""
        method = "session/request_permission"
        return await self.until(
            lambda each: each.get("method") == method and each["params"]["sessionId"] == session_id
        )

    async def choose(self, question: Json, option: str | None) -> None:
        """Answer a question; without an option it is cancelled."""
        chosen = {"outcome": "selected", "optionId": option} if option else {"outcome": "cancelled"}
        await self.send({"jsonrpc": "2.0", "id": question["id"], "result": {"outcome": chosen}})


def text_of(update: Json) -> str:
    """Return the text of a chunk of the agent's message; empty for any other update."""
    return update["content"]["text"] if update.get("sessionUpdate") == "agent_message_chunk" else ""


def kinds(updates: list[Json]) -> list[str]:
    return [each["sessionUpdate"] for each in updates]


def states(updates: list[Json]) -> list[str]:
    return [each["state"] for each in updates if each["sessionUpdate"] == "state_update"]


def tool_call_of(question: Json) -> Json:
    """The tool call that a question is about, in either version."""
    params: Json = question["params"]
    return params.get("toolCall") or params["subject"]["toolCall"]


WORDS = [["early"], ["inside"], "session_info_update", "usage_update"]
"""The unsolicited updates of every agent when a session is new, in this order."""


def own_words(updates: list[Json]) -> list[list[str] | str]:
    """Return the same in the received order. Command lists that come with the answer itself come first."""
    told: list[list[str] | str] = []
    for each in updates:
        if "availableCommands" in each:
            told.append([command["name"] for command in each["availableCommands"]])
        elif each["sessionUpdate"] in {"session_info_update", "usage_update"}:
            told.append(each["sessionUpdate"])
    return told
