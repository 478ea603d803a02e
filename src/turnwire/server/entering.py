"""What a client gets when it enters a session: an id of its own, where the log stands, what the agent offers.

Takes a call and a session; attaches the caller and gives the answer that create, load, resume and fork share. The
position in it and the values in it are of one moment, so following from there misses nothing and repeats nothing.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import anyio
from anyio import to_thread
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from turnwire.core.dialect import AgentProfile
from turnwire.core.setup import Setup
from turnwire.core.translate.members import entries
from turnwire.core.translate.sessions import unwanted_servers
from turnwire.core.view import Latest, View
from turnwire.errors import AgentError, BadRequest, TurnwireError
from turnwire.ids import ClientId, Epoch, SessionId
from turnwire.runtime.node import opening_failure
from turnwire.server.daemon import Daemon
from turnwire.server.door.cwd import check_directories
from turnwire.server.endpoint import Call
from turnwire.server.listing import iso

logger = logging.getLogger(__name__)


class AgentState(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the agent offers and what is chosen, in ACP's shapes."""

    modes: dict[str, Any] | UnsetType = UNSET
    models: dict[str, Any] | UnsetType = UNSET
    config_options: Raw | UnsetType = UNSET
    available_commands: Raw | UnsetType = UNSET


class SessionOpened(Struct, frozen=True, kw_only=True, rename="camel"):
    """A session that the caller is attached to now."""

    session_id: SessionId
    workspace_cwd: str
    attached: bool
    """It was there already."""
    client_id: ClientId
    created_at: str
    has_active_prompt: bool
    last_event_id: int
    event_epoch: Epoch
    state: AgentState


class Entered(NamedTuple):
    """A session as a client finds it."""

    opened: SessionOpened
    view: View
    offset: int


async def enter(call: Call, session_id: SessionId, *, attached: bool) -> Entered:
    """Attach the caller. Raises `SessionNotFound`, `SessionClosed`."""
    node = call.daemon.node
    client_id = await call.daemon.clients.attach(session_id, call.who)
    epoch = (await node.head(session_id)).epoch
    view, offset = await node.view_at(session_id)
    opened = SessionOpened(
        session_id=session_id,
        workspace_cwd=view.session.cwd,
        attached=attached,
        client_id=client_id,
        created_at=iso(view.session.created_at),
        has_active_prompt=view.active is not None,
        last_event_id=offset,
        event_epoch=epoch,
        state=agent_state(view.latest),
    )
    return Entered(opened, view, offset)


def agent_state(latest: Latest) -> AgentState:
    """The latest values of what can be chosen."""
    return AgentState(
        modes=_choice(latest.mode, latest.modes, "currentModeId", "availableModes"),
        models=_choice(latest.model, latest.models, "currentModelId", "availableModels"),
        config_options=latest.config_options,
        available_commands=latest.commands,
    )


def _choice(
    current: str | None, offered: Raw | UnsetType, current_key: str, offered_key: str
) -> dict[str, Any] | UnsetType:
    return UNSET if offered is UNSET else {current_key: current, offered_key: offered}


async def profile_of(daemon: Daemon) -> AgentProfile | None:
    """What the agent says of itself; none if there is none to be had now."""
    with anyio.move_on_after(daemon.limits.opening_s):
        try:
            return await daemon.node.agents.profile()
        except TurnwireError as error:
            extra = {"event": "agent_not_known", "code": error.code}
            logger.warning("a client is offered what every agent has: %s", error, extra=extra)
    return None


async def granted(daemon: Daemon, setup: Setup) -> Setup:
    """The setup with the true paths of its directories.

    Raises `BadRequest` if the agent takes none or one is no directory, or if it takes no such MCP servers;
    `Forbidden` for a directory outside the roots.
    """
    directories = setup.additional_directories
    if not directories and not entries(setup.mcp_servers):
        return setup
    agent = await profile_of(daemon)
    unwanted = None if agent is None else unwanted_servers(setup.mcp_servers, agent)
    if unwanted is not None:
        raise BadRequest(unwanted)
    if not directories:
        return setup
    if agent is None or not agent.directories:
        raise BadRequest("this agent does not offer additionalDirectories; leave them out")
    true_paths = await to_thread.run_sync(check_directories, directories, daemon.roots)
    return replace(setup, additional_directories=true_paths)


async def hear_agent(daemon: Daemon, session_id: SessionId) -> None:
    """Wait for the agent of a new session, not for long. A session that no agent takes is removed again.

    Raises `AuthRequired`, `AgentLaunchFailed`, `AgentUnavailable`.
    """
    failure: AgentError | None = None
    with anyio.move_on_after(daemon.limits.opening_s):
        failure = await opening_failure(daemon.node, session_id)
    if failure is not None:
        await daemon.node.delete(session_id)
        raise failure
