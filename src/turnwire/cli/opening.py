"""Opening the session that a command is for: one of a daemon's, or that of an agent of our own."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from msgspec import Struct

from turnwire.client.embedded import EmbeddedDaemon, open_embedded
from turnwire.client.http import Http, segment
from turnwire.client.port import DaemonSession
from turnwire.client.remote import RemoteDaemon
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.link.environment import agent_environment
from turnwire.runtime.source import ProcessSource


class WantedSession(NamedTuple):
    """Which session, and how it is to be."""

    session: str | None
    is_new: bool
    cwd: str
    mode: str | None
    model: str | None
    agent: str | None = None
    """The name of one of the daemon's agents."""


class _Opened(Struct, rename="camel"):
    session_id: str


@asynccontextmanager
async def open_agent(command: tuple[str, ...], cwd: str) -> AsyncGenerator[EmbeddedDaemon]:
    """A node of our own with this agent, which ends with it."""
    limits = Limits()
    # It is the user's own process, and sees what the user gave it.
    env = agent_environment(os.environ, everything=True)
    source = ProcessSource(command, cwd=cwd, env=env, limits=limits)
    async with open_embedded(source, None, limits, None) as daemon:
        yield daemon


async def enter(http: Http, wanted: WantedSession) -> DaemonSession:
    """The session that is wanted, as it is wanted: by its id, the newest of the folder, or a new one."""
    session_id = wanted.session or await _enter(http, wanted)
    session = await RemoteDaemon(http).find(SessionId(session_id))
    for name, value in (("mode", wanted.mode), ("model", wanted.model)):
        if value is not None:
            await http.ask("POST", f"/session/{segment(session_id)}/{name}", {f"{name}Id": value})
    return session


async def _enter(http: Http, wanted: WantedSession) -> str:
    scope = "thread" if wanted.is_new else "single"
    body = {"cwd": wanted.cwd, "sessionScope": scope} | ({} if wanted.agent is None else {"agent": wanted.agent})
    answer = await http.ask("POST", "/session", body, patient=False)
    return answer.read(_Opened).session_id
