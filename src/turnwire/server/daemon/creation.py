"""Making a session, whoever asks for it: its setup is checked, it is recorded, and its agent is waited for.

A session that no agent takes is removed again, so that whoever asked hears the agent's refusal and nothing stays
behind. An agent that is only slow goes on opening, and what it says early is in the log.
"""

from __future__ import annotations

import logging

import anyio
from anyio import to_thread
from msgspec.structs import replace

from turnwire.core.dialect import AgentProfile
from turnwire.core.state import Setup
from turnwire.core.translate.members import entries
from turnwire.core.translate.sessions import unwanted_servers
from turnwire.errors import AgentError, BadRequest, LimitExceeded, SessionLimitReached, TurnwireError
from turnwire.ids import SessionId
from turnwire.runtime.node import opening_failure
from turnwire.server.access.directories import check_directories
from turnwire.server.daemon.daemon import Daemon

logger = logging.getLogger(__name__)


async def create_session(
    daemon: Daemon,
    cwd: str,
    setup: Setup,
    *,
    author: str,
    session_id: SessionId | None = None,
    title: str | None = None,
    fork_of: SessionId | None = None,
    wait: bool = True,
) -> SessionId:
    """Record a session and, with `wait`, give its agent the time to take it.

    Raises `SessionLimitReached`, `SessionExists`; with `wait` also `AuthRequired`, `AgentLaunchFailed` and
    `AgentUnavailable`.
    """
    try:
        created = await daemon.node.create(
            cwd, session_id=session_id, setup=setup, fork_of=fork_of, author=author, title=title
        )
    except LimitExceeded as error:
        raise SessionLimitReached(str(error), limit=daemon.limits.loaded_sessions) from None
    if wait:
        await _hear_agent(daemon, created)
    return created


async def _hear_agent(daemon: Daemon, session_id: SessionId) -> None:
    """Wait for the agent of a new session, not for long. A session that no agent takes is removed again."""
    failure: AgentError | None = None
    with anyio.move_on_after(daemon.limits.opening_s):
        failure = await opening_failure(daemon.node, session_id)
    if failure is not None:
        await daemon.node.delete(session_id)
        raise failure


async def profile_of(daemon: Daemon) -> AgentProfile | None:
    """What the agent says of itself; none if there is none to be had now."""
    with anyio.move_on_after(daemon.limits.opening_s):
        try:
            return await daemon.node.agents.profile()
        except TurnwireError as error:
            extra = {"event": "agent_not_known", "code": error.code}
            logger.warning("a client is offered what every agent has: %s", error, extra=extra)
    return None


async def checked_setup(daemon: Daemon, setup: Setup) -> Setup:
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
