"""README.md followed by a new user: its blocks in order, in a fresh clone, with few programs on the PATH."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.start.newcomer import ROOT, environment, make_path, megabytes
from tests.start.test_install import MAX_MB
from tests.start.typed import Block, blocks, reading

README = ROOT / "README.md"
SHELLS = {"sh", "bash"}


def lists_the_folder(printed: str) -> None:
    assert "These files are in this folder:" in printed
    assert "pyproject.toml" in printed
    assert re.search(r"^s_\w+\tidle\t", printed, re.MULTILINE), printed


def streams_one_turn(printed: str) -> None:
    accepted = re.search(r'\{"promptId".*?\}', printed)
    assert accepted is not None, printed
    prompt = json.loads(accepted[0])["promptId"]
    events = re.findall(r"^event: (\w+)\ndata: (.*)$", printed, re.MULTILINE)
    ends = [json.loads(data)["promptId"] for kind, data in events if kind == "turn_complete"]
    assert ends == [prompt], printed
    assert "pyproject.toml" in printed


def prints_the_answer(printed: str) -> None:
    assert "pyproject.toml" in printed
    assert printed.rstrip().endswith(" end_turn"), printed


def says_done(printed: str) -> None:
    assert "Done." in printed


def finds_no_broken_rule(printed: str) -> None:
    assert re.search(r"tidy 1\.0: \d+ passed, 0 failed", printed), printed


PROMISED: dict[str, Callable[[str], None]] = {
    "turnwire sessions": lists_the_folder,
    "curl": streams_one_turn,
    "python ask.py": prints_the_answer,
    "tidy up": says_done,
    "turnwire check": finds_no_broken_rule,
}
"""A command in a block, and the check of what the block prints."""


@pytest.mark.full("clones the repository and installs it")
def test_every_block_works_in_order_in_a_fresh_clone(tmp_path: Path) -> None:
    path = make_path(tmp_path / "bin")
    clone = tmp_path / "project" / "turnwire"
    checked: list[str] = []
    with reading(tmp_path, environment(tmp_path / "home", path, REPOSITORY=str(ROOT))) as reader:
        for block in blocks(README):
            if block.title is not None:
                (clone / block.title).write_text(block.body, encoding="utf-8")
            elif block.language in SHELLS and "keeps-running" in block.options:
                reader.start(block.body, until="  stop   Ctrl-C")
            elif block.language in SHELLS:
                printed = reader.paste(block.body)
                [name] = [each for each in PROMISED if each in block.body]
                PROMISED[name](printed)
                checked.append(name)
    assert checked == list(PROMISED)
    assert megabytes(clone / ".venv") < MAX_MB
    assert not (clone / ".venv" / "bin" / "pytest").exists()


def test_every_block_is_one_that_the_clone_test_runs() -> None:
    def is_run(block: Block) -> bool:
        is_promised = sum(each in block.body for each in PROMISED) == 1
        return block.title is not None or "keeps-running" in block.options or is_promised

    assert [each.body for each in blocks(README) if not is_run(each)] == []


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"`make ([a-z-]+)`", README.read_text(encoding="utf-8"))
    assert named
    assert [each for each in named if not re.search(rf"^{each}:", makefile, re.MULTILINE)] == []


def test_the_terminal_picture_loads_nothing_from_elsewhere() -> None:
    [name] = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README.read_text(encoding="utf-8"))
    drawn = ROOT / name
    text = "".join(ElementTree.parse(drawn).getroot().itertext()).replace("\xa0", " ")
    assert "turnwire prompt" in text
    source = drawn.read_text(encoding="utf-8")
    assert "url(http" not in source
    assert "href" not in source
