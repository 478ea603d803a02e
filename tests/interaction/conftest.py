"""End to end in one process: every test here runs against each dialect of the agent and each engine of the log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias, cast

import pytest
from tests.support.clients import Connected, seated, seated_over_http
from tests.support.driving import World, open_world

from turnwire.limits import Limits
from turnwire.log import Durability, EventLog, MemoryEventLog, SqliteEventLog
from turnwire.testing import AgentOptions, Profile

OpenWorld: TypeAlias = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture(params=["embedded", "http"])
def connected(request: pytest.FixtureRequest) -> Connected:
    """A client of the SDK, with an agent of its own and with a daemon: programs see no difference."""
    return seated if request.param == "embedded" else seated_over_http


@pytest.fixture(params=["v1", "v1plus", "v2"])
def profile(request: pytest.FixtureRequest) -> Profile:
    return cast("Profile", request.param)


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest) -> str:
    return cast("str", request.param)


@pytest.fixture
def world(profile: Profile, engine: str, tmp_path: Path) -> OpenWorld:
    """`async with world(...) as w`: a node on the log of this test; a second one finds what the first one wrote."""

    memory = MemoryEventLog()

    @asynccontextmanager
    async def one_log() -> AsyncGenerator[EventLog]:
        if engine == "memory":
            yield memory
            return
        path = tmp_path / "log.db"
        async with await SqliteEventLog.open(path, limits=Limits(), durability=Durability.NORMAL) as log:
            yield log

    @asynccontextmanager
    async def open_one(
        options: AgentOptions | None = None, limits: Limits | None = None, *, created: bool = True
    ) -> AsyncGenerator[World]:
        async with (
            one_log() as log,
            open_world(log, profile, options, limits, created=created) as made,
        ):
            yield made

    return open_one
