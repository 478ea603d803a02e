"""Where the agent of a daemon comes from: a command, an address, a name to import, or the agent that is built in.

Takes settings; gives a source. Never starts anything, but an import runs the code of the operator's module.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from turnwire.cli.builtin import builtin_source
from turnwire.errors import ConfigError
from turnwire.limits import Limits
from turnwire.runtime.agent_source import AgentSource, ProcessSource
from turnwire.server.settings.declared import Settings

if TYPE_CHECKING:
    from turnwire.agent.agent import Agent


@asynccontextmanager
async def agent_source(settings: Settings, limits: Limits) -> AsyncGenerator[AgentSource]:
    """The source that these settings name. Raises `ConfigError`."""
    if settings.agent_import is not None:
        yield imported_agent(settings.agent_import).source()
        return
    if settings.agent_url is None:
        yield ProcessSource(settings.agent, limits=limits) if settings.agent else builtin_source(settings, limits)
        return
    from turnwire.runtime.remote_agent import RemoteSource

    async with RemoteSource(settings.agent_url, token=settings.agent_token, limits=limits) as remote:
        yield remote


def imported_agent(place: str) -> Agent:
    """The agent at `module:name`, or what the function there makes. Modules of the current folder count too.

    Raises:
        ConfigError: It cannot be imported, or is no agent.
    """
    from turnwire.agent.agent import Agent

    module, _, name = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for each in name.split("."):
            found = getattr(found, each)
        made: Any = found() if callable(found) and not isinstance(found, Agent) else found
    except Exception as error:
        raise ConfigError(
            f"agent_import is {place}, and that fails with {type(error).__name__}: {error}; it must be a module"
            ' that Python finds from here, with `agent.run()` only below `if __name__ == "__main__":`'
        ) from error
    if not isinstance(made, Agent):
        raise ConfigError(
            f"agent_import is {place}, and that is no agent but {type(made).__name__}; name a turnwire.agent.Agent,"
            " or wrap an agent of the official SDK with turnwire.agent.adapt"
        )
    return made


def log_secrets(settings: Settings) -> list[str]:
    """What must never be in a log line."""
    return [each for each in (settings.token, settings.agent_token) if each is not None]
