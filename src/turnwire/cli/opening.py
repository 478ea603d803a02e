"""Opening the session that a command is for: one of a daemon's, or that of an agent of our own."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import anyio
from msgspec import Struct

from turnwire.cli.reach import tell_of_slow_agent, telling_of_slow_agent
from turnwire.client.http import Http, segment
from turnwire.client.port import DaemonSession
from turnwire.client.remote import RemoteDaemon
from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.limits import Limits

if TYPE_CHECKING:
    from turnwire.client.embedded import EmbeddedDaemon

LEAVING_S = 1.0


class WantedSession(NamedTuple):
    """Which session, and how it is to be."""

    session: str | None
    is_new: bool
    cwd: str
    mode: str | None
    model: str | None
    agent: str | None = None
    """The name of one of the daemon's agents."""


class EnteredSession(NamedTuple):
    """A session of a daemon's, and what it knows us as: none if it was only found."""

    session: DaemonSession
    client_id: str | None


class _Opened(Struct, rename="camel"):
    session_id: str
    client_id: str | None = None


@asynccontextmanager
async def open_agent(command: tuple[str, ...], cwd: str) -> AsyncGenerator[EmbeddedDaemon]:
    """A node of our own with this agent, which ends with it. Raises `ConfigError` if there is no such program."""
    # Imported here: who asks a daemon needs no node of its own, and would wait for it with every command.
    from turnwire.cli.agent_source import check_program
    from turnwire.client.embedded import open_embedded
    from turnwire.link.environment import agent_environment
    from turnwire.runtime.source import ProcessSource

    limits = Limits()
    tell_of_slow_agent()
    # It is the user's own process, and sees what the user gave it.
    env = agent_environment(os.environ, everything=True)
    check_program(command[0], env)
    source = ProcessSource(command, cwd=cwd, env=env, limits=limits)
    async with open_embedded(source, None, limits, None) as daemon:
        yield daemon


async def enter(http: Http, wanted: WantedSession) -> EnteredSession:
    """The session that is wanted, as it is wanted: by its id, the newest of the folder, or a new one."""
    async with telling_of_slow_agent(http):
        session_id, client_id = (wanted.session, None) if wanted.session else await _enter(http, wanted)
        session = await RemoteDaemon(http).find(SessionId(session_id))
    for name, value in (("mode", wanted.mode), ("model", wanted.model)):
        if value is not None:
            await http.ask("POST", f"/session/{segment(session_id)}/{name}", {f"{name}Id": value})
    return EnteredSession(session, client_id)


async def _enter(http: Http, wanted: WantedSession) -> tuple[str, str | None]:
    scope = "thread" if wanted.is_new else "single"
    body = {"cwd": wanted.cwd, "sessionScope": scope} | ({} if wanted.agent is None else {"agent": wanted.agent})
    opened = (await http.ask("POST", "/session", body, patient=False)).read(_Opened)
    return opened.session_id, opened.client_id


async def leave(http: Http, entered: EnteredSession) -> None:
    """So that nobody is listed who is not there. Nothing depends on it, so nothing waits long for it."""
    if entered.client_id is None:
        return
    with anyio.move_on_after(LEAVING_S, shield=True), suppress(TurnwireError):
        path = f"/session/{segment(entered.session.session_id)}/detach"
        await http.ask("POST", path, headers={"Turnwire-Client-Id": entered.client_id}, patient=False)
