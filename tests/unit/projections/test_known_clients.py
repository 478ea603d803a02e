"""The table of released clients, and the page that shows it."""

from __future__ import annotations

import re
from pathlib import Path

from turnwire.projections.translate.handshake import KNOWN_CLIENTS, find_client

PAGE = Path(__file__).parents[3] / "docs" / "interop.md"


def test_the_page_names_every_client() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Clients that lack the drafts", 1)[1].split("## ", 1)[0]
    named = re.findall(r"`([^`]+)`", "\n".join(line for line in section.splitlines() if line.startswith("- ")))
    assert sorted(named) == sorted(each.name for each in KNOWN_CLIENTS)


def test_a_client_is_found_by_its_whole_name_in_any_case() -> None:
    assert all(find_client(each.name.swapcase()) is each for each in KNOWN_CLIENTS)
    assert (find_client(None), find_client(""), find_client("zed preview"), find_client("ze")) == (None,) * 4


def test_a_row_is_of_a_client_that_lacks_something() -> None:
    assert not [each.name for each in KNOWN_CLIENTS if each.turn_complete and each.ready]
