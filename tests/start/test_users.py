"""The first steps of operators, authors of clients and agents, and terminal users, in a fresh clone."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.shown import ENTER, on_screen
from tests.patience import LONG_S
from tests.start.newcomer import ROOT, environment, make_path
from tests.start.typed import free_port

from turnwire_testing.patience import WAIT_S
from turnwire_testing.plugin import find_tool

pytestmark = pytest.mark.full("clones the repository and installs it")

ASK = """
import anyio, turnwire

async def main():
    async with turnwire.connect() as client:
        session = await client.new_session(".")
        print((await session.prompt("What is in this folder?")).text)

anyio.run(main)
"""
AGENT = """
from turnwire.agent import Agent, Turn

agent = Agent("mine")

@agent.prompt
async def answer(turn: Turn) -> None:
    print("a printed line")
    turn.tool("Never entered")
    if turn.text == "fail":
        await turn.run("nosuchprogram")
    turn.say("Done.")

agent.run()
"""


class Machine:
    """A user's machine with a clone."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.clone = folder / "turnwire"
        self.home.mkdir()
        path = make_path(folder / "bin")
        self.env = environment(self.home, path)
        self.shell("sh", "-c", f"git clone -q '{ROOT}' '{self.clone}' && cd '{self.clone}' && make .venv/.serving")
        self.env = environment(self.home, f"{self.clone}/.venv/bin:{path}", TURNWIRE_PORT=free_port())

        self.program = (f"{self.clone}/.venv/bin/turnwire",)

    def shell(self, *words: str, code: int = 0, **more: str) -> str:
        """Run a program to its end in the home folder; return all output."""
        done = subprocess.run(
            words,
            cwd=self.home,
            env={**self.env, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONG_S,
            check=False,
        )
        assert done.returncode == code, (words, done.stdout)
        return done.stdout

    def __call__(self, *words: str, code: int = 0, **more: str) -> str:
        return self.shell("turnwire", *words, code=code, **more)

    @contextmanager
    def serving(self, *words: str) -> Generator[Path]:
        """Run a daemon inside the block; yield the file with its output."""
        output = self.home / f"serve-{len(list(self.home.iterdir()))}.log"
        with output.open("w") as file:
            daemon = subprocess.Popen(
                ["turnwire", "serve", *words, "--json"],
                cwd=self.home,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        try:
            assert daemon.stdout is not None
            assert daemon.stdout.readline()
            yield output
        finally:
            daemon.terminate()
            daemon.communicate(timeout=WAIT_S)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


def test_first_minutes(machine: Machine) -> None:
    (machine.home / "notes.txt").write_text("hello")
    with on_screen(machine.home, "serve", columns=160, env=machine.env, program=machine.program) as daemon:
        daemon.until("stop   Ctrl-C")
        assert "notes.txt" in machine("prompt", "What is in this folder?")
        unknown = machine("prompt", "paint the fence").splitlines()
        assert "`What is in this folder?`" in unknown[-1]
        assert len(unknown) == 3
        machine("prompt", "/demo error", code=76)
        daemon.until("a turn failed")
        [failed] = [each for each in daemon.shown.text.splitlines() if "a turn failed" in each]
        assert re.match(r"\d\d:\d\d:\d\d warning a turn failed: ", failed)
        assert "audit" not in daemon.shown.text
        assert "uvicorn" not in daemon.shown.text
        daemon.process.send_signal(signal.SIGINT)
        daemon.finish()


def test_operator(machine: Machine) -> None:
    with machine.serving() as output:
        assert "open it: turnwire open" in machine("serve", code=78)
        assert "open it: turnwire open" in machine("serve", "--port", "0", code=75)
        machine("prompt", "hello")
        machine("export", "last", "-o", "s.ndjson")
        assert machine("verify", "s.ndjson").startswith("ok: ")
        machine("token", "create", "watcher", "--role", "observer")
        assert "revoked" in machine("token", "revoke", "watcher")
        checked = machine("doctor")
        assert re.search(r"^ok   agent   default .* of http://\S+: running$", checked, re.MULTILINE), checked
        machine("prompt", "/demo error", code=76)
        assert "turn failed" in output.read_text()
    assert re.search(r"claude\s.*\bno\b", machine("agents"))


FULL_DISK = """
set -e
mkdir -p full && mount -t tmpfs -o size=4m none full
turnwire serve --data full --port 0 --json > url 2> log &
until test -s url; do sleep 0.1; done
ID=$(turnwire prompt --new hello 2>&1 | sed -nE 's/.*session (s_[0-9a-f]+).*/\\1/p')
dd if=/dev/zero of=full/rest bs=4096 2> /dev/null || true
truncate -s -128K full/rest
touch flood.err
turnwire prompt -s "$ID" "/demo flood 2000" > flood.out 2> flood.err &
until grep -q 'its disk is full' flood.err; do sleep 0.1; done
turnwire explain "$ID" || true
turnwire doctor || true
echo "lines $(grep -c 'no room' log)"
turnwire serve --data full/new --port 0 || echo "serve $?"
rm full/rest
wait %2 && grep -c . flood.out
kill %1; wait %1 || true
"""


def test_operator_with_a_full_disk(machine: Machine) -> None:
    unshare = (find_tool("unshare"), "--user", "--map-root-user", "--mount")
    path = f"{machine.env['PATH']}:/usr/sbin:/usr/bin:/sbin:/bin"
    try:
        said = machine.shell(*unshare, "bash", "-c", FULL_DISK, PATH=path)
    except AssertionError as error:
        if "Operation not permitted" in str(error) or "unshare failed" in str(error):
            pytest.skip("this kernel lets no user mount a file system")
        raise
    assert "cannot store events: its disk is full" in said
    assert "settle" not in said
    assert "fail daemon" in said
    assert "lines 1" in said
    assert "no room left on the disk of" in said
    assert "serve 75" in said
    assert int(said.splitlines()[-1]) >= 2000


def test_client_author(machine: Machine) -> None:
    (machine.home / "ask.py").write_text(ASK)
    with machine.serving():
        assert "ask.py" in machine.shell(f"{machine.clone}/.venv/bin/python", "ask.py")
        wrong = machine.shell(f"{machine.clone}/.venv/bin/python", "ask.py", code=1, TURNWIRE_TOKEN="tw_wrong")
        assert "rejected the token" in wrong
        assert "During handling" not in wrong


def test_agent_author(machine: Machine) -> None:
    (machine.home / "mine.py").write_text(AGENT)
    python = f"{machine.clone}/.venv/bin/python"
    shown = machine("prompt", "work", "--", python, "mine.py")
    assert "stderr: a printed line" in shown
    assert "turn.tool('Never entered') had no effect" in shown
    assert "the command was not found" in machine("prompt", "fail", "--", python, "mine.py", code=76)
    assert "chmod +x ./mine.py" in machine("prompt", "hi", "--", "./mine.py", code=78)
    assert "without the quotes" in machine("prompt", "hi", "--", "python3 mine.py", code=78)


def test_terminal(machine: Machine) -> None:
    overview = machine("--help")
    places = [overview.index(f"\n{each}:\n") for each in ("Examples", "Talk", "Look", "Run", "Share", "Develop")]
    assert places == sorted(places)
    with machine.serving():
        with on_screen(machine.home, "chat", "--new", env=machine.env, program=machine.program) as chat:
            chat.until("Built-in agent (no model) · ~ · :help")
            chat.type("What is in this folder?", ENTER)
            chat.until("These files are in this folder")
            chat.type(":quit", ENTER)
            assert chat.finish() == 0
        for command in ("attach", "explain", "answer", "cancel", "queue", "settle"):
            assert "Missing argument" not in machine(command, "--help")
        for command in ("explain", "answer", "cancel", "queue", "settle", "share", "archive"):
            machine(command)
        machine("prompt", "hello")
        with on_screen(machine.home, "sessions", env=machine.env, program=machine.program) as listed:
            listed.until("just now")
            listed.finish()
