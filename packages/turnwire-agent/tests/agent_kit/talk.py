"""The agent with a model in this process, with a client in front of it. It speaks both versions of ACP."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from tests.support.talk import Talk

from agent_kit.script_model import echo_model
from turnwire.client.client import connect
from turnwire.clock import Clock
from turnwire.hosting.base import FrameLink
from turnwire.hosting.source import AgentHandle, AgentSource, LinkedAgent
from turnwire_agent.agent import AgentSettings, ModelAgent
from turnwire_agent.library_model import choose_model
from turnwire_agent.model import Model
from turnwire_testing import ManualClock
from turnwire_testing.models import FakeAnthropic, FakeOpenAI
from turnwire_testing.patience import WAIT_S


@asynccontextmanager
async def talking(
    cwd: Path,
    *models: Model,
    version: int = 2,
    settings: AgentSettings | None = None,
    answers: Sequence[str] = (),
    clock: Clock | None = None,
    mcp_servers: Sequence[dict[str, Any]] = (),
) -> AsyncGenerator[Talk]:
    """Open a session in this folder; without a model it has one that repeats the prompt."""
    built = ModelAgent(models or (echo_model(),), settings, clock)
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
    """The library is loaded here, and not while a test waits for an answer: that takes seconds."""
    importlib.import_module("turnwire_agent.library_request")
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
