"""The page about testing tells the truth: its table is the parser's, its options exist, its examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from turnwire_testing import AgentOptions
from turnwire_testing.agent import EPILOG, read_arguments
from turnwire_testing.scripted.commands import COMMANDS, usage_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "testing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under this heading row."""
    table = PAGE.split(f"{heading}\n", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def test_the_table_of_commands_is_the_parser_s() -> None:
    written = rows("| command | profiles | does |")
    assert written == [[f"`{usage_of(each)}`", each.profiles, each.does] for each in COMMANDS.values()]


def test_every_option_is_listed_with_an_argument_that_exists() -> None:
    written = rows("| option | argument | meaning |")
    assert [row[0].strip("`") for row in written] == [field.name for field in fields(AgentOptions)]
    for row in written:
        flag = row[1].strip("`").split()[0]
        assert flag == "--" + row[0].strip("`").replace("_", "-")
        with pytest.raises(SystemExit):
            read_arguments([flag, "--help"])


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 3
    assert EPILOG.startswith("examples:")


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_first_example_is_short() -> None:
    body = EXAMPLES[0].split("async def", 1)[1].split("anyio.run", 1)[0]
    assert len([line for line in body.splitlines() if line.strip()]) <= 15
