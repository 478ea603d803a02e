"""Which failures of a run CI looks at once more: few, and of tests that do the same each time."""

from __future__ import annotations

import pytest
from scripts.unsteady import AT_MOST, again, searches

STEADY = "tests/cli/test_terminal.py::test_progress"


@pytest.mark.parametrize(
    ("test", "at_random"),
    [
        (STEADY, False),
        ("tests/postgres/test_nodes.py::test_x", False),
        ("tests/postgres/test_node_killed.py::test_x", True),
        ("tests/crash/test_recovery.py::test_x[1]", True),
        ("tests/cluster/test_faults.py::test_x", True),
        ("tests/properties/test_view.py::test_x", True),
        ("tests/server/test_stream_cuts.py::test_x", True),
    ],
)
def test_what_draws_by_lot_or_kills_is_not_run_again(test: str, at_random: bool) -> None:
    assert searches(test) is at_random
    assert (again([test]) is None) is not at_random


def test_many_failures_and_a_run_without_any_are_not_run_again() -> None:
    assert again([STEADY] * AT_MOST) is None
    assert "at most" in str(again([STEADY] * (AT_MOST + 1)))
    assert "did not come to its end" in str(again([]))
