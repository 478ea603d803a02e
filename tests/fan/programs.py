"""The programs that the tests talk to: daemons and stdio processes, each started when it is first asked for.

All tests of the folder share them; each test has its own sessions.
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

from tests.cli.rig import environment, served
from tests.fan.matrix import Dialect
from tests.support.editors import ending_editor_daemons
from tests.support.limited import LIMITED

from turnwire.limits import MiB
from turnwire.wire.ndjson import LineReader
from turnwire_testing import Profile

Json: TypeAlias = dict[str, Any]
Way: TypeAlias = Literal["usual", "hasty", "held-to-v1"]

TOKEN = "a-token-for-the-fan-0123456789"
AGENT = Path(__file__).parent / "agent.py"
HASTY_S = 0.05
WAYS: dict[Way, tuple[str, ...]] = {
    "usual": ("--ready-timeout", "never"),
    "hasty": ("--ready-timeout", str(HASTY_S), "--turn-complete", "off"),
    "held-to-v1": ("--ready-timeout", "never", "--protocol", "1"),
}
"""The ways in which an operator may run it."""
TALKS = ("--before", "commands early", "--inside", "commands inside", "--inside", "title Named")
"""Unsolicited output of every agent around its answer to `session/new`."""
LAST_WORD = ("--after", "usage 1 2")
"""And the last of it."""


class Program(NamedTuple):
    """A command that runs an agent, and the file of its recorded frames."""

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
        """The answer to the request before that."""
        self.old_sessions: set[str] = set()
        """Sessions of completed tests; later output there is ignored."""
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
        """Return the command line of a program with a private agent, in a private folder. Starts nothing."""
        home = self._home / str(len(list(self._home.iterdir())))
        home.mkdir()
        record = home / "frames"
        words = (sys.executable, str(AGENT), "--record", str(record), "--profile", agent, *TALKS, *LAST_WORD)
        return Program((*words, "--repeat-idle", "2", "--history", "/dev/null"), record, home / "serve.err", home)

    def flags(self, program: Program, way: Way) -> tuple[str, ...]:
        """Return the arguments of a stdio process or a daemon; the agent's command comes last."""
        return (
            *("--cwd", str(self._home), "--limit", "agent_young_s=0"),
            *WAYS[way],
            *("--", *program.command),
        )

    def _daemon(self, agent: Profile, way: Way = "usual") -> Host:
        program = self.program(agent)
        words = ("--log", "memory", "--token", TOKEN, *self.flags(program, way))
        return Host(self._stack.enter_context(served(program.home, *words)).url, program)

    def _stdio(self, dialect: Dialect, agent: Profile, way: Way = "usual") -> StdioProcess:
        """Run the stdio process: the dialect is negotiated once for all users of the pipes."""
        program = self.program(agent)
        data = program.home / "data"
        env = environment(program.home)
        self._stack.enter_context(ending_editor_daemons(env))
        process = subprocess.Popen(
            [*LIMITED, "stdio", "--log-level", "info", "--data", str(data), *self.flags(program, way)],
            cwd=program.home,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._stack.callback(_end, process)
        return StdioProcess(process, program._replace(err=data / "daemon.log"))

    @property
    def cwd(self) -> str:
        """Folder in which sessions work."""
        return str(self._home)


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


@contextmanager
def programs_in(home: Path) -> Generator[Programs]:
    with ExitStack() as stack:
        yield Programs(home, stack)
