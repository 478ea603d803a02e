"""The programs that the tests talk to: daemons and stdio processes, each started when it is first asked for.

Takes a version of HTTP, an agent and a way to run; gives a program that all tests of the folder share. What they do
not share is a session. Everything ends with the block.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from tests.cli.rig import PROGRAM, environment, served
from tests.fan.matrix import Dialect

from turnwire.limits import MiB
from turnwire.testing import Profile
from turnwire.wire.ndjson import LineReader

Json: TypeAlias = dict[str, Any]
Version: TypeAlias = Literal["http1", "http2"]
Way: TypeAlias = Literal["usual", "hasty", "held-to-v1"]

TOKEN = "a-token-for-the-fan-0123456789"
AGENT = Path(__file__).parent / "agent.py"
HASTY_S = 0.05
WAYS: dict[Way, tuple[str, ...]] = {
    "usual": ("--ready-timeout", "never"),
    "hasty": ("--ready-timeout", str(HASTY_S), "--turn-complete", "off"),
    "held-to-v1": ("--ready-timeout", "never", "--protocol", "1"),
}
"""How an operator may run it."""
VERSIONS: dict[Version, tuple[str, ...]] = {"http1": (), "http2": ("--http2",)}
TALKS = ("--before", "commands early", "--inside", "commands inside", "--inside", "title Named")
"""What every agent says around its answer to `session/new`, of its own accord."""
LAST_WORD = ("--after", "usage 1 2")
"""And the last of it."""


class Program(NamedTuple):
    """A command that runs an agent, and where that writes down its frames."""

    command: tuple[str, ...]
    record: Path
    err: Path
    home: Path


class Host(NamedTuple):
    """A daemon."""

    url: str
    program: Program


class StdioProcess:
    """`turnwire stdio`: pipes that one client after the other uses."""

    def __init__(self, process: subprocess.Popen[bytes], program: Program) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.program = program
        self.numbers = count(1)
        """Ids of requests, which are new for every test."""
        self.agreed: Json = {}
        """The answer to `initialize`; empty before it."""
        self.early: Json = {}
        """The answer to what was asked before that."""
        self.old_sessions: set[str] = set()
        """Sessions of tests that are over; what is still said there is nobody's business."""
        self.lines = LineReader(64 * MiB)
        self.read_fd = process.stdout.fileno()
        self._stdin = process.stdin

    def write(self, message: Any) -> None:
        self._stdin.write(json.dumps(message).encode() + b"\n")
        self._stdin.flush()


class Programs:
    """All programs."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self._home = home
        self._stack = stack
        self.daemon = cache(self._daemon)
        self.stdio = cache(self._stdio)

    def program(self, agent: Profile) -> Program:
        """The words of a program with an agent of its own, in a folder of its own. Starts nothing."""
        home = self._home / str(len(list(self._home.iterdir())))
        home.mkdir()
        record = home / "frames"
        words = (sys.executable, str(AGENT), "--record", str(record), "--profile", agent, *TALKS, *LAST_WORD)
        return Program((*words, "--repeat-idle", "2", "--history", "/dev/null"), record, home / "serve.err", home)

    def flags(self, program: Program, way: Way) -> tuple[str, ...]:
        """What a stdio process or a daemon is told; the agent's command comes last."""
        return (
            *("--log", "memory", "--cwd", str(self._home), "--limit", "agent_young_s=0"),
            *WAYS[way],
            *("--", *program.command),
        )

    def _daemon(self, version: Version, agent: Profile, way: Way = "usual") -> Host:
        program = self.program(agent)
        words = (*VERSIONS[version], "--token", TOKEN, *self.flags(program, way))
        return Host(self._stack.enter_context(served(program.home, *words)).url, program)

    def _stdio(self, dialect: Dialect, agent: Profile, way: Way = "usual") -> StdioProcess:
        """The dialect is agreed once for all who use the pipes."""
        program = self.program(agent)
        with program.err.open("wb") as errors:
            process = subprocess.Popen(
                [*PROGRAM, "stdio", "--log-level", "info", *self.flags(program, way)],
                cwd=program.home,
                env=environment(program.home),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._stack.callback(_end, process)
        return StdioProcess(process, program)

    @property
    def cwd(self) -> str:
        """Where sessions work."""
        return str(self._home)


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


@contextmanager
def programs_in(home: Path) -> Generator[Programs]:
    with ExitStack() as stack:
        yield Programs(home, stack)
