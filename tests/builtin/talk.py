"""The built-in agent in this process, with a client of ours in front: short words for what a test does with it.

Takes a folder, models and settings; gives a session to prompt. Both versions of ACP are spoken. Waits are bounded.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest

from turnwire.builtin.agent import BuiltIn, BuiltInSettings
from turnwire.builtin.library_model import choose_model
from turnwire.builtin.model import Model
from turnwire.client.client import Client, connect
from turnwire.client.permission import Answer, PermissionRequest
from turnwire.client.session import Session
from turnwire.client.update import Update
from turnwire.errors import TurnError
from turnwire.link.base import FrameLink
from turnwire.runtime.clock import Clock
from turnwire.runtime.source import AgentHandle, AgentSource, LinkedAgent
from turnwire.testing import ManualClock
from turnwire.testing.models import FakeAnthropic, FakeOpenAI
from turnwire.testing.patience import WAIT_S


class Told(NamedTuple):
    """A turn that has ended."""

    stop_reason: str
    text: str
    updates: list[dict[str, Any]]
    usage: dict[str, Any]

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.updates if each["sessionUpdate"] == kind]

    def thoughts(self) -> str:
        return "".join(each["content"]["text"] for each in self.kinds("agent_thought_chunk"))

    def statuses(self) -> list[tuple[str, str]]:
        """Tool calls and their statuses, in the order they were told; each call by its number."""
        numbers: dict[str, str] = {}
        told: list[tuple[str, str]] = []
        for each in self.updates:
            if "toolCallId" in each and "status" in each:
                name = numbers.setdefault(each["toolCallId"], str(len(numbers) + 1))
                if (name, each["status"]) not in told:
                    told.append((name, each["status"]))
        return told


class Talk:
    """One session with the agent."""

    def __init__(self, client: Client, session: Session, answers: Sequence[str]) -> None:
        self.client = client
        self.session = session
        self.answers = list(answers)
        """What is answered to permission requests, in order; then everything is rejected."""
        self.asked: list[dict[str, Any]] = []
        """Permission requests so far."""
        self.forms: list[dict[str, Any]] = []
        """What is answered to forms, in order."""
        self.leaves_open = False
        """Permission requests are not answered at all."""
        self.background: list[dict[str, Any]] = []
        """Updates outside of turns."""
        self._told: list[tuple[str | None, dict[str, Any]]] = []
        self._heard = anyio.Event()
        session.on_permission(self._answer)
        session.on_update(self._hear)

    def _answer(self, question: PermissionRequest) -> Answer:
        if question.method == "elicitation/create":
            return self.forms.pop(0)
        self.asked.append(msgspec.json.decode(question.params))
        self._wake()
        if self.leaves_open:
            return None
        return self.answers.pop(0) if self.answers else "reject"

    def _hear(self, update: Update) -> None:
        told = msgspec.json.decode(update.raw)
        self._told.append((update.prompt_id, told))
        if update.prompt_id is None:
            self.background.append(told)
        self._wake()

    def _wake(self) -> None:
        self._heard.set()
        self._heard = anyio.Event()

    async def until_asked(self) -> None:
        """Wait until a permission was asked for."""
        with anyio.fail_after(WAIT_S):
            while not self.asked:
                await self._heard.wait()

    async def until(self, found: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until an update of which this is true was told, in any turn or in none."""
        with anyio.fail_after(WAIT_S):
            while not any(found(each) for _, each in self._told):
                await self._heard.wait()

    async def turn(self, prompt: Any) -> Told:
        """A whole turn. Raises `TurnError` if it ended with an error."""
        turn = self.session.prompt(prompt)
        with anyio.fail_after(WAIT_S):
            result = await turn
        return self.told(result.prompt_id, result.stop_reason, result.usage)

    async def failure(self, prompt: Any) -> str:
        """A whole turn that ends with an error, and what the agent says of that."""
        with pytest.raises(TurnError) as failed:
            await self.turn(prompt)
        return str(msgspec.json.decode(failed.value.agent_error or b"{}").get("message"))

    def told(self, prompt_id: str | None, stop_reason: str = "", usage: dict[str, Any] | None = None) -> Told:
        """What was told in a turn so far."""
        updates = [each for of, each in self._told if of == prompt_id]
        words = [each["content"] for each in updates if each["sessionUpdate"] == "agent_message_chunk"]
        text = "".join(each.get("text", "") for each in words)
        return Told(stop_reason, text, updates, usage or {})


@asynccontextmanager
async def talking(
    cwd: Path,
    *models: Model,
    version: int = 2,
    settings: BuiltInSettings | None = None,
    answers: Sequence[str] = (),
    clock: Clock | None = None,
    mcp_servers: Sequence[dict[str, Any]] = (),
) -> AsyncGenerator[Talk]:
    """A new session in this folder."""
    built = BuiltIn(models, settings, clock)
    source = built.agent.source()
    async with closing(*models), connect(source if version == 2 else _OnlyVersionOne(source)) as client:
        with anyio.fail_after(WAIT_S):
            session = await client.new_session(cwd, mcp_servers=mcp_servers)
        yield Talk(client, session, answers)


@asynccontextmanager
async def closing(*models: Model) -> AsyncGenerator[None]:
    """Let go of the models' connections at the end."""
    try:
        yield
    finally:
        for each in models:
            await each.aclose()


def openai_model(server: FakeOpenAI, clock: Clock | None = None, name: str = "fake") -> Model:
    _load("openai")
    environment = {"OPENAI_API_KEY": "sk-fake"}
    return choose_model(f"openai:{name}", url=server.url, environment=environment, clock=clock or ManualClock())


def anthropic_model(server: FakeAnthropic, clock: Clock | None = None) -> Model:
    _load("anthropic")
    environment = {"ANTHROPIC_API_KEY": "sk-fake"}
    return choose_model("anthropic:fake", url=server.url, environment=environment, clock=clock or ManualClock())


def _load(provider: str) -> None:
    """The library is loaded here, and not while somebody waits for an answer: that takes seconds."""
    importlib.import_module("turnwire.builtin.library_request")
    importlib.import_module(f"pydantic_ai.models.{provider}")


class _OnlyVersionOne:
    """An agent as clients find it that do not know version 2 yet: that is refused, so they ask for version 1."""

    def __init__(self, source: AgentSource) -> None:
        self._source = source

    async def connect(self) -> AgentHandle:
        handle = await self._source.connect()
        return LinkedAgent(_Refusing(handle.link))


class _Refusing:
    """A link on which the client asks for a version that there never was, where it would ask for version 2."""

    def __init__(self, link: FrameLink) -> None:
        self._link = link

    async def receive(self) -> list[bytes]:
        return await self._link.receive()

    async def send(self, frame: bytes) -> None:
        await self._link.send(_older(frame))

    def send_nowait(self, frame: bytes) -> None:
        self._link.send_nowait(_older(frame))

    async def aclose(self) -> None:
        await self._link.aclose()


def _older(frame: bytes) -> bytes:
    return frame.replace(b'"protocolVersion":2', b'"protocolVersion":0') if b'"initialize"' in frame else frame
