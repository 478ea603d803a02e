"""The house of literal peers: what it runs is shared by all tests, what a test opened is let go with it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.literal.stages import SERVED, TRANSPORTS, House


@pytest.fixture(scope="session")
def shared_house(tmp_path_factory: pytest.TempPathFactory) -> Generator[House]:
    house = House(tmp_path_factory.mktemp("literal"))
    yield house
    house.close()


@pytest.fixture
def house(shared_house: House) -> Generator[House]:
    yield shared_house
    shared_house.end_test()


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Each way to turnwire."""
    found: str = request.param
    return found


@pytest.fixture(params=SERVED)
def served_by(request: pytest.FixtureRequest) -> str:
    """Each way to a daemon, where others can look on."""
    found: str = request.param
    return found
