"""An ACP client in this process, over the engine without a transport: it sends and receives frames.

`acp_daemon` runs a daemon with a scripted agent; `Client` is one client of it in any dialect. Every wait is
bounded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup
from tests.support.acp_client import AcpClient, is_update
from tests.support.heard import WAIT_S, Json

from turnwire.clock import Clock
from turnwire.hosting.source import AgentSource
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.access.tokens import ANYBODY, Identity
from turnwire.server.acp.connection import AcpConnection
from turnwire.server.acp.subscription import Wake
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.settings.declared import Settings
from turnwire_testing import AgentOptions, Profile
from turnwire_testing.scripted.agent import ScriptedSource

TOKEN = "a-token-for-tests-0123456789"

INFO = {"name": "test", "version": "1"}
LACKS: Json = {"turnComplete": False, "ready": False}
V1: Json = {"protocolVersion": 1, "clientCapabilities": {"session": LACKS}, "clientInfo": INFO}
"""A v1 client that explicitly lacks the drafts."""
MARKED: Json = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": INFO}
"""A v1 client without draft capabilities: it gets the drafts' defaults."""
LIFECYCLE: Json = {
    "protocolVersion": 1,
    "clientCapabilities": {"_meta": {"turnwire": {"lifecycle": {}}}},
    "clientInfo": INFO,
}
V2: Json = {"protocolVersion": 2, "info": INFO, "capabilities": {}}
DIALECTS = {"v1": V1, "marked": MARKED, "lifecycle": LIFECYCLE, "v2": V2}
"""The params of `initialize` in each dialect."""


class Place(NamedTuple):
    """A daemon without a listener."""

    daemon: Daemon
    source: ScriptedSource
    tasks: TaskGroup
    cwd: str


@asynccontextmanager
async def acp_daemon(
    profile: Profile = "v1",
    options: AgentOptions | None = None,
    *,
    limits: Limits | None = None,
    clock: Clock | None = None,
    source: AgentSource | None = None,
    **settings: Any,
) -> AsyncGenerator[Place]:
    """Run a daemon with scripted agents; every step is bounded in time."""
    with TemporaryDirectory() as folder, anyio.fail_after(WAIT_S):
        chosen = replace(Settings(), log="memory", token=TOKEN, cwd=(Path(folder),), **settings)
        async with ScriptedSource(profile, options) as scripted:
            opened = open_daemon(chosen, limits or Limits(), source or scripted, clock=clock)
            async with opened as daemon, anyio.create_task_group() as tasks:
                yield Place(daemon, scripted, tasks, folder)
                tasks.cancel_scope.cancel()


class Client(AcpClient):
    """One client."""

    def __init__(self, place: Place, who: Identity = ANYBODY) -> None:
        super().__init__()
        self.place = place
        self.connection = AcpConnection(place.daemon, who, place.tasks)
        self.version = 1
        self.lifecycle = False
        self._reading: anyio.CancelScope | None = None

    def read(self) -> None:
        """Read everything from now on."""
        self._reading = anyio.CancelScope()
        self.place.tasks.start_soon(self._read, self._reading)

    async def _read(self, scope: anyio.CancelScope) -> None:
        with scope:
            wake = Wake()
            reader = self.connection.join_all(wake)
            try:
                while (frames := self.connection.take(reader)) is not None:
                    for frame in frames:
                        self.take(frame)
                    if not frames:
                        await wake.wait()
            finally:
                self.connection.part(reader)

    def take(self, frame: bytes) -> None:
        """Handle one received frame."""
        self.hear(msgspec.json.decode(frame))

    def stop_reading(self) -> None:
        """The transport is lost."""
        assert self._reading is not None
        self._reading.cancel()

    async def send(self, message: Any) -> None:
        """Send any message."""
        await self.connection.receive(message if isinstance(message, bytes) else msgspec.json.encode(message))

    async def update(self, kind: str, **members: Any) -> Json:
        """The first update of this kind with these members, waited for."""
        return await self.until(lambda each: is_update(each, kind, members))

    def updates(self, session_id: str | None = None) -> list[Json]:
        """All updates so far."""
        told = [each["params"] for each in self.frames if each.get("method") == "session/update"]
        return [each["update"] for each in told if session_id in (None, each["sessionId"])]

    def kinds(self) -> list[str]:
        """Return the kinds of the updates in order; the agent's texts are returned as they are."""
        return [said(each) for each in self.updates()]

    async def new(self, *, is_ready: bool = True) -> SessionId:
        """Open a new session, and send that the client is ready for it."""
        session_id = (await self.call("session/new", cwd=self.place.cwd, mcpServers=[]))["sessionId"]
        if is_ready:
            await self.notify("session/ready", sessionId=session_id)
        return SessionId(session_id)

    async def prompt(self, session_id: str, text: str, **members: Any) -> int | str:
        """Send a prompt and return its request id."""
        block = {"type": "text", "text": text}
        return await self.ask("session/prompt", sessionId=session_id, prompt=[block], **members)

    async def open(self, method: str, session_id: str, **members: Any) -> Any:
        """`session/load` or `session/resume`; the client is ready for it."""
        result = await self.call(method, sessionId=session_id, cwd=self.place.cwd, mcpServers=[], **members)
        await self.notify("session/ready", sessionId=session_id)
        return result

    def ends(self) -> int:
        """Return the number of turn ends that such a client has received."""
        return sum(each.get("state") == "idle" and reason_of(each) is not None for each in self.updates())

    async def idle(self, count: int = 1) -> None:
        """Wait until such a client has received `count` turn ends."""
        await self.until(lambda _: self.ends() >= count)


def reason_of(update: Json) -> str | None:
    """Return the reason of a turn's end, in v2 or in the lifecycle draft."""
    return update.get("stopReason") or update.get("stop_reason")


def said(update: Json) -> str:
    """Return an update in short form."""
    kind = update["sessionUpdate"]
    if kind == "agent_message_chunk":
        return f"says {update['content'].get('text')}"
    if kind in {"state_update", "state_change"}:
        return f"{kind} {update['state']}"
    return kind


@asynccontextmanager
async def connected(place: Place, initialize: Json = V1, who: Identity = ANYBODY) -> AsyncGenerator[Client]:
    """Connect a client that is initialized and reads."""
    client = Client(place, who)
    client.read()
    client.version = (await client.call("initialize", **initialize))["protocolVersion"]
    client.lifecycle = initialize == LIFECYCLE
    try:
        yield client
    finally:
        await client.connection.aclose()
