"""An agent in this process with a bare client on a link to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from turnwire.agent import Agent
from turnwire.hosting.memory import memory_pair
from turnwire_testing.patience import WAIT_S
from turnwire_testing.scripted.client import BareClient

NOTHING: dict[str, Any] = {}
"""The capabilities of a client that offers nothing."""


@asynccontextmanager
async def bare(agent: Agent, answers: Mapping[str, Any] | None = None) -> AsyncGenerator[BareClient]:
    """Provide a client of this agent, which is served until the client disconnects. Bounded in time."""
    ours, theirs = memory_pair()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.serve, theirs)
            yield BareClient(ours, answers)
            await ours.aclose()
