"""What every test of this repository shares."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser
    from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio only, as turnwire does."""
    return "asyncio"


@pytest.fixture(scope="session")
def browser_program() -> str:
    """Asked for outside of any loop: a skip inside of one would lose its reason."""
    from tests.support.browser import need_browser

    return need_browser()


@pytest.fixture(scope="module")
async def browser(browser_program: str) -> AsyncGenerator[Browser]:
    """One running browser for the tests of a file. Each test has contexts of its own in it."""
    from tests.support.browser import running_browser

    async with running_browser(browser_program) as found:
        yield found


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer]:
    """One running PostgreSQL for all tests of a worker. Each log has a schema of its own in it."""
    from tests.support.postgres import need_postgres, postgres_server

    with postgres_server(need_postgres()) as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that is to hold on every log runs on each, unless it has no daemon (no loop, or no folder for one)."""
    marked = metafunc.definition.get_closest_marker
    has_daemon = iscoroutinefunction(metafunc.function) and "tmp_path" in metafunc.fixturenames
    if has_daemon and marked("every_log") is not None and marked("own_log") is None:
        metafunc.parametrize("log_of_daemons", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture(autouse=True)
def log_of_daemons(request: pytest.FixtureRequest) -> Generator[str]:
    """Where daemons of the test keep their logs. One folder has one log, also after a restart.

    For all tests, because pytest leaves out a fixture that a test has as a parameter and does not use by itself.
    """
    place: str = getattr(request, "param", "sqlite")
    if place == "sqlite":
        yield place
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_in_postgres(request.getfixturevalue("postgres"), monkeypatch)
        yield place


@pytest.fixture(autouse=True, scope="session")
def every_daemon_on_postgres(request: pytest.FixtureRequest) -> Generator[None]:
    """With `TURNWIRE_TEST_LOG=postgresql` all daemons of all tests are on it, for a look at the whole suite."""
    if os.environ.get("TURNWIRE_TEST_LOG") != "postgresql":
        yield
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_in_postgres(request.getfixturevalue("postgres"), monkeypatch)
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test with a log of its own shows nothing where all daemons are to be on PostgreSQL."""
    own = item.get_closest_marker("own_log")
    if own is not None and os.environ.get("TURNWIRE_TEST_LOG") == "postgresql":
        pytest.skip(f"it has a log of its own: {own.args[0]}")


def keep_in_postgres(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support import daemons

    logs: dict[Path, str] = {}

    def log_for(data: Path) -> str:
        return logs.get(data) or logs.setdefault(data, server.new_log())

    monkeypatch.setattr(daemons, "log_for", log_for)
