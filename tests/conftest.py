"""Fixtures and hooks of all tests of this repository."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from playwright.async_api import Browser
    from tests.support.postgres import PostgresServer


# The suite for every push tries the same examples each time; `make soak` searches with random ones.
# A busy machine generates slowly, so that says nothing about a strategy.
settings.register_profile(
    "quick", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", settings.get_profile("quick"), max_examples=2000, derandomize=False, print_blob=True
)
settings.load_profile("soak" if os.environ.get("TURNWIRE_SOAK") == "1" else "quick")

FULL_FOLDERS = {"cluster", "crash", "deploy", "interop", "page", "postgres", "power", "start", "web"}
"""Folders that belong to `make test-all` as a whole. Single files and tests elsewhere carry the marker `full`."""
TOOL_FIXTURES = {"postgres", "browser", "browser_program", "tls"}
"""Fixtures that need a program besides Python."""
PROCESSES = "starts dozens of processes"
FULL_CLI = {
    "test_agent_environment",
    "test_agent_import",
    "test_chat",
    "test_children",
    "test_choices",
    "test_completion",
    "test_daemon_stop",
    "test_doctor",
    "test_drawing",
    "test_forms",
    "test_local_daemon",
    "test_many_agents",
    "test_mistakes",
    "test_not_acp",
    "test_permission_view",
    "test_relay_process",
    "test_session_names",
    "test_shared_folder",
    "test_stdio",
    "test_streams",
    "test_swallowed",
    "test_tokens",
    "test_turn_control",
    "test_verify",
}
"""Files of tests/cli in which nearly every test starts several commands, at about a second each."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of files that `make test` deselects as a whole: each worker collects everything."""
    if "not full" not in str(config.getoption("markexpr")):
        return None
    root = Path(__file__).parent
    if not collection_path.is_relative_to(root):
        return None
    folder = collection_path.relative_to(root).parts[:1]
    is_full = folder == ("cli",) and collection_path.stem in FULL_CLI
    # Its requests are generated while it is collected.
    is_full |= collection_path.stem == "test_schemathesis"
    return True if is_full or FULL_FOLDERS.intersection(folder) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of `make test-all`, so that `-m "not full and not soak"` is the suite of `make test`."""
    root = Path(__file__).parent
    for item in items:
        if not item.path.is_relative_to(root):
            continue
        folder = item.path.relative_to(root).parts[0]
        needed = TOOL_FIXTURES & set(getattr(item, "fixturenames", ()))
        if folder in FULL_FOLDERS:
            item.add_marker(pytest.mark.full("its folder"))
        elif folder == "cli" and item.path.stem in FULL_CLI:
            item.add_marker(pytest.mark.full(PROCESSES))
        elif needed:
            item.add_marker(pytest.mark.full(f"needs {', '.join(sorted(needed))}"))


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
    """Run one browser for the tests of a file. Each test has separate contexts in it."""
    from tests.support.browser import running_browser

    async with running_browser(browser_program) as found:
        yield found


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer]:
    """Run one PostgreSQL for all tests of a worker. Each log has a separate schema in it."""
    from tests.support.postgres import need_postgres, postgres_server

    with postgres_server(need_postgres()) as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test marked `every_log` on SQLite and, in `make test-all`, on PostgreSQL too."""
    if metafunc.definition.get_closest_marker("every_log") is not None:
        postgresql = pytest.param("postgresql", marks=pytest.mark.full("PostgreSQL"))
        metafunc.parametrize("log_of_daemons", ["sqlite", postgresql], indirect=True)


@pytest.fixture(autouse=True)
def log_of_daemons(request: pytest.FixtureRequest) -> Generator[str]:
    """The kind of log that the test's daemons use. A data folder has the same log after a restart.

    It is autouse because pytest drops a parametrized fixture that the test does not request.
    """
    kind: str = getattr(request, "param", "sqlite")
    if kind == "sqlite":
        yield kind
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_in_postgres(request.getfixturevalue("postgres"), monkeypatch)
        yield kind


def keep_in_postgres(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support import daemons

    logs: dict[Path, str] = {}

    def log_for(data: Path) -> str:
        return logs.get(data) or logs.setdefault(data, server.new_log())

    monkeypatch.setattr(daemons, "log_for", log_for)
