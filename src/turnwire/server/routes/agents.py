"""The agents that this daemon hosts: their names, and where each stands.

The list starts nobody, so that a picker costs nothing: of an agent that has not run yet it knows the name only. To
look at one starts it, if need be.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.errors import NotFound, TurnwireError, UnknownAgent
from turnwire.ids import AgentName
from turnwire.runtime.agent_pool import AgentPool, Availability
from turnwire.server.access.identity import Role
from turnwire.server.endpoint import Call, Endpoint, Reply


class HostedAgentEntry(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An agent. What it says of itself is there once it has run."""

    name: AgentName
    label: str
    icon: str | None = None
    default: bool
    """Sessions that name no agent are its."""
    state: Availability
    why: str | None = None
    """Why it is not available, and what to do."""
    protocol_version: int | None = None
    agent_name: str | None = None
    """As it calls itself."""
    version: str | None = None
    """Its own."""
    capabilities: Raw | UnsetType = UNSET
    """As it offered them in `initialize`."""
    sessions: int
    """Sessions in memory that are its."""


class HostedAgentList(Struct, frozen=True, kw_only=True, rename="camel"):
    """The agents of a daemon, the default one first."""

    agents: list[HostedAgentEntry]


async def list_all(call: Call) -> Reply:
    return Reply(HostedAgentList(agents=[_entry(call, each) for each in call.daemon.node.agents.hosted()]))


async def show(call: Call) -> Reply:
    agents, pool = call.daemon.node.agents, agent_of(call)
    try:
        await agents.profile(pool.name)
    except TurnwireError:
        # Why it cannot be had is part of the answer, as far as the breaker keeps it.
        if pool.why_not is None:
            raise
    return Reply(_entry(call, pool))


def agent_of(call: Call) -> AgentPool:
    """The agent that a path names. Raises `NotFound`."""
    try:
        return call.daemon.node.agents.named(AgentName(call.request.path_params["agent"]))
    except UnknownAgent as unknown:
        raise NotFound(str(unknown), **unknown.context) from None


def _entry(call: Call, pool: AgentPool) -> HostedAgentEntry:
    node, profile = call.daemon.node, pool.profile
    return HostedAgentEntry(
        name=pool.name,
        label=pool.agent.label or pool.name,
        icon=pool.agent.icon,
        default=pool is node.agents.named(None),
        state=pool.availability,
        why=pool.why_not,
        protocol_version=None if profile is None else profile.version,
        agent_name=None if profile is None else profile.name,
        version=None if profile is None else profile.release,
        capabilities=UNSET if profile is None else profile.capabilities,
        sessions=sum(node.agents.name_of(each.state.agent_name) == pool.name for each in node.loaded.values()),
    )


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
        refuses=(NotFound,),
        tag="agents",
    ),
)
"""The routes of agents."""
