"""End to end in one process, against each dialect of the agent."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias, cast

import pytest
from tests.support.clients import Connected, seated, seated_over_http
from tests.support.driving import World, open_world

from turnwire.limits import Limits
from turnwire.log import Durability, EventLog, SqliteEventLog
from turnwire_testing import AgentOptions, Profile

OpenWorld: TypeAlias = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture(params=["embedded", "http"])
def connected(request: pytest.FixtureRequest) -> Connected:
    """Provide a client of the SDK, with a private agent or with a daemon: programs see no difference."""
    return seated if request.param == "embedded" else seated_over_http


@pytest.fixture(params=["v1", "v1plus", "v2"])
def profile(request: pytest.FixtureRequest) -> Profile:
    return cast("Profile", request.param)


@pytest.fixture
def has_small_heap() -> Generator[None]:
    """Exclude the objects of other tests from garbage collection, which they make slow."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def world(profile: Profile, tmp_path: Path) -> OpenWorld:
    """Open a node on the SQLite log of this test. A second one continues where the first one stopped."""
    path = tmp_path / "log.db"

    @asynccontextmanager
    async def one_log() -> AsyncGenerator[EventLog]:
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
