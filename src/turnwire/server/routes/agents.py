"""The agents that this daemon hosts: their state, their login methods, and logging in.

Listing the agents starts none of them, so a picker costs nothing. Only the name of an agent that has not run yet is
known. Reading one agent starts it if necessary. A login counts for the agent, so for all its sessions. A login that
is a program of the agent cannot run through this API: the caller gets the command to run on the daemon's machine.
"""

from __future__ import annotations

import shlex
from collections import Counter

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, json

from turnwire.errors import (
    AgentLaunchFailed,
    AgentUnavailable,
    BadRequest,
    LinkBroken,
    LinkClosed,
    NotFound,
    RemoteProtocolError,
    TurnwireError,
    UnknownAgent,
)
from turnwire.hosting.agent_pool import AgentPool, Availability
from turnwire.hosting.source import ProcessSource
from turnwire.ids import AgentName
from turnwire.projections.dialect import NEWEST_VERSION
from turnwire.projections.translate.handshake import auth_methods
from turnwire.runtime.node import Node
from turnwire.server.access.tokens import Role
from turnwire.server.daemon.daemon import sessions_by_agent
from turnwire.server.endpoint import Call, Endpoint, Reply

TERMINAL = "terminal"


class HostedAgentEntry(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An agent. The fields that the agent reports itself are present once it has run."""

    name: AgentName
    label: str
    icon: str | None = None
    default: bool
    """True for the agent of sessions that name no agent."""
    state: Availability
    why: str | None = None
    """Why the agent is not available and what to do, or what a slow start is waiting for."""
    protocol_version: int | None = None
    agent_name: str | None = None
    """The name that the agent reports."""
    version: str | None = None
    """The version that the agent reports."""
    capabilities: Raw | UnsetType = UNSET
    """The capabilities that the agent offered in `initialize`."""
    sessions: int
    """Number of its sessions in memory."""


class HostedAgentList(Struct, frozen=True, kw_only=True, rename="camel"):
    """The agents of a daemon, the default agent first."""

    agents: list[HostedAgentEntry]


async def list_all(call: Call) -> Reply:
    node = call.daemon.node
    sessions = sessions_by_agent(node)
    return Reply(HostedAgentList(agents=[_entry(node, each, sessions) for each in node.agents.hosted()]))


async def show(call: Call) -> Reply:
    agents, pool = call.daemon.node.agents, agent_of(call)
    try:
        await agents.profile(pool.name)
    except TurnwireError:
        # The answer includes the reason for the unavailability as long as the breaker remembers it.
        if pool.why_not is None:
            raise
    return Reply(_entry(call.daemon.node, pool, sessions_by_agent(call.daemon.node)))


def agent_of(call: Call) -> AgentPool:
    """Return the agent that a path names. Raises `NotFound`."""
    try:
        return call.daemon.node.agents.named(AgentName(call.request.path_params["agent"]))
    except UnknownAgent as unknown:
        raise NotFound(str(unknown), **unknown.context) from None


def _entry(node: Node, pool: AgentPool, sessions: Counter[AgentName]) -> HostedAgentEntry:
    profile = pool.profile
    return HostedAgentEntry(
        name=pool.name,
        label=pool.agent.label or pool.name,
        icon=pool.agent.icon,
        default=pool is node.agents.named(None),
        state=pool.availability,
        why=pool.why_not or pool.slow_start,
        protocol_version=None if profile is None else profile.version,
        agent_name=None if profile is None else profile.name,
        version=None if profile is None else profile.release,
        capabilities=UNSET if profile is None else profile.capabilities,
        sessions=sessions[pool.name],
    )


# -- logging in ----------------------------------------------------------------------------------------------


class AuthMethod(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A login method in the form of ACP v2, whichever version the agent speaks."""

    method_id: str
    type: str
    """`agent`: the agent does it. `terminal`: a program of the agent, to be run on the daemon's machine."""
    name: str = ""
    description: str | None = None
    command: str | None = None
    """The command to run there; shown to owners only."""


class AuthMethods(Struct, frozen=True):
    """The login methods; empty if the agent requires no login."""

    name: AgentName
    methods: list[AuthMethod]


class Login(Struct, frozen=True, rename="camel"):
    method_id: str


class _Variable(Struct, frozen=True):
    name: str
    value: str


class _Offered(Struct, frozen=True, rename="camel"):
    method_id: str
    type: str = "agent"
    name: str = ""
    description: str | None = None
    args: list[str] | None = None
    env: list[_Variable] | None = None


async def list_methods(call: Call) -> Reply:
    pool = agent_of(call)
    return Reply(AuthMethods(pool.name, await _methods(call, pool)))


async def log_in(call: Call) -> Reply:
    pool, wanted = agent_of(call), call.body.method_id
    offered = next((each for each in await _methods(call, pool) if each.method_id == wanted), None)
    if offered is None:
        raise BadRequest("the agent has no such way to log in; ask for its ways first")
    if offered.type == TERMINAL:
        run = offered.command or "the agent's own program"
        raise BadRequest(f"this login is a program; run it in a terminal on the daemon's machine: {run}")
    await call.daemon.node.agents.authenticate(wanted, name=pool.name)
    return Reply()


async def _methods(call: Call, pool: AgentPool) -> list[AuthMethod]:
    agent = await call.daemon.node.agents.profile(pool.name)
    listed = auth_methods(agent.auth_methods, agent.version, NEWEST_VERSION, terminal=True)
    found = (_read(each) for each in listed)
    # Arguments of an agent may be secrets.
    source = pool.agent.source if call.who.role is Role.OWNER else None
    program = source.command if isinstance(source, ProcessSource) else ()
    return [_shown(each, program) for each in found if each is not None]


def _read(method: Raw) -> _Offered | None:
    """Return a method as the agent offered it, or `None` if it is malformed."""
    try:
        return json.decode(method, type=_Offered)
    except DecodeError:
        return None


def _shown(method: _Offered, program: tuple[str, ...]) -> AuthMethod:
    command = None
    if method.type == TERMINAL and program:
        # The agent's own program with the arguments and variables that the method adds.
        variables = [f"{each.name}={shlex.quote(each.value)}" for each in method.env or ()]
        command = " ".join([*variables, shlex.join([*program, *(method.args or ())])])
    return AuthMethod(method.method_id, method.type, method.name, method.description, command)


_ASKS_AGENT = (NotFound, AgentLaunchFailed, AgentUnavailable, LinkBroken, LinkClosed, RemoteProtocolError)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/agents",
        act=list_all,
        summary="The agents that sessions can be made for, and where each stands",
        role=Role.OBSERVER,
        gives=HostedAgentList,
        narrows=True,
        tag="agents",
    ),
    Endpoint(
        method="GET",
        path="/agents/{agent}",
        act=show,
        summary="One agent with what it offers; it is started if it has not run yet",
        role=Role.CONTROLLER,
        gives=HostedAgentEntry,
        refuses=_ASKS_AGENT,
        tag="agents",
    ),
    Endpoint(
        method="GET",
        path="/agents/{agent}/auth",
        act=list_methods,
        summary="The ways to log in at an agent",
        role=Role.CONTROLLER,
        gives=AuthMethods,
        refuses=_ASKS_AGENT,
        tag="agents",
    ),
    Endpoint(
        method="POST",
        path="/agents/{agent}/auth",
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
