"""The table of released clients, and the page that shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from turnwire.core.known_clients import KNOWN_CLIENTS, find_client

PAGE = Path(__file__).parents[3] / "docs" / "interop.md"
CELLS = 8


def test_the_page_shows_the_table_row_by_row() -> None:
    rows = [each.strip("| ").split(" | ") for each in PAGE.read_text(encoding="utf-8").splitlines()]
    shown = [tuple(row) for row in rows if len(row) == CELLS and re.fullmatch("`.*`", row[0])]
    words = {True: "yes", False: "no"}
    assert shown == [
        (
            *(f"`{each.name}`", each.product, each.version, each.date),
            *(each.evidence.value, each.why, words[each.turn_complete], words[each.ready]),
        )
        for each in KNOWN_CLIENTS
    ]


def test_a_client_is_found_by_its_whole_name_in_any_case() -> None:
    assert all(find_client(each.name.swapcase()) is each for each in KNOWN_CLIENTS)
    assert (find_client(None), find_client(""), find_client("zed preview"), find_client("ze")) == (None,) * 4


@pytest.mark.requirement("R25")
def test_a_row_is_of_a_client_that_lacks_something() -> None:
    assert not [each.name for each in KNOWN_CLIENTS if each.turn_complete and each.ready]
