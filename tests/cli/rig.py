"""The command line as a user runs it: real processes, a real daemon, a folder of their own."""

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

from turnwire.testing.patience import WAIT_S

PROGRAM = (sys.executable, "-m", "turnwire")
SCRIPTED = (sys.executable, "-m", "turnwire.testing.agent")


def environment(home: Path, **more: str) -> dict[str, str]:
    """A user's environment without any setting of ours."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", **more}


class Ran(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Its output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(*words: str, home: Path, stdin: str = "", **env: str) -> Ran:
    """Run one command to its end."""
    done = subprocess.run(
        [*PROGRAM, *words],
        cwd=home,
        env=environment(home, **env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


def start(
    *words: str, home: Path, err: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Begin a command. Its output is a pipe; its errors go to a file, or to the same pipe."""
    with Path(os.devnull if err is None else err).open("a") as errors:
        return subprocess.Popen(
            [*PROGRAM, *words],
            cwd=home,
            env=environment(home, **(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if err is None else errors,
            text=True,
        )


class Served:
    """A daemon that runs in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], announced: dict[str, Any], home: Path, err: Path) -> None:
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
        """What another shell must know."""
        return {"TURNWIRE_URL": self.url, "TURNWIRE_DATA": str(self.data)}

    def run(self, *words: str, stdin: str = "", **env: str) -> Ran:
        return run(*words, home=self.home, stdin=stdin, **{**self.env, **env})

    @contextmanager
    def begun(self, *words: str) -> Generator[subprocess.Popen[str]]:
        """A command that runs meanwhile. Its errors are in its output."""
        process = start(*words, home=self.home, env=self.env)
        with process:
            try:
                yield process
            finally:
                process.kill()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """A request with the token of the command line; gives what came back as JSON."""
        answer = httpx.request(method, self.url + path, json=body, headers=self.headers, timeout=WAIT_S)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def session(self) -> str:
        """A new session."""
        return self.ask("POST", "/session", {})["sessionId"]

    def prompt(self, session: str, text: str) -> str:
        """Send a prompt and do not wait."""
        body = {"prompt": [{"type": "text", "text": text}]}
        return self.ask("POST", f"/session/{session}/prompt", body)["promptId"]

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
        """Stop it in good order; gives the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


@contextmanager
def served(home: Path, *flags: str, builtin: bool = False, **env: str) -> Generator[Served]:
    """A daemon on a free port, with its data below `home`. Whatever is left of it at the end is killed.

    Its agent is the scripted one, unless the flags name another or the built-in one is wanted.
    """
    err = home / "serve.err"
    is_given = builtin or any(each in ("--", "--agent-url", "--agent-import") for each in flags)
    agent = () if is_given else ("--", *SCRIPTED)
    process = start("serve", "--json", "--port", "0", *flags, *agent, home=home, err=err, env=env)
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
    """End its input, wait for its end, and give what of its output was not read yet.

    `communicate` reads the pipe past the buffer that `readline` fills, so it would lose lines that came together.
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
