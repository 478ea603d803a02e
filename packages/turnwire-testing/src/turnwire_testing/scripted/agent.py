"""The agent: reads frames of its client and dispatches them to methods, sessions and turns.

It has every behaviour that an agent can have, good and bad, on command. It calls no model and is deterministic.
`scripted_agent` provides the client's end of one agent to a test, `ScriptedSource` provides agents to a node: each
connection gets a fresh one in this process. `turnwire_testing.agent` is the public module.

A method returns a result or raises `Refused`; one that sends its own answer returns `ANSWERED`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self, cast

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from msgspec import Raw, Struct

from turnwire.errors import ContentRefused, LinkError, RemoteProtocolError
from turnwire.hosting.base import FrameLink
from turnwire.hosting.memory import MemoryLink, memory_pair
from turnwire.hosting.source import LinkedAgent
from turnwire.session.content import check_content
from turnwire.wire import methods as acp
from turnwire.wire.jsonrpc import (
    AUTH_REQUIRED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Batch,
    ErrorObject,
    Notification,
    Request,
    decode,
    refusal_of,
)
from turnwire.wire.methods import INITIALIZE, SESSION_STEERING
from turnwire_testing.scripted.actions import ACTIONS
from turnwire_testing.scripted.host import Gates, Host, TaskHost
from turnwire_testing.scripted.options import AgentOptions, Profile
from turnwire_testing.scripted.script import parse_script
from turnwire_testing.scripted.session import (
    ClientOffer,
    Peer,
    PromptRequest,
    Refused,
    Session,
    Turns,
    Work,
    prompt_text,
)
from turnwire_testing.scripted.shapes import CHOICES, MODES, Json, V1Shapes, V2Shapes, member

ANSWERED = object()
"""The method has sent the answer itself, or will."""

PAGE_SESSIONS = 100

IDENTITY = {"name": "turnwire-scripted-agent", "title": "Scripted agent", "version": "1"}

AUTH_METHOD = "token"
"""The one way to authenticate, where that is required."""


# -- methods: what the agent does for each request and notification, `initialize` first ----------------------


class _PromptParams(Struct):
    prompt: Raw = Raw(b"null")


async def initialize(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    shapes = choose_shapes(agent.profile, agent.options, params)
    agent.shapes = shapes
    agent.offer = ClientOffer(client_capabilities(shapes, params))
    return initialize_result(shapes, agent.profile, agent.options, agent.offer)


def choose_shapes(profile: Profile, options: AgentOptions, params: Json) -> V1Shapes:
    """Return the shapes of the version for this connection. Raises `Refused` if there is none in common."""
    asked = params.get("protocolVersion")
    if not isinstance(asked, int) or isinstance(asked, bool):
        raise Refused(INVALID_PARAMS, "protocolVersion must be an integer")
    if profile != "v2":
        return V1Shapes()
    if asked >= V2Shapes.version:
        return V2Shapes()
    if options.accept_v1 and asked == V1Shapes.version:
        return V1Shapes()
    supported = [1, 2] if options.accept_v1 else [2]
    raise Refused(UNSUPPORTED_VERSION, "no common protocol version", {"requested": asked, "supported": supported})


def client_capabilities(shapes: V1Shapes, params: Json) -> Json:
    """Return the client's capabilities in the chosen version."""
    key = "capabilities" if isinstance(shapes, V2Shapes) else "clientCapabilities"
    found = member(params, key)
    return cast("Json", found) if isinstance(found, dict) else {}


def initialize_result(shapes: V1Shapes, profile: Profile, options: AgentOptions, offer: ClientOffer) -> Json:
    """The answer to `initialize`."""
    return _result_v2(options) if isinstance(shapes, V2Shapes) else _result_v1(profile, options, offer)


def _result_v1(profile: Profile, options: AgentOptions, offer: ClientOffer) -> Json:
    session: Json = {"list": {}, "delete": {}, "resume": {}, "close": {}, "fork": {}}
    capabilities: Json = {
        "loadSession": True,
        "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
        "mcpCapabilities": {"http": True, "sse": True},
        "sessionCapabilities": session,
    }
    result: Json = {
        "protocolVersion": V1Shapes.version,
        "agentCapabilities": capabilities,
        "agentInfo": IDENTITY,
        "authMethods": [{"id": AUTH_METHOD, "name": "Token"}] if options.auth_required else [],
    }
    if options.auth_required:
        capabilities["auth"] = {"logout": {}}
    if options.steering:
        capabilities["_meta"] = {"steering": {}}
    if profile == "v1plus":
        # The marker is sent in the position of either draft; `protocolVersion` alone decides the version.
        marker: Json = {"turnComplete": {}} if offer.takes_turn_complete else {}
        session |= {**marker, "ready": {}}
        result["capabilities"] = {"session": {"ready": True, **marker}}
    return result


def _result_v2(options: AgentOptions) -> Json:
    session: Json = {
        "prompt": {"image": {}, "audio": {}, "embeddedContext": {}},
        "mcp": {"stdio": {}, "http": {}},
        "delete": {},
        "fork": {},
    }
    if options.steering:
        session["_meta"] = {"steering": {}}
    method = {"type": "agent", "methodId": AUTH_METHOD, "name": "Token"}
    return {
        "protocolVersion": V2Shapes.version,
        "info": IDENTITY,
        "capabilities": {"session": session},
        "authMethods": [method] if options.auth_required else [],
    }


async def authenticate(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    if not agent.options.auth_required or params.get("methodId") != AUTH_METHOD:
        raise Refused(INVALID_PARAMS, "unknown methodId")
    agent.is_authenticated = True
    return {}


async def logout(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    agent.is_authenticated = not agent.options.auth_required
    return {}


async def new_session(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    session = agent.add_session(agent.new_session_id(), _text(params, "cwd"))
    options = agent.options
    if options.before:
        await agent.begin(session, False).do(parse_script(options.before))
        # A separate batch: let the link deliver it before the answer.
        await checkpoint()
    result = {"sessionId": session.id, **agent.session_shapes().session_state(session.config)}
    await agent.peer.respond(request.id, result)
    await agent.begin(session, False).do(parse_script(options.inside))
    if options.after:
        agent.start(agent.turns.do_idle, session, parse_script(options.after))
    return ANSWERED


async def load_session(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    if isinstance(agent.shapes, V2Shapes):
        raise Refused(METHOD_NOT_FOUND, "v2 has no session/load; use session/resume with replayFrom")
    session = await _reopen(agent, params, replay=True)
    return agent.session_shapes().session_state(session.config)


async def resume_session(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    shapes = agent.shapes
    replay_from = params.get("replayFrom")
    if replay_from is not None and (not isinstance(shapes, V2Shapes) or replay_from != {"type": "start"}):
        raise Refused(INVALID_PARAMS, "unknown replayFrom")
    session = await _reopen(agent, params, replay=replay_from is not None)
    if isinstance(shapes, V2Shapes):
        running = session.work is not None
        state = shapes.state("running") if running else shapes.state("idle", session.last_stop)
        await session.update(state, solicited=True, kept=False)
    return agent.session_shapes().session_state(session.config)


async def fork_session(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    origin = agent.get_session(params)
    session = agent.add_session(agent.new_session_id(), _text(params, "cwd"))
    origin.copy_to(session)
    return {"sessionId": session.id, **agent.session_shapes().session_state(session.config)}


async def list_sessions(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    cursor = params.get("cursor")
    if cursor is not None and not (isinstance(cursor, str) and cursor.isascii() and cursor.isdigit()):
        raise Refused(INVALID_PARAMS, "unknown cursor")
    start, cwd = int(cursor or 0), params.get("cwd")
    found = [each for each in agent.sessions.values() if cwd is None or each.cwd == cwd]
    page = found[start : start + PAGE_SESSIONS]
    result: Json = {"sessions": [_session_entry(each) for each in page]}
    if start + PAGE_SESSIONS < len(found):
        result["nextCursor"] = str(start + PAGE_SESSIONS)
    return result


async def close_session(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    session = agent.get_session(params)
    session.is_open = False
    agent.start(_close, agent, session, request)
    return ANSWERED


async def delete_session(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    session = agent.sessions.pop(_text(params, "sessionId"), None)
    if session is None:
        return {}
    session.is_open = False
    agent.start(_close, agent, session, request)
    return ANSWERED


async def set_mode(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    session = agent.get_session(params)
    if isinstance(agent.shapes, V2Shapes):
        raise Refused(METHOD_NOT_FOUND, "v2 has no session/set_mode; use session/set_config_option")
    if params.get("modeId") not in MODES:
        raise Refused(INVALID_PARAMS, "unknown modeId")
    session.config["mode"] = params["modeId"]
    return {}


async def set_config_option(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    session = agent.get_session(params)
    option, value = _text(params, "configId"), _text(params, "value")
    if value not in CHOICES.get(option, ()):
        raise Refused(INVALID_PARAMS, "unknown configId or value")
    session.config[option] = value
    return {"configOptions": agent.session_shapes().config_options(session.config)}


async def prompt(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    session = agent.get_session(params)
    agent.turns.accept(session, PromptRequest(request, _blocks(params, request)))
    return ANSWERED


async def steer(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    session = agent.get_session(params)
    blocks = _blocks(params, request)
    work = session.work
    if work is None or work.is_over:
        return {"outcome": "promptRequired"}
    for update in work.shapes.user_message(blocks, session.new_id("message")):
        await work.update(update)
    await work.say(f"steered {prompt_text(blocks)}")
    return {"outcome": "injected"}


async def echo(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    return params


async def cancel(agent: ScriptedAgent, params: Json) -> None:
    session = agent.sessions.get(str(params.get("sessionId")))
    if session is not None:
        await agent.turns.cancel(session)


async def cancel_request(agent: ScriptedAgent, params: Json) -> None:
    await agent.turns.cancel_request(agent.sessions.values(), params.get("requestId"))


async def ready(agent: ScriptedAgent, params: Json) -> None:
    session = agent.sessions.get(str(params.get("sessionId")))
    if session is not None:
        await session.become_ready()


REQUESTS: dict[str, Callable[[ScriptedAgent, Json, Request], Awaitable[Any]]] = {
    acp.INITIALIZE: initialize,
    acp.AUTHENTICATE: authenticate,
    acp.AUTH_LOGIN: authenticate,
    acp.LOGOUT: logout,
    acp.AUTH_LOGOUT: logout,
    acp.SESSION_NEW: new_session,
    acp.SESSION_LOAD: load_session,
    acp.SESSION_RESUME: resume_session,
    acp.SESSION_FORK: fork_session,
    acp.SESSION_LIST: list_sessions,
    acp.SESSION_CLOSE: close_session,
    acp.SESSION_DELETE: delete_session,
    acp.SESSION_SET_MODE: set_mode,
    acp.SESSION_SET_CONFIG_OPTION: set_config_option,
    acp.SESSION_PROMPT: prompt,
    acp.SESSION_STEERING: steer,
    # A method unknown to ACP, so that tests can call an extension.
    "_echo": echo,
}
"""The methods of `turnwire.wire.methods` that the scripted agent serves, each with its function."""

NOTIFICATIONS: dict[str, Callable[[ScriptedAgent, Json], Awaitable[None]]] = {
    acp.SESSION_CANCEL: cancel,
    acp.CANCEL_REQUEST: cancel_request,
    acp.SESSION_READY: ready,
    acp.SESSION_READY_DRAFT: ready,
}


async def _close(agent: ScriptedAgent, session: Session, request: Request) -> None:
    await agent.turns.stop(session)
    await agent.peer.respond(request.id, {})


async def _reopen(agent: ScriptedAgent, params: Json, *, replay: bool) -> Session:
    session_id, cwd = _text(params, "sessionId"), _text(params, "cwd")
    session = agent.sessions.get(session_id)
    if session is None and agent.options.history is None:
        raise not_found(session_id)
    if session is None:
        session = agent.add_session(session_id, cwd)
        # Replay answers the client's own request, so it is not held back.
        work = agent.begin(session, True)
        if replay:
            await work.do(parse_script(agent.options.history or ""))
    elif replay:
        await session.replay()
    session.is_open = True
    session.is_ready = not agent.gates_unsolicited
    return session


def _session_entry(session: Session) -> Json:
    entry: Json = {"sessionId": session.id, "cwd": session.cwd}
    return entry if session.title is None else entry | {"title": session.title}


def _text(params: Json, key: str) -> str:
    value = params.get(key)
    if not isinstance(value, str):
        raise Refused(INVALID_PARAMS, f"{key} must be a string")
    return value


def _blocks(params: Json, request: Request) -> list[Any]:
    """The blocks of a prompt in an open session. Raises `Refused`."""
    try:
        check_content(msgspec.json.decode(request.params, type=_PromptParams).prompt, None)
    except ContentRefused as refusal:
        raise Refused(INVALID_PARAMS, str(refusal)) from None
    return cast("list[Any]", params["prompt"])


def not_found(session_id: str) -> Refused:
    """The answer about a session this agent does not have."""
    return Refused(RESOURCE_NOT_FOUND, "there is no such session", {"sessionId": session_id})


# -- the agent -----------------------------------------------------------------------------------------------


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
        """The negotiated version; None before `initialize`."""
        self.offer = ClientOffer({})
        self.is_authenticated = not self.options.auth_required
        self.gates_unsolicited = profile == "v1plus"
        self._link = link
        self._host = host or TaskHost(link, Gates())
        self._numbers = count(1)
        self._tasks: TaskGroup | None = None
        self.turns = Turns(self.peer, profile, self.options, self.begin, self.start)

    async def run(self) -> None:
        """Serve the client until it closes the link. Work still running then is stopped."""
        try:
            async with anyio.create_task_group() as self._tasks:
                await self._serve()
                self._tasks.cancel_scope.cancel()
        except* LinkError:
            pass  # The client is gone, or a command closed the link: there is nobody left to tell.

    def begin(self, session: Session, foreground: bool) -> Work:
        """Start a new run of commands in a session."""
        shapes = self.session_shapes()
        return Work(session, self.peer, shapes, self._host, self.offer, ACTIONS, foreground=foreground)

    def start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run a task in parallel with the reading of the link."""
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
            if (refusal := refusal_of(error)) is not None:
                await self.peer.refuse(refusal.id, refusal.error)
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


def _params(raw: msgspec.Raw) -> Json:
    """Return the params of a frame; anything but an object becomes an empty one."""
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
    """Start a scripted agent in this process and yield the client's end of its link."""
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
        """Connect a new agent."""
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
    ) -> None:
        self._tasks.cancel_scope.cancel()
        # Without the error of the body: the group would wrap it, and callers expect their own exception.
        await self._tasks.__aexit__(None, None, None)
