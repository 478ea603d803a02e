"""The pytest plugin: its fixtures, and what happens to a test whose program is absent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from turnwire.hosting.memory import MemoryLink
from turnwire_testing import BareClient, ManualClock
from turnwire_testing.plugin import find_tool

pytestmark = pytest.mark.anyio


async def test_the_agent_fixture_opens_agents(
    scripted_agent: Callable[..., AbstractAsyncContextManager[MemoryLink]],
) -> None:
    async with scripted_agent("v2") as link:
        assert (await BareClient(link).initialize(2))["protocolVersion"] == 2


def test_the_clock_fixture_is_a_clock_of_its_own(manual_clock: ManualClock) -> None:
    assert manual_clock.monotonic() == 0


def test_async_tests_run_on_asyncio(anyio_backend: str) -> None:
    assert anyio_backend == "asyncio"


def test_a_program_that_is_there_is_found(require_tool: Callable[[str], str]) -> None:
    assert require_tool("sh").endswith("/sh")


def test_a_missing_program_skips_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNWIRE_REQUIRE_ALL", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program"):
        find_tool("no-such-program")


def test_a_missing_program_fails_where_all_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_REQUIRE_ALL", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-program"):
        find_tool("no-such-program")
