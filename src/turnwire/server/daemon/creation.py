"""Creating a session over any interface: check its directories, record it, and wait for its agent.

A session that its agent rejects is removed again, so that the caller gets the agent's error and nothing remains. A
slow agent continues to open the session, and its early updates are in the log.

A client's path is resolved to its real path. A link that leads out of the operator's roots is rejected like every
path outside, with the same message whether it exists or not. The checks of directories block: call them in a worker
thread.
"""

from __future__ import annotations

import hashlib
import logging
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import anyio
from anyio import to_thread
from msgspec.structs import replace

from turnwire.errors import (
    AgentError,
    BadRequest,
    Forbidden,
    InvalidCwd,
    InvalidMetadata,
    LimitExceeded,
    RequestRefused,
    SessionLimitReached,
    TurnwireError,
)
from turnwire.hosting.services.refusals import CLOSED
from turnwire.hosting.services.roots import Roots
from turnwire.ids import AgentName, SessionId
from turnwire.projections.dialect import AgentProfile
from turnwire.projections.translate.sessions import (
    NO_SYSTEM_PROMPT,
    has_system_prompt,
    takes_system_prompt,
    unwanted_servers,
)
from turnwire.projections.view.markdown import markdown
from turnwire.runtime.node import Fork, opening_failure
from turnwire.server.daemon.daemon import Daemon
from turnwire.session.json_members import entries
from turnwire.session.state import Setup

TITLE_CHARACTERS = 256
CONTEXT_CHARACTERS = 100_000
"""Characters of a conversation that an agent gets when it takes over: about 25,000 tokens of a model."""
OUTSIDE, ROOT_MISSING = "outside_roots", "root_missing"


# -- directories ---------------------------------------------------------------------------------------------


def check_cwd(cwd: str, roots: Sequence[Path], what: str = "cwd") -> str:
    """Return the real path of `cwd`; errors call it `what`.

    Raises:
        InvalidCwd: It is not absolute, missing, or no directory.
        Forbidden: It is not inside one of `roots`, or one of those is gone.
    """
    if not roots:
        raise _outside(what, roots)
    first, *others = (str(root.absolute()) for root in roots)
    try:
        return Roots(first, others).directory(cwd)
    except RequestRefused as refused:
        if refused.reason == OUTSIDE:
            raise _outside(what, roots) from None
        if refused.reason == CLOSED:
            raise Forbidden(f"{what} is inside turnwire's own data; choose another directory") from None
        if refused.reason == ROOT_MISSING:
            raise Forbidden(
                "an allowed directory is gone; make it again, or restart the daemon without it"
            ) from None
        raise InvalidCwd(
            f"{what} must be the absolute path of a directory that exists; check it, or make the directory first",
            reason=refused.reason,
        ) from None


def check_directories(paths: Sequence[str], roots: Sequence[Path]) -> tuple[str, ...]:
    """Return the real paths of further directories of a session. Raises the errors of `check_cwd`."""
    return tuple(check_cwd(each, roots, "an additional directory") for each in paths)


def _outside(what: str, roots: Sequence[Path]) -> Forbidden:
    # Every caller that gets here may read the same names with `GET /capabilities`.
    allowed = ", ".join(str(each.absolute()) for each in roots) or "none"
    return Forbidden(
        f"{what} is outside the allowed directories: {allowed}; choose one inside them, or start the daemon with"
        f" `--cwd DIR` for it, once for each directory"
    )


def workspace_id(cwd: str) -> str:
    """Return the name of a directory in URLs."""
    return hashlib.sha256(cwd.encode()).hexdigest()[:16]


def workspace_of(roots: Sequence[Path], name: str) -> str | None:
    """Return the directory with this id, or `None`."""
    paths = (str(root.absolute()) for root in roots)
    return next((each for each in paths if workspace_id(each) == name), None)


logger = logging.getLogger(__name__)


# -- sessions ------------------------------------------------------------------------------------------------


async def create_session(
    daemon: Daemon,
    cwd: str,
    setup: Setup,
    *,
    author: str,
    session_id: SessionId | None = None,
    title: str | None = None,
    fork: Fork | None = None,
    agent_name: AgentName | None = None,
) -> SessionId:
    """Record a session. When this returns, its agent is being asked to open it.

    Raises `SessionLimitReached`, `SessionExists`, `UnknownAgent`.
    """
    try:
        return await daemon.node.create(
            cwd,
            session_id=session_id,
            setup=setup,
            fork=fork,
            author=author,
            title=title,
            agent_name=agent_name,
        )
    except LimitExceeded as error:
        raise SessionLimitReached(str(error), limit=daemon.limits.loaded_sessions) from None


async def hear_agent(daemon: Daemon, session_id: SessionId) -> None:
    """Wait for a limited time until the agent of a new session answers. A session that its agent rejects is removed
    again.

    Raises `AuthRequired`, `AgentLaunchFailed`, `AgentUnavailable`.
    """
    failure: AgentError | None = None
    with anyio.move_on_after(daemon.limits.opening_s):
        failure = await opening_failure(daemon.node, session_id)
    if failure is not None:
        await daemon.delete(session_id)
        raise failure


async def context_of(daemon: Daemon, session_id: SessionId) -> str:
    """Return the conversation of a session for another agent that takes it over. Raises `SessionNotFound`."""
    view = await daemon.node.view(session_id)
    whose = daemon.node.agents.name_of(view.session.agent_name)
    said = markdown(view, CONTEXT_CHARACTERS)
    return f"# The conversation so far, with the agent {whose!r}; go on from here\n\n{said}\n"


async def profile_of(daemon: Daemon, agent_name: AgentName | None = None) -> AgentProfile | None:
    """Return the profile that an agent (or the default one) reports, or `None` if it is not available now."""
    with anyio.move_on_after(daemon.limits.opening_s):
        try:
            return await daemon.node.agents.profile(agent_name)
        except TurnwireError as error:
            extra = {"event": "agent_not_known", "agent": agent_name, "code": error.code}
            logger.warning("a client is offered what every agent has: %s", error, extra=extra)
    return None


async def checked_setup(daemon: Daemon, setup: Setup, agent_name: AgentName | None = None) -> Setup:
    """Return the setup with the real paths of its directories, for a session of that agent.

    Raises `BadRequest` if the agent supports no further directories, no system prompt or no such MCP servers, or if
    one is not a directory; `Forbidden` for a directory outside the roots.
    """
    directories = setup.additional_directories
    has_prompt = has_system_prompt(setup)
    if not directories and not entries(setup.mcp_servers) and not has_prompt:
        return setup
    agent = await profile_of(daemon, agent_name)
    if has_prompt and (agent is None or not takes_system_prompt(agent)):
        raise BadRequest(NO_SYSTEM_PROMPT)
    unwanted = None if agent is None else unwanted_servers(setup.mcp_servers, agent)
    if unwanted is not None:
        raise BadRequest(unwanted)
    if not directories:
        return setup
    if agent is None or not agent.directories:
        raise BadRequest("this agent does not offer additionalDirectories; leave them out")
    true_paths = await to_thread.run_sync(check_directories, directories, daemon.roots)
    return replace(setup, additional_directories=true_paths)


def checked_title(title: str | None) -> str | None:
    """Return a title that fits on one line; an empty title means none. Raises `InvalidMetadata`."""
    title = (title or "").strip()
    if len(title) > TITLE_CHARACTERS:
        raise InvalidMetadata("the title is too long; shorten it", limit=TITLE_CHARACTERS, value=len(title))
    if any(unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"} for each in title):
        raise InvalidMetadata("the title has control characters; give one line of text")
    return title or None
