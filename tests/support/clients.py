"""A client of the SDK with a scripted agent, for tests. Every test in it is bounded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio

from turnwire.client import Client, Session, connect
from turnwire.limits import Limits
from turnwire.log import EventLog
from turnwire.testing import AgentOptions, ManualClock, Profile
from turnwire.testing.source import ScriptedSource

WAIT_S = 20.0
"""Longer than any test takes on a busy machine, shorter than pytest's own limit."""


class Seat(NamedTuple):
    """A client with one session."""

    client: Client
    session: Session
    source: ScriptedSource


@asynccontextmanager
async def seated(
    profile: Profile = "v1",
    options: AgentOptions | None = None,
    *,
    limits: Limits | None = None,
    log: EventLog | None = None,
    clock: ManualClock | None = None,
) -> AsyncGenerator[Seat]:
    """A client, its scripted agent and one session; time stands still if a clock is given."""
    with anyio.fail_after(WAIT_S):
        async with (
            ScriptedSource(profile, options) as source,
            connect(source, limits=limits, log=log, clock=clock) as client,
        ):
            yield Seat(client, await client.new_session("/work"), source)


def script(*lines: str) -> str:
    """A prompt that is a script of the agent."""
    return "\n".join(lines)
