"""Pages whose console blocks work as typed: the first five minutes of each kind of user, and REST."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.start.typed import ROOT, blocks, reading

from turnwire_testing.plugin import find_tool

PAGES = [*sorted((ROOT / "docs" / "start").glob("*.md")), ROOT / "docs" / "rest.md"]


def test_there_is_a_page_for_each_kind_of_user() -> None:
    assert [each.stem for each in PAGES] == ["agent-author", "client-author", "editor-user", "operator", "rest"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_works_as_typed(page: Path, tmp_path: Path) -> None:
    find_tool("bash")
    find_tool("curl")
    with reading(tmp_path) as reader:
        for block in blocks(page):
            reader.follow(block)
