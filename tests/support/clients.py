"""A client of the SDK with a private scripted agent or a daemon in between. Every test in it is bounded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeAlias

import anyio
import pytest
from tests.support.played import serving

from turnwire.client import Client, Session, connect
from turnwire.limits import Limits
from turnwire.log import EventLog
from turnwire.server.app import create_app
from turnwire.server.daemon import open_daemon
from turnwire.server.settings.declared import Settings
from turnwire_testing import AgentOptions, ManualClock, Profile
from turnwire_testing.patience import WAIT_S
from turnwire_testing.scripted.agent import ScriptedSource


class SdkSession(NamedTuple):
    """A client with one session."""

    client: Client
    session: Session
    source: ScriptedSource
    cwd: str = "/work"
    """A directory in which sessions may work."""
    name: str = "sdk"
    """The client's name in the log."""


Connected: TypeAlias = Callable[..., AbstractAsyncContextManager[SdkSession]]
"""`async with connected(profile, options, limits=…) as seat`."""

EACH_DIALECT = pytest.mark.parametrize(
    ("connected", "profile"), [("embedded", "v1"), ("http", "v1plus"), ("http", "v2")], indirect=["connected"]
)
"""Run a test with each dialect of the agent, embedded and over HTTP."""

TOKEN = "a-token-for-tests-0123456789"


@asynccontextmanager
async def seated(
    profile: Profile = "v1",
    options: AgentOptions | None = None,
    *,
    limits: Limits | None = None,
    log: EventLog | None = None,
    clock: ManualClock | None = None,
) -> AsyncGenerator[SdkSession]:
    """Provide a client, its scripted agent and one session; if a clock is given, time stops."""
    with anyio.fail_after(WAIT_S):
        async with (
            ScriptedSource(profile, options) as source,
            connect(source, limits=limits, log=log, clock=clock) as client,
        ):
            yield SdkSession(client, await client.new_session("/work"), source)


@asynccontextmanager
async def seated_over_http(
    profile: Profile = "v1", options: AgentOptions | None = None, *, limits: Limits | None = None
) -> AsyncGenerator[SdkSession]:
    """Provide the same with a daemon in between, reached over a socket."""
    limits = limits or Limits()
    with TemporaryDirectory() as folder, anyio.fail_after(WAIT_S):
        settings = replace(Settings(), log="memory", token=TOKEN, cwd=(Path(folder),))
        async with (
            ScriptedSource(profile, options) as source,
            open_daemon(settings, limits, source) as daemon,
            serving(create_app(daemon)) as url,
            connect(url, token=TOKEN, limits=limits) as client,
        ):
            yield SdkSession(client, await client.new_session(folder), source, folder, "owner")


def script(*lines: str) -> str:
    """Return a prompt that is a script of the agent."""
    return "\n".join(lines)
