"""The agent itself: reads frames of its client, and has the methods, sessions and turns do the rest.

It has every behaviour that an agent can have, good and bad, on command, and calls no model and decides nothing by
chance. `scripted_agent` gives a test the client's end of one, `ScriptedSource` gives them to a node: each
connection gets a fresh one, in this process. `turnwire.testing.agent` is where others find it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self, cast

import anyio
import msgspec
from anyio.abc import TaskGroup

from turnwire.errors import LinkError, RemoteProtocolError
from turnwire.link.base import FrameLink
from turnwire.link.memory import MemoryLink, memory_pair
from turnwire.runtime.source import LinkedAgent
from turnwire.testing.scripted.actions import ACTIONS
from turnwire.testing.scripted.host import Gates, Host, TaskHost
from turnwire.testing.scripted.methods import ANSWERED, NOTIFICATIONS, REQUESTS, not_found
from turnwire.testing.scripted.options import AgentOptions, Profile
from turnwire.testing.scripted.peer import Peer, Refused
from turnwire.testing.scripted.session import ClientOffer, Session, Turns, Work
from turnwire.testing.scripted.shapes import Json, V1Shapes
from turnwire.wire.jsonrpc import (
    AUTH_REQUIRED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Batch,
    ErrorObject,
    Notification,
    Request,
    decode,
)
from turnwire.wire.methods import INITIALIZE, SESSION_STEERING


class ScriptedAgent:
    """One agent on one link. `run` serves the client until the link ends."""

    def __init__(
        self,
        link: FrameLink,
        profile: Profile = "v1",
        options: AgentOptions | None = None,
        host: Host | None = None,
    ) -> None:
        self.profile: Profile = profile
        self.options = options or AgentOptions()
        self.peer = Peer(link)
        self.sessions: dict[str, Session] = {}
        self.shapes: V1Shapes | None = None
        """The version spoken; None before `initialize`."""
        self.offer = ClientOffer({})
        self.is_authenticated = not self.options.auth_required
        self.gates_unsolicited = profile == "v1plus"
        self._link = link
        self._host = host or TaskHost(link, Gates())
        self._numbers = count(1)
        self._tasks: TaskGroup | None = None
        self.turns = Turns(self.peer, profile, self.options, self.begin, self.start)

    async def run(self) -> None:
        """Serve the client until it closes the link. What still runs then is stopped."""
        try:
            async with anyio.create_task_group() as self._tasks:
                await self._serve()
                self._tasks.cancel_scope.cancel()
        except* LinkError:
            pass  # The client is gone, or a command closed the link: there is nobody left to tell.

    def begin(self, session: Session, foreground: bool) -> Work:
        """A new run of commands in a session."""
        shapes = self.session_shapes()
        return Work(session, self.peer, shapes, self._host, self.offer, ACTIONS, foreground=foreground)

    def start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run something beside the reading of the link."""
        assert self._tasks is not None, "tasks are started by frames, and frames are read inside run()"
        self._tasks.start_soon(function, *args)

    def session_shapes(self) -> V1Shapes:
        assert self.shapes is not None, "no session exists before initialize"
        return self.shapes

    def new_session_id(self) -> str:
        return f"{self.options.session_prefix}-{next(self._numbers)}"

    def add_session(self, session_id: str, cwd: str) -> Session:
        session = Session(session_id, cwd, self.peer)
        session.is_ready = not self.gates_unsolicited
        self.sessions[session_id] = session
        return session

    def get_session(self, params: Json) -> Session:
        """The open session a request names. Raises `Refused`."""
        session_id = params.get("sessionId")
        if not isinstance(session_id, str):
            raise Refused(INVALID_PARAMS, "sessionId must be a string")
        session = self.sessions.get(session_id)
        if session is None or not session.is_open:
            raise not_found(session_id)
        return session

    async def _serve(self) -> None:
        while True:
            try:
                lines = await self._link.receive()
            except LinkError:
                return
            for line in lines:
                await self._take(line)

    async def _take(self, line: bytes) -> None:
        try:
            frame = decode(line)
        except RemoteProtocolError as error:
            await self._complain(error)
            return
        if isinstance(frame, Request):
            await self._answer(frame)
        elif isinstance(frame, Notification):
            action = NOTIFICATIONS.get(frame.method)
            if action is not None:
                await action(self, _params(frame.params))
        elif isinstance(frame, Batch):
            await self.peer.refuse(None, ErrorObject(INVALID_REQUEST, "ACP has no batches"))
        else:
            self.peer.settle(frame)

    async def _answer(self, request: Request) -> None:
        try:
            self._check_allowed(request.method)
            result = await REQUESTS[request.method](self, _params(request.params), request)
        except Refused as refusal:
            await self.peer.refuse(request.id, refusal.error)
            return
        if result is not ANSWERED:
            await self.peer.respond(request.id, result)

    def _check_allowed(self, method: str) -> None:
        if method not in REQUESTS or (method == SESSION_STEERING and not self.options.steering):
            raise Refused(METHOD_NOT_FOUND, "unknown method")
        if self.shapes is None and method != INITIALIZE:
            raise Refused(INVALID_REQUEST, "initialize first")
        if not self.is_authenticated and method.startswith(("session/", "_session/")):
            raise Refused(AUTH_REQUIRED, "authenticate first")

    async def _complain(self, error: RemoteProtocolError) -> None:
        """Answer bytes that are no frame, unless they were meant as an answer."""
        context = error.context
        if "response_id" in context:
            return
        request_id = context.get("request_id")
        code = context.get("jsonrpc")
        assert isinstance(code, int), "the reader says which code to answer with"
        known = request_id if isinstance(request_id, int | str) else None
        await self.peer.refuse(known, ErrorObject(code, "not a JSON-RPC frame"))


def _params(raw: msgspec.Raw) -> Json:
    """The params of a frame; anything but an object counts as none."""
    value: Any = msgspec.json.decode(raw) if raw else {}
    return cast("Json", value) if isinstance(value, dict) else {}


@asynccontextmanager
async def scripted_agent(
    profile: Profile = "v1",
    options: AgentOptions | None = None,
    *,
    gates: Gates | None = None,
    max_frames: int = 1024,
) -> AsyncGenerator[MemoryLink]:
    """A scripted agent in this process; gives the client's end of its link."""
    ours, theirs = memory_pair(max_frames)
    agent = ScriptedAgent(theirs, profile, options, TaskHost(theirs, gates or Gates()))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run)
        try:
            yield ours
        finally:
            await ours.aclose()
            await theirs.aclose()


class ScriptedSource:
    """A source of scripted agents. `async with` it: its agents end when it does."""

    def __init__(self, profile: Profile = "v1", options: AgentOptions | None = None) -> None:
        self.profile: Profile = profile
        self.options = options or AgentOptions()
        self.gates = Gates()
        self.started = 0
        self._newest: FrameLink | None = None
        self._tasks: TaskGroup = anyio.create_task_group()

    async def connect(self) -> LinkedAgent:
        """A new agent."""
        ours, theirs = memory_pair()
        agent = ScriptedAgent(theirs, self.profile, self.options, TaskHost(theirs, self.gates))
        self._tasks.start_soon(agent.run)
        self._newest = theirs
        self.started += 1
        return LinkedAgent(ours)

    async def cut(self) -> None:
        """The newest agent goes away without a word."""
        if self._newest is not None:
            await self._newest.aclose()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, error, trace)
