"""The code on the page about the client, and the examples, work unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import anyio
import pytest
from tests.patience import LONG_S
from tests.support.daemons import running_daemon

import turnwire
from turnwire.client import Client, Session

ROOT = Path(__file__).resolve().parents[2]
AGENT = [sys.executable, "-m", "turnwire_testing.agent"]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "client.md").read_text(), re.MULTILINE | re.DOTALL)
PROGRAMS = [block for block in BLOCKS if "import sys" in block]
DAEMON_PIECES = [block for block in BLOCKS if "TOKEN" in block]
PIECES = [block for block in BLOCKS if "import sys" not in block and block not in DAEMON_PIECES]


def run(path: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_page_runs(number: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[number])
    assert run(program, tmp_path).splitlines() == [["hello", "end_turn"], ["hello"]][number]


@pytest.mark.anyio
async def test_snippets_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"turnwire": turnwire, "AGENT": AGENT}
    for number, text in enumerate(PIECES):
        body = textwrap.indent(text, "    ")
        exec(compile(f"async def piece(client, session):\n{body}", f"snippet {number}: {text}", "exec"), names)
        piece = cast("Callable[[Client, Session], Awaitable[None]]", names["piece"])
        with anyio.fail_after(LONG_S):
            async with turnwire.connect(AGENT) as client:
                await piece(client, await client.new_session("."))


@pytest.mark.anyio
@pytest.mark.parametrize("number", range(len(DAEMON_PIECES)))
async def test_a_piece_about_daemons_holds(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with anyio.fail_after(LONG_S):
        async with running_daemon(tmp_path / "data") as daemon:
            names: dict[str, object] = {"turnwire": turnwire, "URL": daemon.url, "TOKEN": daemon.token}
            body = textwrap.indent(DAEMON_PIECES[number], "    ")
            exec(f"async def piece():\n{body}", names)
            await cast("Callable[[], Awaitable[None]]", names["piece"])()


# An agent prints nothing: it waits for a client. `tests/agent/test_docs.py` runs it with one.
@pytest.mark.parametrize(
    "name", sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name != "tidy.py")
)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    assert run(ROOT / "examples" / name, tmp_path)
