"""Fixtures of the tests of turnwire-testing."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.cli.rig import Served, served


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """A daemon with the scripted agent."""
    with served(tmp_path_factory.mktemp("home")) as running:
        yield running
