"""What the tests of the page share."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.page.rig import House, housed


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generator[House]:
    """One daemon for the tests of a file. Each test has sessions of its own on it."""
    with housed(tmp_path_factory.mktemp("home")) as found:
        yield found
