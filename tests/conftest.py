"""What every test of this repository shares."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio only, as turnwire does."""
    return "asyncio"
