"""A client for tests of agents: it drives an `Agent` over a link in this process, in any dialect.

`served` serves an agent and yields a `Driver`. Every wait is bounded. When the connection ends, everything that the
agent sent is validated against the published schema, if that is installed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import msgspec
from tests.interop.schema_check import SCHEMAS, Frame, check_frames
from tests.support.acp_client import AcpClient, is_update, update_of
from tests.support.heard import WAIT_S, Json

from turnwire.agent import Agent, Turn
from turnwire.errors import LinkError
from turnwire.hosting.base import FrameLink
from turnwire.hosting.memory import memory_pair

CWD = "/tmp"
NAMED = {"name": "test", "version": "1"}
ASKING: Json = {"elicitation": {"form": {}, "url": {}}}

LACKS: Json = {"session": {"turnComplete": False}}
V1: Json = {"protocolVersion": 1, "clientCapabilities": {**ASKING, **LACKS}, "clientInfo": NAMED}
V1_PLUS: Json = {"protocolVersion": 1, "clientCapabilities": ASKING, "clientInfo": NAMED}
V2: Json = {"protocolVersion": 2, "capabilities": ASKING, "info": NAMED}
DIALECTS: dict[str, Json] = {"v1": V1, "v1plus": V1_PLUS, "v2": V2}
"""The params of `initialize` in each dialect: v1 that lacks `turn_complete`, v1 without drafts, v2."""

BARE: dict[int, Json] = {
    1: {"protocolVersion": 1, "clientCapabilities": {}},
    2: {"protocolVersion": 2, "capabilities": {}, "info": NAMED},
}
"""The params of `initialize` of a client of each version that knows only ACP's text."""

ALLOW = "allow_once"


def text_prompt(text: str) -> list[Json]:
    return [{"type": "text", "text": text}]


class Driver(AcpClient):
    """One client."""

    def __init__(self, link: FrameLink, hello: Json) -> None:
        super().__init__()
        self.link = link
        self.hello = hello
        self.version: int = hello["protocolVersion"]
        self.sent: list[Json] = []
        self.choice: str | None = ALLOW
        """The answer to permission requests; None leaves them open."""

    # -- sending -------------------------------------------------------------------------------------------------

    async def send(self, message: Any) -> None:
        """Any message; bytes go as they are."""
        if not isinstance(message, bytes):
            if isinstance(message, dict):
                self.sent.append(cast("Json", message))
            message = msgspec.json.encode(message)
        await self.link.send(message)

    async def update(self, kind: str, after: int = 0, **members: Any) -> Json:
        """Wait for the first update of a kind with these members."""
        return update_of(await self.until(lambda each: is_update(each, kind, members), after))

    # -- sessions ------------------------------------------------------------------------------------------------

    async def new(self, *, ready: bool = True, cwd: str = CWD) -> str:
        """Open a new session; the client is ready for it."""
        session_id: str = (await self.call("session/new", cwd=cwd, mcpServers=[]))["sessionId"]
        if ready:
            await self.notify("session/ready", sessionId=session_id)
        return session_id

    async def prompt(self, session_id: str, text: str = "hello", request_id: int | str | None = None) -> int | str:
        """Send a prompt, and return the id of its request."""
        return await self.ask("session/prompt", request_id, sessionId=session_id, prompt=text_prompt(text))

    async def end_of(self, request_id: int | str, after: int = 0) -> str | Json:
        """Return the end of a prompt's turn: its stop reason, or its error. For one turn at a time."""
        answer = await self.answer(request_id)
        if "error" in answer:
            return answer["error"]
        if self.version == 1:
            return answer["result"]["stopReason"]
        idle = await self.update("state_update", max(after, self.frames.index(answer)), state="idle")
        return idle["error"] if idle["stopReason"] == "error" else idle["stopReason"]

    async def take_turn(self, session_id: str, text: str = "hello") -> str | Json:
        """Send a prompt and wait for its end."""
        return await self.end_of(await self.prompt(session_id, text))

    # -- what came -----------------------------------------------------------------------------------------------

    def updates(self, *kinds: str) -> list[Json]:
        """The updates that came, all or of these kinds."""
        found = [update_of(each) for each in self.frames if each.get("method") == "session/update"]
        return [each for each in found if not kinds or each["sessionUpdate"] in kinds]

    def kinds(self) -> list[str]:
        """Return the received frames, one word each: kinds of updates, methods, and `answer`."""
        return [word_of(each) for each in self.frames]

    def said(self) -> str:
        """The text of all messages."""
        return "".join(each["content"]["text"] for each in self.updates("agent_message_chunk"))

    # -- reading -------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Receive frames until the link ends."""
        try:
            while True:
                for line in await self.link.receive():
                    await self.take(line)
        except LinkError:
            self.hear_end()

    async def take(self, line: bytes) -> None:
        """Handle one received frame."""
        frame: Json = msgspec.json.decode(line)
        self.hear(frame)
        if frame.get("method") == "session/request_permission" and self.choice is not None:
            chosen = {"outcome": "selected", "optionId": self.choice}
            await self.send({"jsonrpc": "2.0", "id": frame["id"], "result": {"outcome": chosen}})


def word_of(frame: Json) -> str:
    update = update_of(frame)
    if update.get("sessionUpdate") == "state_update":
        return str(update["state"])
    return str(update.get("sessionUpdate") or frame.get("method") or "answer")


@asynccontextmanager
async def served(
    agent: Agent, hello: Json | None = None, *, max_frames: int = 1024, checks: bool = True
) -> AsyncGenerator[Driver]:
    """Serve an agent to one initialized client. `hello` is one of `DIALECTS`; v1 by default."""
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
    """Do nothing: a handler for tests of other behaviour."""
