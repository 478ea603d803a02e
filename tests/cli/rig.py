"""The command line as a user runs it: real processes, a real daemon, a private folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from tests.support.forked import Forked, fork_server
from tests.support.limited import program_for

from turnwire_testing.patience import WAIT_S

PROGRAM = (sys.executable, "-m", "turnwire")
SCRIPTED = (sys.executable, "-m", "turnwire_testing.agent")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return a user's environment without any setting of ours."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", **more}


class Ran(NamedTuple):
    """A completed command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Its output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(*words: str, home: Path, stdin: str = "", **env: str) -> Ran:
    """Run one command to its end."""
    done = fork_server().run(words, home, environment(home, **env), stdin.encode(), WAIT_S)
    err = done.err.decode()
    # An agent's own traceback has a prefix.
    assert "\nTraceback" not in f"\n{err}"
    return Ran(done.code, done.out.decode(), err)


def start(
    *words: str, home: Path, err: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Begin a command. Its output is a pipe; its errors go to a file, or to the same pipe."""
    with Path(os.devnull if err is None else err).open("a") as errors:
        return subprocess.Popen(
            [*program_for(words), *words],
            cwd=home,
            env=environment(home, **(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if err is None else errors,
            text=True,
        )


class Served:
    """A daemon that runs in a separate process."""

    def __init__(self, process: Forked, announced: dict[str, Any], home: Path, err: Path) -> None:
        self.process = process
        self.announced = announced
        self.home = home
        self.err = err

    @property
    def url(self) -> str:
        return str(self.announced["url"])

    @property
    def data(self) -> Path:
        return Path(self.announced["data"])

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that another shell needs."""
        return {"TURNWIRE_URL": self.url, "TURNWIRE_DATA": str(self.data)}

    def run(self, *words: str, stdin: str = "", **env: str) -> Ran:
        return run(*words, home=self.home, stdin=stdin, **{**self.env, **env})

    @contextmanager
    def begun(self, *words: str) -> Generator[subprocess.Popen[str]]:
        """Start a command in the background. Its errors are in its output."""
        process = start(*words, home=self.home, env=self.env)
        with process:
            try:
                yield process
            finally:
                process.kill()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request with the token of the command line; return the JSON response."""
        answer = httpx.request(method, self.url + path, json=body, headers=self.headers, timeout=WAIT_S)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def session(self, **wanted: Any) -> str:
        """Create a new session."""
        return self.ask("POST", "/session", wanted)["sessionId"]

    def refused(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Send a request that is rejected; return the status and the reason."""
        answer = httpx.request(method, self.url + path, json=body, headers=self.headers, timeout=WAIT_S)
        assert not answer.is_success, answer.text
        return answer.status_code, answer.json()

    def prompt(self, session: str, text: str) -> str:
        """Send a prompt and do not wait."""
        body = {"prompt": [{"type": "text", "text": text}]}
        return self.ask("POST", f"/session/{session}/prompt", body)["promptId"]

    def said(self, session: str, text: str) -> str:
        """Send a prompt and wait; return the agent's text."""
        prompt = self.prompt(session, text)
        self.ended(session, prompt)
        return str(self.turn(session, prompt)["resultText"])

    def ended(self, session: str, prompt: str) -> dict[str, Any]:
        """The end of a turn, once it has one."""
        with closing(self.events(session)) as events:
            ends = (each for each in events if each["type"] in ("turn_complete", "turn_error"))
            return next(each["data"] for each in ends if each["data"]["promptId"] == prompt)

    def events(self, session: str) -> Generator[dict[str, Any]]:
        """The events of a session, from the first on, for as long as the stream lasts."""
        headers, path = {**self.headers, "Last-Event-ID": "0"}, f"{self.url}/session/{session}/events"
        with httpx.stream("GET", path, headers=headers, timeout=WAIT_S) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def turn(self, session: str, prompt: str) -> dict[str, Any]:
        return self.ask("GET", f"/session/{session}/turns/{prompt}")

    def types(self, session: str) -> Generator[str]:
        """The types of events and frames of a session, from the first on, for as long as the stream lasts."""
        headers, path = {**self.headers, "Last-Event-ID": "0"}, f"{self.url}/session/{session}/events"
        with httpx.stream("GET", path, headers=headers, timeout=WAIT_S) as stream:
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    yield line.removeprefix("event: ")

    def until(self, session: str, event: str) -> None:
        """Wait for an event of this type."""
        with closing(self.types(session)) as types:
            assert event in types

    @property
    def headers(self) -> dict[str, str]:
        path = self.data / "cli-token"
        return {"Authorization": f"Bearer {path.read_text().strip()}"} if path.exists() else {}

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it gracefully; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


@contextmanager
def served(home: Path, *flags: str, builtin: bool = False, **env: str) -> Generator[Served]:
    """Run a daemon on a free port, with its data below `home`. Remaining processes are killed at the end.

    Its agent is the scripted one, unless the flags name another or select the built-in one. It ends with a killed
    daemon, unless `TURNWIRE_LIMITS_HOLD_S` says otherwise.
    """
    env = {"TURNWIRE_LIMITS_HOLD_S": "0", **env}
    err = home / "serve.err"
    is_given = builtin or any(each in ("--", "--agent", "--config") for each in flags)
    agent = () if is_given else ("--", *SCRIPTED)
    words = ("serve", "--json", "--port", "0", *flags, *agent)
    with err.open("a") as errors:
        process = fork_server().start(words, home, environment(home, **env), errors)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the daemon did not start:\n{err.read_text()}"
        yield Served(process, json.loads(line), home, err)
    finally:
        with process:
            process.kill()


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return iter(process.stdout.readline, "")


def rest_of(process: subprocess.Popen[str]) -> str:
    """Close its input, wait for its end, and return the unread rest of its output.

    `communicate` reads the pipe directly and skips the buffer that `readline` fills, so it would lose lines that
    arrived together.
    """
    assert process.stdout is not None
    if process.stdin is not None:
        process.stdin.close()
    watch = threading.Timer(WAIT_S, process.kill)
    watch.start()
    try:
        out = process.stdout.read()
        process.wait()
    finally:
        watch.cancel()
    assert process.returncode != -signal.SIGKILL, f"it did not end within {WAIT_S} s:\n{out}"
    return out


def finish(process: subprocess.Popen[str]) -> Ran:
    """Wait for a command that was begun."""
    out = rest_of(process)
    assert "Traceback" not in out
    return Ran(process.returncode, out, "")


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
