"""The code on the page about writing agents works unchanged, as does the example of the README."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.agent.official import official_python
from tests.cli.rig import served
from tests.patience import LONG_S

import turnwire
from turnwire.client import Question

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "write-an-agent.md").read_text(encoding="utf-8")
TIDY = (ROOT / "examples" / "tidy.py").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def block(mark: str) -> str:
    """Return the one block of Python on the page with these words in it."""
    [found] = [each for each in blocks(PAGE, "python") if mark in each]
    return found


def code(program: str) -> list[str]:
    """The lines of a program that are neither empty nor its docstring."""
    bare = re.sub(r'^""".*?"""\n', "", program, flags=re.DOTALL)
    return [line for line in bare.splitlines() if line.strip()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with the agent of the page and files to tidy up."""
    (tmp_path / "my_agent.py").write_text(block('Agent("tidy"'))
    (tmp_path / "build").mkdir()
    return tmp_path


async def said(agent: list[str] | str, cwd: Path, *prompts: str, token: str | None = None) -> list[str]:
    """Return the answers of an agent, or that of a daemon, to each of these prompts. Everything is allowed."""

    def allow(question: Question) -> str:
        return "allow_once"

    with anyio.fail_after(LONG_S):
        async with turnwire.connect(agent, token=token) as client:
            session = await client.new_session(cwd)
            session.on_permission(allow)
            return [(await session.prompt(each)).text for each in prompts]


async def said_by(program: str, cwd: Path, *prompts: str) -> list[str]:
    (cwd / "program.py").write_text(program)
    return await said([sys.executable, str(cwd / "program.py")], cwd, *prompts)


def test_every_block_of_the_page_is_run_here() -> None:
    agents = [f'Agent("{name}"' for name in ("clerk", "counter", "wiki")]
    marks = ['Agent("tidy"', "anyio.run(main)", *agents, "pytestmark", "adapt(Echo())"]
    assert [block(mark) for mark in marks] == blocks(PAGE, "python")
    assert len(blocks(PAGE, "sh")) == len(COMMANDS)


# -- the agent in ten lines --------------------------------------------------------------------------------------


def test_the_example_is_ten_lines_and_the_same_everywhere() -> None:
    assert len(code(TIDY)) <= 10
    assert code(block('Agent("tidy"')) == code(TIDY)
    readme = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")
    for shown in [each for each in readme if "from turnwire.agent import" in each]:
        assert code(shown) == code(TIDY)


@pytest.mark.anyio
async def test_the_example_tidies_up(folder: Path) -> None:
    assert await said([sys.executable, str(ROOT / "examples" / "tidy.py")], folder, "tidy up") == ["Done."]
    assert "build" not in os.listdir(folder)


COMMANDS = blocks(PAGE, "sh")


@pytest.mark.anyio
@pytest.mark.parametrize("line", [each.strip() for each in COMMANDS])
async def test_a_daemon_serves_the_example(folder: Path, line: str) -> None:
    turnwire_, serve, *words = shlex.split(line)
    assert (turnwire_, serve) == ("turnwire", "serve")
    words = [sys.executable if each == "python" else each for each in words]
    with served(folder, *words) as daemon:
        assert await said(daemon.url, folder, "tidy up", token=daemon.announced["token"]) == ["Done."]
    assert "build" not in os.listdir(folder)


def test_a_program_hosts_the_example(folder: Path) -> None:
    (folder / "program.py").write_text(block("anyio.run(main)"))
    assert run(folder, "program.py") == "Done. end_turn\n"
    assert not (folder / "build").exists()


@pytest.mark.full("takes 10 s")
def test_the_test_on_the_page_passes(folder: Path) -> None:
    (folder / "test_it.py").write_text(block("pytestmark"))
    assert "2 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# -- the others ----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_clerk_signs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("short\n")
    assert await said_by(block('Agent("clerk"'), tmp_path, "please") == ["Signed please."]
    assert (tmp_path / "notes.txt").read_text() == "short\nsigned\n"


@pytest.mark.anyio
async def test_the_counter_counts_and_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert await said_by(block('Agent("counter"'), tmp_path, "a", "b", "/reset 7", "c") == ["1", "2", "at 7", "8"]


@pytest.mark.anyio
async def test_the_backend_of_the_wiki_is_told_before_the_first_prompt(tmp_path: Path) -> None:
    assert await said_by(block('Agent("wiki"'), tmp_path, "which?") == ["search"]


@pytest.mark.anyio
@pytest.mark.full("needs the official SDK")
async def test_the_agent_of_the_official_sdk_answers(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(block("adapt(Echo())"))
    assert await said([*official_python("py-v1"), str(tmp_path / "program.py")], tmp_path, "echo") == ["echo"]
