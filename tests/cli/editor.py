"""An editor for tests: it starts `turnwire stdio` as its agent and speaks ACP over the pipes.

One message at a time.

Reading blocks; the time limit of the test bounds it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tests.cli.rig import SCRIPTED, environment, rest_of
from tests.support.editors import ending_editor_daemons
from tests.support.limited import program_for

Json: TypeAlias = dict[str, Any]

INFO = {"name": "editor", "version": "1"}
V1: Json = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": INFO}
FORMS: Json = {**V1, "clientCapabilities": {"elicitation": {"form": {}}}}
"""Capabilities of an editor that can show a form."""
OPENS = frozenset({"session/new", "session/load", "session/resume"})
V2: Json = {"protocolVersion": 2, "info": INFO, "capabilities": {}}


class Editor:
    """One editor and the program it started."""

    def __init__(self, process: subprocess.Popen[str], err: Path) -> None:
        self.process = process
        self.heard: list[Json] = []
        """Everything it was sent."""
        self._err = err
        self._last_id = 0

    @property
    def errors(self) -> str:
        return self._err.read_text()

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}))

    def begin(self, method: str, params: Json) -> int:
        """Send a request and do not wait."""
        self._last_id += 1
        self.send(id=self._last_id, method=method, params=params)
        return self._last_id

    def next(self) -> Json:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended:\n{self.errors}"
        message: Json = json.loads(line)
        assert message["jsonrpc"] == "2.0", "nothing but ACP is on stdout"
        self.heard.append(message)
        return message

    def until(self, found: Callable[[Json], bool]) -> Json:
        while not found(message := self.next()):
            pass
        return message

    def answer(self, request_id: int) -> Json:
        """Return the answer to a request, skipping earlier messages."""
        return self.until(lambda each: each.get("id") == request_id and "method" not in each)

    def ask(self, method: str, params: Json) -> Any:
        """Send a request and return its result. The editor is ready for a session when it has the answer that opens
        it.
        """
        answer = self.answer(self.begin(method, params))
        assert "result" in answer, answer
        if method in OPENS:
            opened = answer["result"].get("sessionId") or params["sessionId"]
            self.send(method="session/ready", params={"sessionId": opened})
        return answer["result"]

    def open(self, cwd: Path, hello: Json = V1) -> str:
        """Initialize, and a new session."""
        self.ask("initialize", hello)
        return self.ask("session/new", {"cwd": str(cwd), "mcpServers": []})["sessionId"]

    def prompt(self, session: str, text: str) -> int:
        """Send a prompt and do not wait."""
        return self.begin("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    def ended(self, request_id: int, version: int = 1) -> str:
        """The stop reason of a prompt's turn."""
        if version == 1:
            return self.answer(request_id)["result"]["stopReason"]
        idle = self.until(lambda each: update(each).get("state") == "idle" and "stopReason" in update(each))
        return update(idle)["stopReason"]

    def said(self, text: str) -> None:
        """Wait until the agent has sent this text."""
        self.until(lambda each: text in update(each).get("content", {}).get("text", ""))

    def updates(self, kind: str) -> list[Json]:
        return [update(each) for each in self.heard if update(each).get("sessionUpdate") == kind]

    def text(self) -> str:
        """Return all text of the agent."""
        return "".join(each["content"]["text"] for each in self.updates("agent_message_chunk"))

    def leave(self) -> int:
        """Close the input and wait for the program's end; return its exit code."""
        self.heard += [json.loads(line) for line in rest_of(self.process).splitlines()]
        assert "Traceback" not in self.errors, self.errors
        return self.process.returncode


def update(message: Json) -> Json:
    """Return the update in a message; empty if there is none."""
    return message.get("params", {}).get("update", {}) if message.get("method") == "session/update" else {}


@contextmanager
def editor(home: Path, *words: str, env: Mapping[str, str] | None = None) -> Generator[Editor]:
    """Run an editor with `turnwire stdio …`. Remaining processes are killed at the end.

    The agent is the scripted one, unless the arguments name another or a daemon.
    """
    agent = () if {"--", "--agent", "--daemon"} & {*words} else ("--", *SCRIPTED)
    with program(home, "stdio", *words, *agent, env=env) as opened:
        yield opened


@contextmanager
def program(home: Path, *words: str, env: Mapping[str, str] | None = None) -> Generator[Editor]:
    """Run an editor with any command of ours that is an agent."""
    err = home / "stdio.err"
    environ = environment(home, **{"TURNWIRE_LIMITS_HOLD_S": "0", **(env or {})})
    with err.open("a") as errors:
        process = subprocess.Popen(
            [*program_for(words), *words],
            cwd=home,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with ending_editor_daemons(environ), process:
        try:
            yield Editor(process, err)
        finally:
            process.kill()
