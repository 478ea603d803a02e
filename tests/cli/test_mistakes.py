"""Mistakes that users make: each gets a message that names the cause."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.cli.rig import Served, environment, served

from turnwire_testing.patience import WAIT_S
from turnwire_testing.plugin import find_tool

FEWEST = 50


class Mistake(msgspec.Struct, frozen=True):
    """A row of `mistakes.toml`, which explains the fields."""

    typed: str
    told: str
    code: int | None = None
    place: str = "shell"
    before: str = ""
    frame: str = ""
    initialized: bool = False


class Group(msgspec.Struct, frozen=True):
    mistake: list[Mistake]
    daemon: bool = False


class Source(msgspec.Struct, frozen=True):
    group: list[Group]


SOURCE = msgspec.toml.decode((Path(__file__).parent / "mistakes.toml").read_bytes(), type=Source)
MISTAKES = [(group.daemon, each) for group in SOURCE.group for each in group.mistake]

AGENT = """\
import sys
from turnwire.agent import Agent, Turn

agent = Agent("mine", version="1.0")

@agent.prompt
async def answer(turn: Turn):
    async with turn.tool("Delete build/", kind="delete") as call:
        {line}

agent.run()
"""
CLIENT = """\
import anyio
import turnwire

AGENT = [{python!r}, "-m", "turnwire", "agent"]

async def main():
    {lines}

anyio.run(main)
"""
INITIALIZE = '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}'


class Told(NamedTuple):
    """The outcome of a mistake."""

    code: int | None
    text: str


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """Run one daemon for all tests that need one: a mistake does not affect other tests."""
    with served(tmp_path_factory.mktemp("daemon"), builtin=True) as running:
        yield running


def test_there_are_fifty_mistakes_and_none_twice() -> None:
    typed = [(each.before, each.typed) for _, each in MISTAKES]
    assert len(typed) >= FEWEST
    assert len(set(typed)) == len(typed)


@pytest.mark.parametrize(
    ("has_daemon", "mistake"), MISTAKES, ids=[f"{each.place}-{each.typed[:40]}" for _, each in MISTAKES]
)
def test_mistake_gets_its_message(
    has_daemon: bool, mistake: Mistake, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    home, variables = tmp_path, dict[str, str]()
    if has_daemon:
        running: Served = request.getfixturevalue("daemon")
        home = running.home
        variables = {"URL": running.url, "AUTH": f"Authorization: {running.headers['Authorization']}"}
        variables["ID"] = running.session()
    told = _MAKE[mistake.place](mistake, home, variables)
    assert "Traceback" not in told.text or mistake.place in ("handler", "agent", "client")
    pattern = ".*".join(re.escape(_flat(part)) for part in mistake.told.split("…"))
    assert re.search(pattern, _flat(told.text)), told.text
    if mistake.code is not None:
        assert told.code == mistake.code, told.text


def _flat(text: str) -> str:
    """Without line breaks, which fall where the terminal's width puts them."""
    return " ".join(text.split())


def _shell(mistake: Mistake, home: Path, variables: Mapping[str, str]) -> Told:
    is_http = mistake.typed.startswith("curl")
    if is_http:
        find_tool("curl")
        # The status after the body, and no progress; as a person would see it with -i.
        (home / ".curlrc").write_text('silent\nshow-error\nmax-time = 60\nwrite-out = "\\n%{http_code}"\n')
    script = f"{{ {mistake.before or ':'}\n}} >/dev/null 2>&1\n{mistake.typed}\n"
    ran = _run(["bash", "-c", script], home, variables)
    if not is_http:
        return ran
    body, _, status = ran.text.rstrip().rpartition("\n")
    return Told(int(status), json.loads(body)["error"])


def _handler(mistake: Mistake, home: Path, variables: Mapping[str, str]) -> Told:
    return _agent(Mistake(AGENT.format(line=mistake.typed), mistake.told), home, variables)


def _agent(mistake: Mistake, home: Path, variables: Mapping[str, str]) -> Told:
    whole = mistake.typed
    if "import" not in whole:
        whole = f'from turnwire.agent import Agent\nagent = Agent("mine")\n{whole}\nagent.run()\n'
    (home / "my_agent.py").write_text(whole)
    return _run(["turnwire", "prompt", "hello", "--", sys.executable, "my_agent.py"], home, variables)


def _client(mistake: Mistake, home: Path, variables: Mapping[str, str]) -> Told:
    line = mistake.typed
    if line.startswith("turnwire.connect("):
        lines = f'async with {line} as client: await client.new_session(".")'
    elif "session." in line:
        opened = 'async with turnwire.connect(AGENT) as client:\n        session = await client.new_session(".")'
        lines = f"{opened}\n        {line}"
    else:
        lines = line
    (home / "program.py").write_text(CLIENT.format(python=sys.executable, lines=lines))
    return _run([sys.executable, "program.py"], home, variables)


def _editor(mistake: Mistake, home: Path, variables: Mapping[str, str]) -> Told:
    frames = [INITIALIZE, mistake.frame] if mistake.initialized else [mistake.frame]
    command = ["turnwire", "stdio", "--", sys.executable, "-m", "turnwire", "agent"]
    ran = _run(command, home, variables, stdin="".join(f"{each}\n" for each in frames), only_out=True)
    answers = [json.loads(each) for each in ran.text.splitlines()]
    error = next(each["error"] for each in answers if "error" in each)
    return Told(error["code"], error["message"])


def _run(
    command: list[str], home: Path, variables: Mapping[str, str], *, stdin: str = "", only_out: bool = False
) -> Told:
    here = os.path.dirname(sys.executable)
    env = environment(home, COLUMNS="200", **variables)
    env["PATH"] = f"{here}{os.pathsep}{env['PATH']}"
    program = shutil.which(command[0], path=env["PATH"]) or command[0]
    done = subprocess.run(
        [program, *command[1:]],
        cwd=home,
        env=env,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if only_out else subprocess.STDOUT,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return Told(done.returncode, done.stdout)


_MAKE = {
    "shell": _shell,
    "handler": _handler,
    "agent": _agent,
    "client": _client,
    "editor": _editor,
}
