"""The command line on a terminal: permission requests are asked, progress is shown, and other output cannot control
it.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

from tests.cli.rig import PROGRAM, WAIT_S, Served, environment


class Terminal:
    """The near end of a terminal with a command at its far end."""

    def __init__(self, near: int, process: subprocess.Popen[bytes]) -> None:
        self.near = near
        self.process = process
        self.shown = ""

    def until(self, text: str) -> None:
        """Read until this is shown."""
        while text not in self.shown:
            assert select.select([self.near], [], [], WAIT_S)[0], f"{text!r} was not shown: {self.shown!r}"
            more = self._read()
            assert more, f"it ended before {text!r} was shown: {self.shown!r}"
            self.shown += more

    def type(self, text: str) -> None:
        os.write(self.near, text.encode())

    def finish(self) -> int:
        while more := self._read():
            self.shown += more
        return self.process.wait(WAIT_S)

    def _read(self) -> str:
        try:
            return os.read(self.near, 65536).decode(errors="replace")
        except OSError:
            # No process has the far end open any more.
            return ""


@contextmanager
def on_terminal(daemon: Served, *words: str, **more: str) -> Generator[Terminal]:
    """Run a command on a terminal, with further variables."""
    near, far = pty.openpty()
    env = environment(daemon.home, **daemon.env) | {"TERM": "xterm-256color", "COLUMNS": "200", **more}
    with subprocess.Popen(
        [*PROGRAM, *words], cwd=daemon.home, env=env, stdin=far, stdout=far, stderr=far, start_new_session=True
    ) as process:
        os.close(far)
        try:
            yield Terminal(near, process)
        finally:
            process.kill()
            os.close(near)


def test_a_permission_is_asked_with_numbers_until_the_answer_is_one(daemon: Served) -> None:
    with on_terminal(daemon, "prompt", "--new", "ask t1 allow_once,reject_once") as terminal:
        terminal.until("answer 1-2: ")
        assert "the agent asks: t1" in terminal.shown
        assert "1. allow once" in terminal.shown
        terminal.type("7\n")
        terminal.shown = ""
        terminal.until("answer 1-2: ")
        terminal.type("2\n")
        terminal.until("selected reject_once")
        assert terminal.finish() == 0


def test_a_question_that_is_answered_elsewhere_is_taken_back(daemon: Served) -> None:
    session = daemon.session()
    with on_terminal(daemon, "prompt", "-s", session, "ask t1 allow_once,reject_once") as terminal:
        terminal.until("answer 1-2: ")
        request = daemon.ask("GET", f"/session/{session}/permissions")["permissions"][0]["requestId"]
        body = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
        daemon.ask("POST", f"/session/{session}/permissions/{request}", body)
        terminal.until("selected allow_once")
        assert "\nturnwire: the permission request is closed" in terminal.shown
        assert terminal.finish() == 0


def test_the_end_of_input_leaves_the_question_open(daemon: Served) -> None:
    session = daemon.session()
    with on_terminal(daemon, "prompt", "-s", session, "ask t1 allow_once,reject_once") as terminal:
        terminal.until("answer 1-2: ")
        terminal.type("\x04")
        terminal.until("stays open")
        terminal.until("turnwire answer")
        assert daemon.run("cancel", session).code == 0
        assert terminal.finish() == 130


def test_progress_is_drawn_while_nothing_is_said_and_leaves_no_trace_of_control(daemon: Served) -> None:
    with on_terminal(daemon, "prompt", "--new", "tool-open t1\nsay 1 words\nnever") as terminal:
        terminal.until("words")
        assert "\x1b[" in terminal.shown, "the line of progress is drawn and taken away"
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == 130


def test_without_a_terminal_the_words_are_left_as_they_are(daemon: Served) -> None:
    shown = daemon.run("prompt", "--new", "echo 'a\x1b[1mb'")

    assert shown.out == "a\x1b[1mb\n"
