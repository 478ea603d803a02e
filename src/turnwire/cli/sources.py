"""Where the agent of a daemon comes from: a command, an address, or the agent that is built in.

Takes settings; gives a source. Never starts anything.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from turnwire.cli.builtin import agent_command
from turnwire.limits import Limits
from turnwire.runtime.source import AgentSource, ProcessSource
from turnwire.server.settings import Settings


@asynccontextmanager
async def agent_source(settings: Settings, limits: Limits) -> AsyncGenerator[AgentSource]:
    """The source that these settings name. Raises `ConfigError`."""
    if settings.agent_url is None:
        yield ProcessSource(agent_command(settings.agent), limits=limits)
        return
    from turnwire.runtime.remote import RemoteSource

    async with RemoteSource(settings.agent_url, token=settings.agent_token, limits=limits) as remote:
        yield remote


def log_secrets(settings: Settings) -> list[str]:
    """What must never be in a log line."""
    return [each for each in (settings.token, settings.agent_token) if each is not None]
