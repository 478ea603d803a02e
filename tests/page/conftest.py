"""Fixtures of the page's tests."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.page.rig import House, housed


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generator[House]:
    """Run one daemon for the tests of a file. Each test has separate sessions on it."""
    with housed(tmp_path_factory.mktemp("home")) as found:
        yield found
