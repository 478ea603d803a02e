"""Type the blocks of a documentation page into a real shell, in order, in an empty folder.

A `console` block has commands after `$ ` and below each the expected output. In the output `…` stands for anything
within a line; alone on a line it stands for any number of lines. With `keeps-running` after the language, the
command runs in another terminal until the test ends. A block with `title="FILE"` is written to that file. Blocks in
other languages are not run. The daemon's usual port is replaced by a free one.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.patience import LONG_S

from turnwire_testing.patience import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
USUAL_PORT = "4170"
_END = "end-of-command"
_FAILED = "line-of-block-failed"


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    options: str
    body: str

    @property
    def title(self) -> str | None:
        found = re.search(r'title="([^"]+)"', self.options)
        return None if found is None else found[1]


class Typed(NamedTuple):
    """A command and its expected output."""

    command: str
    printed: list[str]


def blocks(page: Path) -> list[Block]:
    found = re.findall(
        r"^```(\S+)[ ]?(.*?)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [Block(*each) for each in found]


def commands(body: str) -> Iterator[Typed]:
    """Yield the commands of a console block. Lines after `> ` continue the command before them."""
    typed: Typed | None = None
    for line in body.splitlines():
        if line.startswith("$ "):
            if typed is not None:
                yield typed
            typed = Typed(line.removeprefix("$ "), [])
        elif line.startswith("> ") and typed is not None:
            typed = Typed(f"{typed.command}\n{line.removeprefix('> ')}", [])
        else:
            assert typed is not None, f"a block begins with a command: {line}"
            typed.printed.append(line)
    if typed is not None:
        yield typed


def pattern(printed: list[str]) -> re.Pattern[str]:
    """Compile the expected output of a page into a pattern."""
    lines = [
        r"(?:.*\n)*" if line == "…" else re.escape(line.rstrip()).replace("…", ".*") + r"[ ]*\n" for line in printed
    ]
    return re.compile("".join(lines))


class Shell:
    """One terminal."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, typed: Typed, *, keeps_running: bool = False) -> None:
        """Type a command and compare its output with the page."""
        expected = pattern(typed.printed)
        said = self.read(
            typed.command, until=(lambda text: expected.fullmatch(text) is not None) if keeps_running else None
        )
        assert expected.fullmatch(said), f"$ {typed.command}\n{said}"

    def read(self, command: str, until: Callable[[str], bool] | None = None, timeout_s: float = WAIT_S) -> str:
        """Type a command; return what it prints until it ends, or until its output fulfils a condition."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n" + (f"echo; echo {_END}\n" if until is None else ""))
        self._process.stdin.flush()
        watch = threading.Timer(timeout_s, self.end)
        watch.start()
        said = ""
        try:
            for line in self._process.stdout:
                if line == f"{_END}\n":
                    # The empty line before the mark is ours, unless the output did not end with a line end.
                    return said.removesuffix("\n") if said.endswith("\n\n") or said == "\n" else said
                said += line
                if until is not None and until(said):
                    return said
            return said
        finally:
            watch.cancel()

    def end(self) -> None:
        """Stop the shell and everything that runs in it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(WAIT_S)

    def close(self) -> None:
        self.end()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def free_port() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return str(bound.getsockname()[1])


class Reader:
    """A user who types what a page shows."""

    def __init__(self, folder: Path, stack: ExitStack, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        home = folder / "home"
        home.mkdir()
        self.project = folder / "project"
        self.project.mkdir()
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **(env or {}),
            "TURNWIRE_PORT": self.port,
        }
        self._stack = stack
        self._shell = self._terminal()

    def _terminal(self) -> Shell:
        shell = Shell(self.project, self.env)
        self._stack.callback(shell.close)
        return shell

    def here(self, text: str) -> str:
        """Return the page's text with the port of this test."""
        return text.replace(USUAL_PORT, self.port)

    def follow(self, block: Block) -> None:
        if block.title is not None:
            (self.project / block.title).write_text(self.here(block.body), encoding="utf-8")
        elif block.language == "console":
            keeps_running = "keeps-running" in block.options
            shell = self._terminal() if keeps_running else self._shell
            for typed in commands(self.here(block.body)):
                shell.run(typed, keeps_running=keeps_running)

    def start(self, lines: str, until: str) -> None:
        """Paste lines into a new terminal and wait until a line begins with the given text."""
        said = self._terminal().read(
            self.here(f"set -e\n{lines.strip()}"),
            until=lambda text: f"\n{until}" in text,
            timeout_s=LONG_S,
        )
        assert f"\n{until}" in said, said

    def paste(self, lines: str) -> str:
        """Paste lines into the terminal; return all output. Fails if one of the lines fails."""
        said = self._shell.read(f"trap 'echo {_FAILED}' ERR\n{self.here(lines.strip())}")
        assert _FAILED not in said, said
        return said


@contextmanager
def reading(folder: Path, env: dict[str, str] | None = None) -> Generator[Reader]:
    with ExitStack() as stack:
        yield Reader(folder, stack, env)
