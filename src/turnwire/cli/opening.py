"""Opening the session that a command is for: one of a daemon's, or that of an agent of our own."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio
import click
from msgspec import Struct

from turnwire.cli.completion import agent_names, session_ids
from turnwire.cli.output import tell
from turnwire.cli.reach import WHOLE, tell_of_slow_agent, telling_of_slow_agent, whole_id
from turnwire.client.http import Http, segment
from turnwire.client.port import DaemonSession
from turnwire.client.remote import RemoteDaemon
from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.limits import Limits

if TYPE_CHECKING:
    from turnwire.client.embedded import EmbeddedDaemon

Function = TypeVar("Function", bound=Callable[..., Any])

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


def session_options(function: Function) -> Function:
    """Give a command the options that `WantedSession` is made of."""
    for option in (
        click.option("--model", help="Set the agent's model first."),
        click.option("--mode", help="Set the agent's mode first."),
        click.option("--cwd", metavar="DIR", default=".", help="Where the session works.  [default: here]"),
        click.option(
            "--agent",
            metavar="NAME",
            shell_complete=agent_names,
            help="The agent of the session, by its name at the daemon.",
        ),
        click.option("--new", "is_new", is_flag=True, help="Make a new session, whatever is open in this folder."),
        click.option(
            "-s",
            "--session",
            metavar="SESSION",
            shell_complete=session_ids,
            help="The session: its id, the beginning of it, or `last`.  [default: the newest open one of this"
            " folder, or a new one]",
        ),
    ):
        function = option(function)
    return function


class Entered(NamedTuple):
    """A session of a daemon that was entered."""

    session: DaemonSession
    client_id: str | None = None
    """What it knows us as; none if we only looked for it."""


class _Opened(Struct, rename="camel"):
    session_id: str
    client_id: str | None = None


async def enter(http: Http, wanted: WantedSession, say: Callable[[str], None] = tell) -> Entered:
    """The session that is wanted, as it is wanted: by its id, the newest of the folder, or a new one.

    Whoever waits long for its agent is told what for.
    """
    if wanted.session is not None:
        opened = _Opened(await _meant(http, wanted.session))
    else:
        async with telling_of_slow_agent(http, say):
            opened = await _open(http, wanted)
    session = await RemoteDaemon(http).find(SessionId(opened.session_id))
    for name, value in (("mode", wanted.mode), ("model", wanted.model)):
        if value is not None:
            await http.ask("POST", f"/session/{segment(session.session_id)}/{name}", {f"{name}Id": value})
    return Entered(session, opened.client_id)


async def _meant(http: Http, given: str) -> str:
    return given if WHOLE.match(given) else await whole_id(http, given)


async def _open(http: Http, wanted: WantedSession) -> _Opened:
    scope = "thread" if wanted.is_new else "single"
    body = {"cwd": wanted.cwd, "sessionScope": scope} | ({} if wanted.agent is None else {"agent": wanted.agent})
    return (await http.ask("POST", "/session", body, patient=False)).read(_Opened)


async def leave(http: Http, entered: Entered) -> None:
    """So that nobody is listed who is not there. Nothing depends on it, so nothing waits long for it."""
    if entered.client_id is not None:
        with anyio.move_on_after(LEAVING_S, shield=True), suppress(TurnwireError):
            path = f"/session/{segment(entered.session.session_id)}/detach"
            await http.ask("POST", path, headers={"Turnwire-Client-Id": entered.client_id}, patient=False)


@asynccontextmanager
async def open_agent(
    command: tuple[str, ...], cwd: str, say: Callable[[str], None] = tell
) -> AsyncGenerator[EmbeddedDaemon]:
    """A node of our own with this agent, which ends with it. Raises `ConfigError` if there is no such program."""
    # Imported here: who asks a daemon needs no node of its own, and would wait for it with every command.
    from turnwire.cli.agent_source import check_program
    from turnwire.client.embedded import open_embedded
    from turnwire.link.environment import agent_environment
    from turnwire.runtime.source import ProcessSource

    limits = Limits()
    tell_of_slow_agent(say)
    # It is the user's own process, and sees what the user gave it.
    env = agent_environment(os.environ, everything=True)
    check_program(command[0], env)
    source = ProcessSource(command, cwd=cwd, env=env, limits=limits)
    async with open_embedded(source, None, limits, None) as daemon:
        yield daemon
