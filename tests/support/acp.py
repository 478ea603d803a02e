"""An ACP client in this process, over the engine and no transport: it sends frames and reads what it is sent.

`acp_daemon` runs a daemon with a scripted agent; `Client` is one client of it in any dialect. Every wait is
bounded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup
from tests.support.heard import WAIT_S, Heard, Json

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.runtime.clock import Clock
from turnwire.runtime.source import AgentSource
from turnwire.server.access.identity import ANYBODY, Identity
from turnwire.server.acp.connection import AcpConnection
from turnwire.server.daemon import Daemon, open_daemon
from turnwire.server.settings.declared import Settings
from turnwire.testing import AgentOptions, Profile
from turnwire.testing.scripted.agent import ScriptedSource

TOKEN = "a-token-for-tests-0123456789"

INFO = {"name": "test", "version": "1"}
LACKS: Json = {"turnComplete": False, "ready": False}
V1: Json = {"protocolVersion": 1, "clientCapabilities": {"session": LACKS}, "clientInfo": INFO}
"""A v1 client that lacks the drafts, and says so."""
MARKED: Json = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": INFO}
"""One that says nothing: it is taken at the drafts' word."""
LIFECYCLE: Json = {
    "protocolVersion": 1,
    "clientCapabilities": {"_meta": {"turnwire": {"lifecycle": {}}}},
    "clientInfo": INFO,
}
V2: Json = {"protocolVersion": 2, "info": INFO, "capabilities": {}}
DIALECTS = {"v1": V1, "marked": MARKED, "lifecycle": LIFECYCLE, "v2": V2}
"""What a client of each dialect says in `initialize`."""


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
    """A daemon with scripted agents; everything in it is bounded in time."""
    with TemporaryDirectory() as folder, anyio.fail_after(WAIT_S):
        chosen = replace(Settings(), log="memory", token=TOKEN, cwd=(Path(folder),), **settings)
        async with ScriptedSource(profile, options) as scripted:
            opened = open_daemon(chosen, limits or Limits(), source or scripted, clock=clock)
            async with opened as daemon, anyio.create_task_group() as tasks:
                yield Place(daemon, scripted, tasks, folder)
                tasks.cancel_scope.cancel()


class Client(Heard):
    """One client. What it was sent is in `frames`, in order."""

    def __init__(self, place: Place, who: Identity = ANYBODY) -> None:
        super().__init__()
        self.place = place
        self.connection = AcpConnection(place.daemon, who, place.tasks)
        self.version = 1
        self.lifecycle = False
        self._count = 0
        self._reading: anyio.CancelScope | None = None

    def read(self) -> None:
        """Read everything from now on."""
        self._reading = anyio.CancelScope()
        self.place.tasks.start_soon(self._read, self._reading)

    async def _read(self, scope: anyio.CancelScope) -> None:
        with scope:
            async with aclosing(self.connection.all_frames()) as frames:
                async for some in frames:
                    for frame in some:
                        self.take(frame)

    def take(self, frame: bytes) -> None:
        """One frame came."""
        self.hear(msgspec.json.decode(frame))

    def stop_reading(self) -> None:
        """The transport is lost."""
        assert self._reading is not None
        self._reading.cancel()

    async def send(self, message: Any) -> None:
        """Send any message."""
        await self.connection.receive(message if isinstance(message, bytes) else msgspec.json.encode(message))

    async def notify(self, method: str, **params: Any) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def ask(self, method: str, /, request_id: int | str | None = None, **params: Any) -> int | str:
        """Send a request and give its id."""
        if request_id is None:
            self._count += 1
            request_id = self._count
        await self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return request_id

    async def answer(self, request_id: int | str) -> Json:
        """The answer to a request."""
        return await self.until(lambda each: "method" not in each and each.get("id") == request_id)

    async def call(self, method: str, /, **params: Any) -> Any:
        """The result of a request."""
        answer = await self.answer(await self.ask(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    async def fails(self, method: str, /, **params: Any) -> Json:
        """The error of a request."""
        answer = await self.answer(await self.ask(method, **params))
        assert "error" in answer, answer
        return answer["error"]

    async def update(self, kind: str, **members: Any) -> Json:
        """The first update of this kind with these members, waited for."""
        return await self.until(lambda each: fits_update(each, kind, members))

    def updates(self, session_id: str | None = None) -> list[Json]:
        """All updates so far."""
        told = [each["params"] for each in self.frames if each.get("method") == "session/update"]
        return [each["update"] for each in told if session_id in (None, each["sessionId"])]

    def kinds(self) -> list[str]:
        """What the updates were, one after the other; texts of the agent as they are."""
        return [said(each) for each in self.updates()]

    async def new(self, *, is_ready: bool = True) -> SessionId:
        """A new session, which the client is ready for."""
        session_id = (await self.call("session/new", cwd=self.place.cwd, mcpServers=[]))["sessionId"]
        if is_ready:
            await self.notify("session/ready", sessionId=session_id)
        return SessionId(session_id)

    async def prompt(self, session_id: str, text: str, **members: Any) -> int | str:
        """Send a prompt and give its request id."""
        block = {"type": "text", "text": text}
        return await self.ask("session/prompt", sessionId=session_id, prompt=[block], **members)

    async def open(self, method: str, session_id: str, **members: Any) -> Any:
        """`session/load` or `session/resume`; the client is ready for it."""
        result = await self.call(method, sessionId=session_id, cwd=self.place.cwd, mcpServers=[], **members)
        await self.notify("session/ready", sessionId=session_id)
        return result

    @property
    def answers_early(self) -> bool:
        """It speaks v2, or the lifecycle draft."""
        return self.version == 2 or self.lifecycle

    def ends(self) -> int:
        """How many ends of turns such a client has heard of."""
        return sum(each.get("state") == "idle" and reason_of(each) is not None for each in self.updates())

    async def idle(self, count: int = 1) -> None:
        """Until such a client heard so many ends of turns."""
        await self.until(lambda _: self.ends() >= count)


def fits_update(frame: Json, kind: str, members: Json) -> bool:
    """Whether a frame is an update of this kind with these members."""
    if frame.get("method") != "session/update":
        return False
    update: Json = frame["params"]["update"]
    return update["sessionUpdate"] == kind and all(update.get(name) == value for name, value in members.items())


def reason_of(update: Json) -> str | None:
    """Why a turn ended, in the words of v2 or of the lifecycle draft."""
    return update.get("stopReason") or update.get("stop_reason")


def said(update: Json) -> str:
    """An update in short."""
    kind = update["sessionUpdate"]
    if kind == "agent_message_chunk":
        return f"says {update['content'].get('text')}"
    if kind in {"state_update", "state_change"}:
        return f"{kind} {update['state']}"
    return kind


@asynccontextmanager
async def connected(place: Place, initialize: Json = V1, who: Identity = ANYBODY) -> AsyncGenerator[Client]:
    """A client that has shaken hands and reads."""
    client = Client(place, who)
    client.read()
    client.version = (await client.call("initialize", **initialize))["protocolVersion"]
    client.lifecycle = initialize == LIFECYCLE
    try:
        yield client
    finally:
        await client.connection.aclose()
