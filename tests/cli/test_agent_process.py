"""Agents as programs: Ctrl-C ends them, on a terminal they explain themselves, a plain client can run their
commands.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from tests.cli.rig import PROGRAM, WAIT_S, environment

OWN = """
from turnwire.agent import Agent

agent = Agent("mine")


@agent.prompt
async def answer(turn):
    turn.say("hello")


agent.run()
print("behind run()")
"""
Stdin = Literal["terminal", "pipe"]


@pytest.fixture(params=["own", "builtin"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return the command of an SDK agent, or of the built-in one."""
    if request.param == "builtin":
        return [*PROGRAM, "agent"]
    (tmp_path / "my_agent.py").write_text(OWN)
    return [sys.executable, "my_agent.py"]


class Foreground(NamedTuple):
    """A command in the foreground of a separate terminal."""

    process: subprocess.Popen[bytes]
    near: int
    """The near end of the terminal."""
    stdin: int

    def serves(self) -> None:
        """Initialize, and wait for the answer."""
        os.write(self.stdin, f"{json.dumps({'jsonrpc': '2.0', **HELLO})}\n".encode())
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["id"] == 1


@contextmanager
def on_terminal(command: list[str], home: Path, stdin: Stdin) -> Generator[Foreground]:
    near, far = pty.openpty()
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, *command],
        cwd=home,
        env=environment(home),
        stdin=far if stdin == "terminal" else reading,
        stdout=subprocess.PIPE,
        stderr=far,
        start_new_session=True,
    )
    for each in (far, reading):
        os.close(each)
    try:
        with process:
            try:
                yield Foreground(process, near, near if stdin == "terminal" else writing)
            finally:
                process.kill()
    finally:
        for each in (near, writing):
            os.close(each)


FOREGROUND = f"import fcntl, os, sys; fcntl.ioctl(2, {termios.TIOCSCTTY}, 0); os.execvp(sys.argv[1], sys.argv[1:])"
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": 1, "clientCapabilities": {}},
}


def rest(near: int) -> str:
    shown = ""
    while True:
        try:
            piece = os.read(near, 65536)
        except OSError:
            return shown
        shown += piece.decode(errors="replace")


def test_ctrl_c_ends_an_agent_on_a_terminal_which_was_told_what_it_is(command: list[str], tmp_path: Path) -> None:
    with on_terminal(command, tmp_path, "terminal") as agent:
        shown = ""
        while "Ctrl-C ends it" not in shown:
            shown += os.read(agent.near, 65536).decode()
        agent.serves()
        os.write(agent.near, b"\x03")
        assert agent.process.wait(WAIT_S) == 130
        assert agent.process.stdout is not None
        assert agent.process.stdout.read() == b""
        shown += rest(agent.near)

    assert "which speaks ACP on stdin; to try it: turnwire prompt hi -- " in shown
    assert command[-1] in shown.splitlines()[0]
    assert "Traceback" not in shown


def test_ctrl_c_ends_an_agent_whose_stdin_is_a_pipe_and_says_nothing(tmp_path: Path, command: list[str]) -> None:
    with on_terminal(command, tmp_path, "pipe") as agent:
        agent.serves()
        os.write(agent.near, b"\x03")
        assert agent.process.wait(WAIT_S) == 130
        assert rest(agent.near).replace("^C", "").strip() == ""


class PlainClient:
    """A client that starts the requested programs, without a shell, and answers one message after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.created: list[dict[str, Any]] = []
        self._ran: subprocess.CompletedProcess[str] | None = None
        self._last_id = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._last_id += 1
        self._send(id=self._last_id, method=method, params=params)
        while True:
            assert self._process.stdout is not None
            message = json.loads(self._process.stdout.readline())
            if "method" in message and "id" in message:
                self._send(id=message["id"], result=self._serve(message["method"], message["params"]))
            elif message.get("id") == self._last_id:
                return message["result"]

    def _send(self, **message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
        self._process.stdin.flush()

    def _serve(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "session/request_permission":
            return {"outcome": {"outcome": "selected", "optionId": params["options"][0]["optionId"]}}
        if method == "terminal/create":
            self.created.append(params)
            self._ran = subprocess.run(
                [params["command"], *params["args"]], cwd=params["cwd"], capture_output=True, text=True, check=False
            )
            return {"terminalId": "t1"}
        assert self._ran is not None
        if method == "terminal/wait_for_exit":
            return {"exitCode": self._ran.returncode}
        return {"output": self._ran.stdout, "truncated": False} if method == "terminal/output" else {}


def test_the_built_in_agent_names_the_program_of_a_terminal_and_its_arguments_apart(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "agent", "--data", ":memory:"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        client = PlainClient(process)
        client.ask("initialize", protocolVersion=1, clientCapabilities={"terminal": True})
        session = client.ask("session/new", cwd=str(tmp_path), mcpServers=[])["sessionId"]
        ended = client.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "/demo command"}])
        process.kill()

    assert ended["stopReason"] == "end_turn"
    [created] = client.created
    assert created["command"] in ("bash", "sh")
    assert created["args"][0] == "-c"
