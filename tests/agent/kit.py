"""A client for tests of agents: it drives an `Agent` over a link in this process, in any dialect.

`served` serves an agent and gives a `Driver`. Every wait is bounded. When the connection ends, everything that the
agent sent is held against the published schema, if that is installed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import msgspec
from tests.interop.schema_check import SCHEMAS, Frame, check_frames
from tests.support.heard import WAIT_S, Heard, Json

from turnwire.agent import Agent, Turn
from turnwire.errors import LinkError
from turnwire.link.base import FrameLink
from turnwire.link.memory import memory_pair

CWD = "/tmp"
NAMED = {"name": "test", "version": "1"}
ASKING: Json = {"elicitation": {"form": {}, "url": {}}}

LACKS: Json = {"session": {"turnComplete": False}}
V1: Json = {"protocolVersion": 1, "clientCapabilities": {**ASKING, **LACKS}, "clientInfo": NAMED}
V1_PLUS: Json = {"protocolVersion": 1, "clientCapabilities": ASKING, "clientInfo": NAMED}
V2: Json = {"protocolVersion": 2, "capabilities": ASKING, "info": NAMED}
DIALECTS: dict[str, Json] = {"v1": V1, "v1plus": V1_PLUS, "v2": V2}
"""What a client of each dialect says in `initialize`: v1 that lacks `turn_complete`, v1 that says nothing, v2."""

BARE: dict[int, Json] = {
    1: {"protocolVersion": 1, "clientCapabilities": {}},
    2: {"protocolVersion": 2, "capabilities": {}, "info": NAMED},
}
"""What a client of each version says that knows the text of ACP and nothing of ours."""

ALLOW = "allow_once"


def text_prompt(text: str) -> list[Json]:
    return [{"type": "text", "text": text}]


class Driver(Heard):
    """One client. What it was sent is in `frames`, in order."""

    def __init__(self, link: FrameLink, hello: Json) -> None:
        super().__init__()
        self.link = link
        self.hello = hello
        self.version: int = hello["protocolVersion"]
        self.sent: list[Json] = []
        self.choice: str | None = ALLOW
        """How permission requests are answered; None leaves them open."""
        self._count = 0

    # -- sending -------------------------------------------------------------------------------------------------

    async def send(self, message: Any) -> None:
        """Any message; bytes go as they are."""
        if not isinstance(message, bytes):
            if isinstance(message, dict):
                self.sent.append(cast("Json", message))
            message = msgspec.json.encode(message)
        await self.link.send(message)

    async def notify(self, method: str, **params: Any) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def ask(self, method: str, /, request_id: int | str | None = None, **params: Any) -> int | str:
        """Send a request, and give its id."""
        if request_id is None:
            self._count += 1
            request_id = self._count
        await self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return request_id

    async def call(self, method: str, /, **params: Any) -> Any:
        """The result of a request."""
        answer = await self.answer(await self.ask(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    async def refused(self, method: str, /, **params: Any) -> Json:
        """The error of a request."""
        answer = await self.answer(await self.ask(method, **params))
        assert "error" in answer, answer
        return answer["error"]

    # -- waiting -------------------------------------------------------------------------------------------------

    async def answer(self, request_id: int | str) -> Json:
        """The answer to a request, by an id of the same JSON type."""
        return await self.until(lambda each: is_answer(each, request_id))

    async def update(self, kind: str, after: int = 0, **members: Any) -> Json:
        """The first update of a kind with these members."""

        def fits(frame: Json) -> bool:
            found = update_of(frame)
            return found.get("sessionUpdate") == kind and all(
                found.get(key) == value for key, value in members.items()
            )

        return update_of(await self.until(fits, after))

    # -- sessions ------------------------------------------------------------------------------------------------

    async def new(self, *, ready: bool = True, cwd: str = CWD) -> str:
        """A new session; the client is ready for it."""
        session_id: str = (await self.call("session/new", cwd=cwd, mcpServers=[]))["sessionId"]
        if ready:
            await self.notify("session/ready", sessionId=session_id)
        return session_id

    async def prompt(self, session_id: str, text: str = "hello", request_id: int | str | None = None) -> int | str:
        """Send a prompt, and give the id of its request."""
        return await self.ask("session/prompt", request_id, sessionId=session_id, prompt=text_prompt(text))

    async def end_of(self, request_id: int | str, after: int = 0) -> str | Json:
        """How the turn of a prompt ended: its stop reason, or its error. For one turn at a time."""
        answer = await self.answer(request_id)
        if "error" in answer:
            return answer["error"]
        if self.version == 1:
            return answer["result"]["stopReason"]
        idle = await self.update("state_update", max(after, self.frames.index(answer)), state="idle")
        return idle["error"] if idle["stopReason"] == "error" else idle["stopReason"]

    async def take_turn(self, session_id: str, text: str = "hello") -> str | Json:
        """A prompt and its end."""
        return await self.end_of(await self.prompt(session_id, text))

    # -- what came -----------------------------------------------------------------------------------------------

    def updates(self, *kinds: str) -> list[Json]:
        """The updates that came, all or of these kinds."""
        found = [update_of(each) for each in self.frames if each.get("method") == "session/update"]
        return [each for each in found if not kinds or each["sessionUpdate"] in kinds]

    def kinds(self) -> list[str]:
        """What came, one word each: kinds of updates, methods, and `answer`."""
        return [word_of(each) for each in self.frames]

    def said(self) -> str:
        """The text of all messages."""
        return "".join(each["content"]["text"] for each in self.updates("agent_message_chunk"))

    # -- reading -------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Take what comes until the link ends."""
        try:
            while True:
                for line in await self.link.receive():
                    await self.take(line)
        except LinkError:
            self.hear_end()

    async def take(self, line: bytes) -> None:
        """One frame came."""
        frame: Json = msgspec.json.decode(line)
        self.hear(frame)
        if frame.get("method") == "session/request_permission" and self.choice is not None:
            chosen = {"outcome": "selected", "optionId": self.choice}
            await self.send({"jsonrpc": "2.0", "id": frame["id"], "result": {"outcome": chosen}})


def update_of(frame: Json) -> Json:
    """The update in a frame; empty if it is none."""
    return frame["params"]["update"] if frame.get("method") == "session/update" else {}


def is_answer(frame: Json, request_id: int | str) -> bool:
    found = frame.get("id")
    return "method" not in frame and found == request_id and type(found) is type(request_id)


def word_of(frame: Json) -> str:
    update = update_of(frame)
    if update.get("sessionUpdate") == "state_update":
        return str(update["state"])
    return str(update.get("sessionUpdate") or frame.get("method") or "answer")


@asynccontextmanager
async def served(
    agent: Agent, hello: Json | None = None, *, max_frames: int = 1024, checks: bool = True
) -> AsyncGenerator[Driver]:
    """Serve an agent to one client, which has said hello. `hello` is one of `DIALECTS`; v1 without."""
    ours, theirs = memory_pair(max_frames)
    driver = Driver(ours, V1 if hello is None else hello)
    with anyio.fail_after(2 * WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.serve, theirs)
            tasks.start_soon(driver.read)
            await driver.call("initialize", **driver.hello)
            yield driver
            await ours.aclose()
    if checks:
        check(driver)


def check(driver: Driver) -> None:
    """Hold everything that the agent sent against the schema, if there is one."""
    if not SCHEMAS.exists():
        return
    frames = [Frame(False, each) for each in driver.sent] + [Frame(True, each) for each in driver.frames]
    check_frames(driver.version, frames)


async def say_nothing(turn: Turn) -> None:
    """An author's function for tests that look at something else."""
