"""A page of the documentation as somebody types it: its blocks in order, in a real shell, in a folder of its own.

A block of the language `console` has commands behind `$ ` and under each what it prints, where `…` stands for
anything in a line and, alone on a line, for any number of lines. With `keeps-running` behind the language its
command stays where it is, as in another terminal. A block with `title="FILE"` is written to that file. Blocks of
other languages are only read. The daemon's usual port is another, free one; nothing else is changed.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from turnwire.testing.patience import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
USUAL_PORT = "4170"
_END = "end-of-command"


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
    """A command and what the page says that it prints."""

    command: str
    printed: list[str]


def blocks(page: Path) -> list[Block]:
    found = re.findall(
        r"^```(\S+)[ ]?(.*?)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [Block(*each) for each in found]


def commands(body: str) -> Iterator[Typed]:
    """The commands of a console block. A line that ends with a backslash, or opens a quote, goes on in the next."""
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
    """What these lines of a page stand for."""
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
        """Type a command and hold what comes against the page."""
        said = "".join(self._lines(typed, keeps_running))
        assert pattern(typed.printed).fullmatch(said), f"$ {typed.command}\n{said}"

    def _lines(self, typed: Typed, keeps_running: bool) -> Iterator[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{typed.command}\n" + ("" if keeps_running else f"echo; echo {_END}\n"))
        self._process.stdin.flush()
        watch = threading.Timer(WAIT_S, self.end)
        watch.start()
        said = ""
        try:
            for line in self._process.stdout:
                if line == f"{_END}\n":
                    # The empty line before the mark is ours, unless the output did not end with a line end.
                    yield said.removesuffix("\n") if said.endswith("\n\n") or said == "\n" else said
                    return
                said += line
                if keeps_running and pattern(typed.printed).fullmatch(said):
                    yield said
                    return
            yield said
        finally:
            watch.cancel()

    def end(self) -> None:
        """End all that runs in it."""
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
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


class Reader:
    """Somebody who types what is on a page."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.port = free_port()
        home = folder / "home"
        home.mkdir()
        (folder / "project").mkdir()
        self.project = folder / "project"
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TURNWIRE_PORT": self.port,
        }
        self._stack = stack
        self._shell = self._terminal()

    def _terminal(self) -> Shell:
        shell = Shell(self.project, self.env)
        self._stack.callback(shell.close)
        return shell

    def here(self, text: str) -> str:
        """The page's text with the port of this test."""
        return text.replace(USUAL_PORT, self.port)

    def follow(self, block: Block) -> None:
        if block.title is not None:
            (self.project / block.title).write_text(self.here(block.body), encoding="utf-8")
        elif block.language == "console":
            keeps_running = "keeps-running" in block.options
            shell = self._terminal() if keeps_running else self._shell
            for typed in commands(self.here(block.body)):
                shell.run(typed, keeps_running=keeps_running)

    def paste(self, lines: str) -> str:
        """Paste lines into the terminal; gives all that they print."""
        typed = Typed(self.here(lines.strip()), [])
        return "".join(self._shell._lines(typed, keeps_running=False))  # pyright: ignore[reportPrivateUsage]


@contextmanager
def reading(folder: Path) -> Generator[Reader]:
    with ExitStack() as stack:
        yield Reader(folder, stack)
