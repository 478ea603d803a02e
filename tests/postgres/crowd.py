"""Clients of every transport at one session, with one interface: each client's sent and received frames, and the
facts they prove.

A running daemon gets clients that read all the time. Every wait is bounded.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import anyio
from anyio.abc import TaskGroup, TaskStatus
from tests.interop.schema_check import Frame, check_frames
from tests.server.acp.http_client import WAIT_S, Heard, initialize, ready, request
from tests.server.acp.http_client import connect as connect_http
from tests.server.acp.socket_client import open_socket
from tests.server.reading import Seen, is_end
from tests.support.daemons import Running

from turnwire.limits import MiB
from turnwire.wire.ndjson import LineReader

Json: TypeAlias = dict[str, Any]
EVENT_IDS: Json = {"_meta": {"turnwire": {"eventIds": {}}}}
"""Requests the ids of events where the transport has none."""


class Identity(NamedTuple):
    """One event, in a form that all dialects share."""

    offset: int | None
    what: str


class Member:
    """One client at the session."""

    def __init__(self, name: str, version: int, cwd: str, send: Callable[[Json], Awaitable[None]]) -> None:
        self.name = name
        self.version = version
        self.heard: list[Heard] = []
        self.frames: list[Frame] = []
        self.leaving = anyio.Event()
        self.has_left = anyio.Event()
        self._cwd = cwd
        self._send = send
        self._more = anyio.Event()
        self._count = 0

    def take(self, heard: Heard) -> None:
        """Something came."""
        self.heard.append(heard)
        self.frames.append(Frame(is_received=True, message=heard.message))
        self._more.set()
        self._more = anyio.Event()

    async def send(self, message: Json) -> None:
        self.frames.append(Frame(is_received=False, message=message))
        await self._send(message)

    async def until(self, found: Callable[[Heard], bool]) -> Heard:
        """The first message that is looked for."""
        with anyio.fail_after(WAIT_S):
            while True:
                more = self._more
                for each in self.heard:
                    if found(each):
                        return each
                await more.wait()

    async def ask(self, method: str, **params: Any) -> str:
        """Send a request and return its id."""
        self._count += 1
        named = f"{self.name} {self._count}"
        await self.send(request(method, params, named))
        return named

    async def answer(self, request_id: str) -> Json:
        return (await self.until(lambda each: each.method is None and each.message["id"] == request_id)).message

    async def call(self, method: str, **params: Any) -> Any:
        answer = await self.answer(await self.ask(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    async def new(self) -> str:
        return (await self.open("session/new", cwd=self._cwd, mcpServers=[]))["sessionId"]

    async def open(self, method: str, **params: Any) -> Any:
        """Send a request that opens a session, and send that it is open here."""
        result = await self.call(method, **params)
        said = ready(method, params, result)
        assert said is not None
        await self.send(said)
        return result

    async def join(self, session_id: str) -> None:
        """The session with its history, as each version asks for it."""
        params: Json = {"sessionId": session_id, "cwd": self._cwd, "mcpServers": []}
        if self.version == 1:
            await self.open("session/load", **params)
        else:
            await self.open("session/resume", **params, replayFrom={"type": "start"})

    async def prompt(self, session_id: str, text: str) -> str:
        blocks = [{"type": "text", "text": text}]
        return await self.ask("session/prompt", sessionId=session_id, prompt=blocks)

    async def cancel(self, session_id: str) -> None:
        await self.send({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session_id}})

    async def leave(self) -> None:
        """Go without a word to the session."""
        self.leaving.set()
        with anyio.fail_after(WAIT_S):
            await self.has_left.wait()

    async def says(self, text: str) -> None:
        """Wait until the agent has sent this."""
        await self.until(lambda each: each.text == text)

    async def ends(self, count: int) -> None:
        """Wait until this number of turns have ended."""
        await self.until(lambda _: sum(each.what.startswith("ends") for each in self.identities()) >= count)

    async def permit(self, tool_call_id: str) -> None:
        """Wait for the question about a tool call, and allow it."""
        asked = await self.until(lambda each: asks_about(each, tool_call_id))
        outcome = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
        await self.send({"jsonrpc": "2.0", "id": asked.message["id"], "result": outcome})

    def identities(self) -> list[Identity]:
        """The events, in the order in which they came."""
        updates = [(each.id, each.update) for each in self.heard if each.method == "session/update"]
        return [Identity(offset, what) for offset, update in updates if (what := identity_of(update))]

    def check(self) -> None:
        """Everything that came is in the schema, and every answer came once."""
        check_frames(self.version, self.frames)


def asks_about(heard: Heard, tool_call_id: str) -> bool:
    if heard.method != "session/request_permission":
        return False
    params: Json = heard.message["params"]
    call: Json = params.get("toolCall") or params["subject"]["toolCall"]
    return call["toolCallId"] == tool_call_id


def identity_of(update: Json) -> str | None:
    """Return an update without the differences between versions; None if nothing remains."""
    kind: str = update["sessionUpdate"]
    if kind in {"agent_message_chunk", "agent_thought_chunk"}:
        return f"{kind} {update['content']['text']}"
    if kind in {"tool_call", "tool_call_update"} and "status" in update:
        return f"tool {update['toolCallId']} {update['status']}"
    stop_reason: str | None = update.get("stopReason")
    return f"ends {stop_reason}" if stop_reason else None


def hash_of(identities: list[Identity]) -> str:
    """Return a short form of the order of events. An end is sent in several frames, so its own offset is not on
    each.
    """
    lines = [each.what if each.what.startswith("ends") else f"{each.offset} {each.what}" for each in identities]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# -- the transports ------------------------------------------------------------------------------------------


class Crowd:
    """Clients at one daemon. Each runs in a separate task, so that any of them may disconnect at any time."""

    def __init__(self, running: Running, tasks: TaskGroup) -> None:
        self.running = running
        self._cwd = str(running.daemon.roots[0])
        self._tasks = tasks

    async def over_http(self, version: int, session_id: str | None = None) -> Member:
        """Over Streamable HTTP. The stream of the session is opened before anything is asked about it."""
        return await self._tasks.start(_live, self._http(version, session_id))

    async def over_socket(self, version: int) -> Member:
        """Over a WebSocket."""
        return await self._tasks.start(_live, self._socket(version))

    async def over_stdio(self, version: int) -> Member:
        """Over the pipes of `turnwire stdio --daemon`."""
        return await self._tasks.start(_live, self._stdio(version))

    @asynccontextmanager
    async def _http(self, version: int, session_id: str | None) -> AsyncGenerator[Member]:
        async with self.running.client() as http, anyio.create_task_group() as tasks:
            client = await connect_http(self.running, http, version)

            async def send(message: Json) -> None:
                await client.post(message)

            async def read(named: str | None, *, task_status: TaskStatus[None]) -> None:
                async with client.stream(named) as stream:
                    task_status.started()
                    while True:
                        member.take(await stream.next())

            member = Member(f"http-{version}", version, self._cwd, send)
            await tasks.start(read, None)
            await tasks.start(read, session_id or await member.new())
            yield member
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _socket(self, version: int) -> AsyncGenerator[Member]:
        async with open_socket(self.running) as socket, anyio.create_task_group() as tasks:

            async def read() -> None:
                while True:
                    member.take(await socket.next())

            await socket.start(version, **EVENT_IDS)
            member = Member(f"socket-{version}", version, self._cwd, socket.send)
            tasks.start_soon(read)
            yield member
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _stdio(self, version: int) -> AsyncGenerator[Member]:
        program = [sys.executable, "-m", "turnwire", "stdio", "--daemon", self.running.url]
        environment = os.environ | {"TURNWIRE_TOKEN": self.running.token}
        async with (
            await anyio.open_process(program, env=environment, stderr=None) as process,
            anyio.create_task_group() as tasks,
        ):
            stdin, stdout = process.stdin, process.stdout
            assert stdin is not None
            assert stdout is not None

            async def send(message: Json) -> None:
                await stdin.send(json.dumps(message).encode() + b"\n")

            async def read() -> None:
                lines = LineReader(64 * MiB)
                async for chunk in stdout:
                    for line in lines.feed(chunk):
                        assert isinstance(line, bytes)
                        member.take(_with_its_id(json.loads(line)))

            member = Member(f"stdio-{version}", version, self._cwd, send)
            tasks.start_soon(read)
            await member.send(initialize(version, "init", **EVENT_IDS))
            await member.answer("init")
            yield member
            process.kill()
            tasks.cancel_scope.cancel()


async def _live(opening: AbstractAsyncContextManager[Member], *, task_status: TaskStatus[Member]) -> None:
    async with opening as member:
        task_status.started(member)
        await member.leaving.wait()
    member.has_left.set()


def _with_its_id(message: Json) -> Heard:
    meta = message.get("params", {}).get("_meta", {})
    return Heard(meta.get("turnwire", {}).get("eventId"), message)


async def sessions_of(member: Member) -> list[str]:
    """Return the ids of the sessions that the client can list."""
    listed = await member.call("session/list")
    return [each["sessionId"] for each in listed["sessions"]]


def seen_by_rest(events: list[Seen]) -> list[Identity]:
    """Return the identities of events that a REST client received. A turn ends with the terminal event."""
    found: list[Identity] = []
    for each in events:
        if is_end(each):
            found.append(Identity(each.offset, f"ends {each.data['stopReason']}"))
        elif each.type == "session_update" and each.data["update"]["sessionUpdate"] != "state_update":
            what = identity_of(each.data["update"])
            found += [Identity(each.offset, what)] if what else []
    return found
