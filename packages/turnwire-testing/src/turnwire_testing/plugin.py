"""The pytest plugin: `-p turnwire_testing.plugin` provides turnwire's test doubles as fixtures.

It has the fixtures `manual_clock`, `scripted_agent`, `gates`, `anyio_backend` and `require_tool`. No test is
skipped silently: a missing program is a skip with its reason, or a failure where `TURNWIRE_REQUIRE_ALL=1` requires
every program.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from turnwire.hosting.memory import MemoryLink
from turnwire_testing.clock import ManualClock
from turnwire_testing.scripted.agent import scripted_agent as open_agent
from turnwire_testing.scripted.host import Gates


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio only, as turnwire does."""
    return "asyncio"


@pytest.fixture
def manual_clock() -> ManualClock:
    """Return a clock that stops until the test advances it."""
    return ManualClock()


@pytest.fixture
def gates() -> Gates:
    """The gates of an in-process agent: `scripted_agent("v1", gates=gates)`."""
    return Gates()


@pytest.fixture
def scripted_agent() -> Callable[..., AbstractAsyncContextManager[MemoryLink]]:
    """`async with scripted_agent("v1") as link` runs an agent in this process."""
    return open_agent


def find_tool(name: str) -> str:
    """The path of a program that a test needs; without it the test is skipped, or fails (see above)."""
    path = shutil.which(name)
    if path is not None:
        return path
    reason = f"the program {name!r} is not on PATH"
    if os.environ.get("TURNWIRE_REQUIRE_ALL") == "1":
        pytest.fail(f"{reason}, and TURNWIRE_REQUIRE_ALL=1 asks for every program", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def require_tool() -> Callable[[str], str]:
    """Return a function: `require_tool("git")` returns the program's path or skips the test."""
    return find_tool
