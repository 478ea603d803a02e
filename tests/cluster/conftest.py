"""What the tests of clusters share."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.cluster.standbys import Standbys, open_standbys


@pytest.fixture
def standbys() -> Generator[Standbys]:
    """A primary and its synchronous standby, for one test."""
    with open_standbys() as found:
        yield found
