"""A bare client: `send` a frame, wait for the `next` one that fits, look at all `frames` so far.

Nothing here knows of a transport; `transports.py` has one for each. Every wait is bounded.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from tests.fan.matrix import ASKING, Pair, Transport
from tests.support.heard import Heard, Json

Fits: TypeAlias = Callable[[Json], Any]

OPENING = frozenset({"session/new", "session/load", "session/resume"})
LAST_WORD = "usage_update"
"""What an agent says last of its own accord when a session is new."""

INFO = {"name": "fan", "version": "1"}
_LACKING: dict[Transport, Json] = {
    "stdio": {"_meta": {"turnwire": {"turnComplete": False, "ready": False}}},
    "http1": {"session": {"turnComplete": False, "ready": False}},
    "http2": {"_meta": {"turnComplete": False, "ready": False}},
    "websocket": {"session": {"turnComplete": False}, "_meta": {"turnwire": {"ready": False}}},
}
"""How a client may say that it lacks the drafts: each transport has another place, so that all are tried."""


def hello(pair: Pair) -> Json:
    """What a client of this dialect says in `initialize`."""
    match pair.dialect:
        case "v1":
            return {"protocolVersion": 1, "clientCapabilities": _LACKING[pair.transport], "clientInfo": INFO}
        case "v1plus":
            return {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": INFO}
        case "v2":
            return {"protocolVersion": 2, "capabilities": {}, "info": INFO}


class End(NamedTuple):
    """How a turn ended, in whatever form the client heard it."""

    stop_reason: str | None
    error: Json | None
    place: int
    """Where in the frames."""
    frame: Json


class FrameClient(Heard):
    """Frames of one client. What it was sent since the handshake is in `frames`, in order."""

    def __init__(self, pair: Pair, cwd: str, numbers: Iterator[int] | None = None) -> None:
        super().__init__()
        self.pair = pair
        self.cwd = cwd
        self.asked: list[Json] = []
        """Its requests."""
        self.agreed: Json = {}
        """The result of `initialize`."""
        self.early: Json = {}
        """What came of a request before `initialize`; an HTTP status is `status`."""
        self._numbers = numbers or count(1)

    # -- the transport -------------------------------------------------------------------------------------

    @abstractmethod
    async def send(self, message: Json) -> None:
        """Send any frame."""

    def take(self, message: Json) -> None:
        """A frame came."""
        self.hear(message)

    async def lose(self) -> None:
        """The transport is lost, without a word."""
        raise NotImplementedError(f"{self.pair.transport} has nothing to lose but itself")

    async def come_back(self) -> None:
        """On with the same connection over a new transport."""
        raise NotImplementedError

    # -- frames --------------------------------------------------------------------------------------------

    async def next(self, fits: Fits, after: int = 0) -> Json:
        """The first frame that fits, waited for."""
        return await self.until(fits, after)

    def place(self, frame: Json) -> int:
        return next(place for place, each in enumerate(self.frames) if each is frame)

    async def ask(self, method: str, /, request_id: int | str | None = None, **params: Any) -> int | str:
        """Send a request and give its id."""
        chosen = f"fan {next(self._numbers)}" if request_id is None else request_id
        self.asked.append({"jsonrpc": "2.0", "id": chosen, "method": method, "params": params})
        await self.send(self.asked[-1])
        return chosen

    async def notify(self, method: str, **params: Any) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def answer(self, request_id: int | str, after: int = 0) -> Json:
        """The answer to a request. The type of an id is part of it."""

        def fits(each: Json) -> bool:
            return "method" not in each and each["id"] == request_id and type(each["id"]) is type(request_id)

        return await self.next(fits, after)

    async def call(self, method: str, /, **params: Any) -> Any:
        """The result of a request."""
        answer = await self.answer(await self.ask(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    async def echo(self) -> None:
        """There and back: what was sent on this connection before has arrived, and what was told of it."""
        await self.call("session/list")


class Client(FrameClient):
    """One client with its sessions and turns, in the words of its dialect."""

    async def new(self, *, settled: bool = True) -> str:
        """A new session; settled: we are ready, and the agent has said what it says of its own accord."""
        session_id = (await self.call("session/new", cwd=self.cwd, mcpServers=[]))["sessionId"]
        if settled:
            await self.ready(session_id)
            await self.update(session_id, LAST_WORD)
        return session_id

    async def ready(self, session_id: str) -> None:
        """Say that we are ready, if we are one who does."""
        if self.pair.dialect in ASKING:
            await self.notify("session/ready", sessionId=session_id)

    async def load(self, session_id: str) -> Json:
        """A session with its history; gives the answer."""
        params: Json = {"sessionId": session_id, "cwd": self.cwd, "mcpServers": []}
        if self.pair.version == 2:
            return await self.answer(await self.ask("session/resume", **params, replayFrom={"type": "start"}))
        return await self.answer(await self.ask("session/load", **params))

    async def prompt(
        self, session_id: str, *lines: str, request_id: int | str | None = None, meta: Json | None = None
    ) -> int | str:
        """Send a prompt and give its request id."""
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

            frame = await self.next(is_end, self.place(answer))
            told = update_of(frame, session_id)
        return End(told.get("stopReason"), told.get("error") or answer.get("error"), self.place(frame), frame)

    async def run(self, session_id: str, *lines: str) -> End:
        """A whole turn."""
        return await self.end(session_id, await self.prompt(session_id, *lines))

    async def update(self, session_id: str, kind: str, after: int = 0, **members: Any) -> Json:
        """The first update of this kind with these members."""

        def fits(each: Json) -> bool:
            update = update_of(each, session_id)
            return update.get("sessionUpdate") == kind and members.items() <= update.items()

        return update_of(await self.next(fits, after), session_id)

    async def says(self, session_id: str, text: str) -> None:
        """Wait until the agent has said this."""
        await self.next(lambda each: text_of(update_of(each, session_id)) == text)

    def updates(self, session_id: str, start: int = 0, stop: int | None = None) -> list[Json]:
        """The updates among these frames."""
        return [found for each in self.frames[start:stop] if (found := update_of(each, session_id))]

    def texts(self, session_id: str, start: int = 0, stop: int | None = None) -> list[str]:
        """What the agent said, piece by piece."""
        return [text for each in self.updates(session_id, start, stop) if (text := text_of(each))]

    async def question(self, session_id: str) -> Json:
        """The next question of the agent."""
        method = "session/request_permission"
        return await self.next(
            lambda each: each.get("method") == method and each["params"]["sessionId"] == session_id
        )

    async def choose(self, question: Json, option: str | None) -> None:
        """Answer a question; without an option it is cancelled."""
        chosen = {"outcome": "selected", "optionId": option} if option else {"outcome": "cancelled"}
        await self.send({"jsonrpc": "2.0", "id": question["id"], "result": {"outcome": chosen}})


def update_of(frame: Json, session_id: str) -> Json:
    """The update that a frame brings for this session; empty if it brings none."""
    if frame.get("method") != "session/update" or frame["params"]["sessionId"] != session_id:
        return {}
    return frame["params"]["update"]


def text_of(update: Json) -> str:
    """The words of a piece of the agent's message; empty for anything else."""
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
"""What every agent says of its own accord when a session is new, in this order."""


def own_words(updates: list[Json]) -> list[list[str] | str]:
    """The same as it was told. Lists of commands that come with the answer itself are told before."""
    told: list[list[str] | str] = []
    for each in updates:
        if "availableCommands" in each:
            told.append([command["name"] for command in each["availableCommands"]])
        elif each["sessionUpdate"] in {"session_info_update", "usage_update"}:
            told.append(each["sessionUpdate"])
    return told
