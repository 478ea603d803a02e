"""The page about the built-in agent: its programs run, its commands are understood, its tables are whole."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.cli.rig import environment, run
from tests.patience import LONG_S

from turnwire.cli.agent import agent
from turnwire.cli.commands import COMMANDS as PROGRAMS
from turnwire.cli.main import cli
from turnwire_agent.agent import COMMANDS
from turnwire_agent.permits import MODE_IDS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "configure-the-built-in-agent.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


COMMAND_LINES = [
    line.split(" #")[0].strip() for block in blocks("sh") for line in block.splitlines() if "turnwire " in line
]


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_a_program_of_the_page_runs(number: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(blocks("python")[number])
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "built into turnwire" in done.stdout


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_of_the_page_is_understood(line: str) -> None:
    words = [each for each in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=.*", each)]
    while words:
        assert words.pop(0) in ("turnwire", "pip"), line
        if "turnwire" not in line.split()[0] and words[:1] == ["install"]:
            return
        name, *arguments = words
        words = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
        assert name in PROGRAMS
        command = cli.get_command(click.Context(cli, obj={}), name)
        assert command is not None
        given = arguments[: arguments.index("--")] if "--" in arguments else arguments
        command.make_context(name, [each for each in given if each != "..."], obj={})


@pytest.mark.full("starts a daemon for each line")
@pytest.mark.parametrize("line", [each for each in COMMAND_LINES if each.startswith("turnwire prompt")])
def test_a_prompt_of_the_page_is_answered(line: str, tmp_path: Path) -> None:
    _, *words = shlex.split(line)
    words[words.index("--") + 1 :] = [sys.executable, "-m", "turnwire", "agent"]
    shown = run(*words, home=tmp_path)
    assert shown.code == 0, shown.err
    assert shown.out


def test_the_tables_name_every_option_command_and_mode() -> None:
    for option in agent.params:
        if isinstance(option, click.Option):
            assert f"| `{option.opts[0]}` | `{option.envvar}` |" in PAGE, option.opts
    rows = re.findall(r"^\| `(--[a-z-]+)` \|", PAGE, re.MULTILINE)
    assert rows == [option.opts[0] for option in agent.params]
    for row in COMMANDS:
        assert f"| `/{row.name}`" in PAGE
    for mode in MODE_IDS:
        assert f"| `{mode}` |" in PAGE
