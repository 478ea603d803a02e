"""What every test of this repository shares."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser


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
