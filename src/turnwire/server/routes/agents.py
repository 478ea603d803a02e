"""The daemon's agents by name: the ways to log in there, and logging in by one of them.

A login counts for the agent, so for all its sessions. One that is a program of the agent cannot be done from here:
whoever asks for it is told the command, to be run where the daemon runs.
"""

from __future__ import annotations

import shlex

from msgspec import DecodeError, Raw, Struct, json

from turnwire.core.dialect import NEWEST_VERSION
from turnwire.core.translate.handshake import auth_methods
from turnwire.errors import (
    AgentLaunchFailed,
    AgentUnavailable,
    BadRequest,
    LinkBroken,
    LinkClosed,
    NotFound,
    RemoteProtocolError,
)
from turnwire.runtime.node_agents import NO_SESSION
from turnwire.server.access.identity import Role
from turnwire.server.endpoint import Call, Endpoint, Reply

DEFAULT = "default"
"""The name of the agent of a daemon that has one."""
TERMINAL = "terminal"


class _Variable(Struct, frozen=True):
    name: str
    value: str


class AuthMethod(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A way to log in, in the form of ACP v2 whatever the agent speaks."""

    method_id: str
    type: str
    """`agent` is done by the agent; `terminal` is a program of it, for whoever sits at the daemon's machine."""
    name: str = ""
    description: str | None = None
    command: str | None = None
    """What to run there."""


class AuthMethods(Struct, frozen=True):
    """The ways to log in; none if the agent wants no login."""

    name: str
    methods: list[AuthMethod]


class Login(Struct, frozen=True, rename="camel"):
    method_id: str


class _Offered(Struct, frozen=True, rename="camel"):
    method_id: str
    type: str = "agent"
    name: str = ""
    description: str | None = None
    args: list[str] | None = None
    env: list[_Variable] | None = None


async def list_methods(call: Call) -> Reply:
    return Reply(AuthMethods(_named(call), await _methods(call)))


async def log_in(call: Call) -> Reply:
    _named(call)
    wanted: str = call.body.method_id
    offered = next((each for each in await _methods(call) if each.method_id == wanted), None)
    if offered is None:
        raise BadRequest("the agent has no such way to log in; ask for its ways first")
    if offered.type == TERMINAL:
        run = offered.command or "the agent's own program"
        raise BadRequest(f"this login is a program; run it in a terminal on the daemon's machine: {run}")
    await call.daemon.node.agents.authenticate(NO_SESSION, wanted)
    return Reply()


def _named(call: Call) -> str:
    name: str = call.request.path_params["name"]
    if name != DEFAULT:
        raise NotFound("there is no agent of this name")
    return name


async def _methods(call: Call) -> list[AuthMethod]:
    agent = await call.daemon.node.agents.profile()
    listed = auth_methods(agent.auth_methods, agent.version, NEWEST_VERSION, terminal=True)
    found = (_read(each) for each in listed)
    return [_shown(call, each) for each in found if each is not None]


def _read(method: Raw) -> _Offered | None:
    """A method as the agent offered it; none if nobody can make sense of it."""
    try:
        return json.decode(method, type=_Offered)
    except DecodeError:
        return None


def _shown(call: Call, method: _Offered) -> AuthMethod:
    agent = call.daemon.settings.agent
    command = None
    if method.type == TERMINAL and agent:
        # The agent's own program, with what the method adds.
        variables = [f"{each.name}={shlex.quote(each.value)}" for each in method.env or ()]
        command = " ".join([*variables, shlex.join([*agent, *(method.args or ())])])
    return AuthMethod(method.method_id, method.type, method.name, method.description, command)


_ASKS_AGENT = (NotFound, AgentLaunchFailed, AgentUnavailable, LinkBroken, LinkClosed, RemoteProtocolError)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/agents/{name}/auth",
        act=list_methods,
        summary="The ways to log in at an agent",
        role=Role.CONTROLLER,
        gives=AuthMethods,
        refuses=_ASKS_AGENT,
        tag="agents",
    ),
    Endpoint(
        method="POST",
        path="/agents/{name}/auth",
        act=log_in,
        summary="Log in at an agent",
        role=Role.CONTROLLER,
        takes=Login,
        status=204,
        refuses=(BadRequest, *_ASKS_AGENT),
        tag="agents",
    ),
)
"""The routes of agents."""
