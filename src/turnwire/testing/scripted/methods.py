"""What the agent does for each request and notification of its client, `initialize` first.

A method gives a result, or raises `Refused`; one that answers for itself gives `ANSWERED`. The link is read by
`turnwire.testing.scripted.agent`, which looks the method up in the tables here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Raw, Struct

from turnwire.core.content import check_content
from turnwire.errors import ContentRefused
from turnwire.testing.scripted.options import AgentOptions, Profile
from turnwire.testing.scripted.peer import Refused
from turnwire.testing.scripted.script import parse_script
from turnwire.testing.scripted.session import ClientOffer, PromptRequest, Session, prompt_text
from turnwire.testing.scripted.shapes import CHOICES, MODES, Json, V1Shapes, V2Shapes, member
from turnwire.wire import methods as acp
from turnwire.wire.jsonrpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Request,
)

if TYPE_CHECKING:
    from turnwire.testing.scripted.agent import ScriptedAgent

ANSWERED = object()
"""The method has sent the answer itself, or will."""

PAGE_SESSIONS = 100

IDENTITY = {"name": "turnwire-scripted-agent", "title": "Scripted agent", "version": "1"}

AUTH_METHOD = "token"
"""The one way to authenticate, where that is required."""


class _PromptParams(Struct):
    prompt: Raw = Raw(b"null")


async def initialize(agent: ScriptedAgent, params: Json, request: Request) -> Any:
    shapes = choose_shapes(agent.profile, agent.options, params)
    agent.shapes = shapes
    agent.offer = ClientOffer(client_capabilities(shapes, params))
    return initialize_result(shapes, agent.profile, agent.options)


def choose_shapes(profile: Profile, options: AgentOptions, params: Json) -> V1Shapes:
    """The version this connection speaks. Raises `Refused` if there is none in common."""
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
    """What the client offers in the version that was chosen."""
    key = "capabilities" if isinstance(shapes, V2Shapes) else "clientCapabilities"
    found = member(params, key)
    return cast("Json", found) if isinstance(found, dict) else {}


def initialize_result(shapes: V1Shapes, profile: Profile, options: AgentOptions) -> Json:
    """The answer to `initialize`."""
    return _result_v2(options) if isinstance(shapes, V2Shapes) else _result_v1(profile, options)


def _result_v1(profile: Profile, options: AgentOptions) -> Json:
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
        # The marker stands where either draft puts it; `protocolVersion` alone decides the version.
        session |= {"turnComplete": {}, "ready": {}}
        result["capabilities"] = {"session": {"ready": True, "turnComplete": {}}}
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
        # A burst of its own: let the link hand it over before the answer.
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
    # Nobody's method, so that tests have an extension to call.
    "_echo": echo,
}
"""Those of `turnwire.wire.methods` that the scripted agent serves, each with its function."""

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
