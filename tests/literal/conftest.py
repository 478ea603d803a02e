"""The shared environment of the literal peers: processes are shared by all tests, and a test's connections are
closed with it.
"""

from __future__ import annotations

from collections.abc import Generator
from zlib import crc32

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that names `transport` or `served_by` on one of them, and on the others in `make test-all`.

    The name of the test selects the one, so that a folder of tests runs on all of them.
    """
    for argument, transports in (("transport", TRANSPORTS), ("served_by", SERVED)):
        if argument in metafunc.fixturenames:
            first = crc32(metafunc.function.__name__.encode()) % len(transports)
            others = pytest.mark.full("every other transport")
            metafunc.parametrize(
                argument,
                [each if n == first else pytest.param(each, marks=others) for n, each in enumerate(transports)],
            )
