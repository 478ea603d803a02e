"""What the tests of the log share."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from turnwire.testing.sqlite_faults import Faults, sqlite_faults


@pytest.fixture
def faults() -> Generator[Faults]:
    """Faults for every connection that the test opens."""
    with sqlite_faults() as given:
        yield given
