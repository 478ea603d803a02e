"""Commands of turnwire in a process that has imported everything before: a fork costs a twentieth of a start.

`ForkServer` gives each command its own process, environment, folder and standard streams, as a shell does.
Run as a program, this file is the server: it imports the commands once and forks for each connection.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, TextIO

from tests.support.limited import apply

import turnwire
from turnwire.cli.commands import COMMANDS
from turnwire.cli.main import main

ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: bytes
    err: bytes


class Forked:
    """A running command, with the part of `subprocess.Popen` that the tests use."""

    stdin = None

    def __init__(self, connection: socket.socket, stdout: TextIO | None = None) -> None:
        self._connection = connection
        self._read = b""
        self.stdout = stdout
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        """Return the next number that the server sends."""
        while b"\n" not in self._read:
            found = self._connection.recv(64)
            assert found, "the fork server has ended"
            self._read += found
        number, _, self._read = self._read.partition(b"\n")
        return int(number)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def poll(self) -> int | None:
        """Return the exit code if the command has ended."""
        with suppress(BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises `TimeoutError`."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = self._number()
        return self.returncode

    def close(self) -> None:
        self._connection.close()
        if self.stdout is not None:
            self.stdout.close()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self.close()


class ForkServer:
    """The server of this test process. It ends with it, because its input ends."""

    def __init__(self) -> None:
        self._here, there = socket.socketpair()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked", str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )

    def run(self, words: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: bytes, within: float) -> Ended:
        """Run one command to its end. Raises `TimeoutError`."""
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            with self._fork(words, cwd, env, given, out, err) as command:
                try:
                    code = command.wait(within)
                except TimeoutError:
                    command.kill()
                    raise
            out.seek(0)
            err.seek(0)
            return Ended(code, out.read(), err.read())

    def start(self, words: Sequence[str], cwd: Path, env: Mapping[str, str], err: IO[str]) -> Forked:
        """Start a command without input; its output is a pipe."""
        read, write = os.pipe()
        with Path(os.devnull).open("rb") as nothing, os.fdopen(write, "wb") as out:
            return self._fork(words, cwd, env, nothing, out, err, stdout=os.fdopen(read))

    def _fork(
        self,
        words: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        *streams: IO[bytes] | IO[str],
        stdout: TextIO | None = None,
    ) -> Forked:
        here, there = socket.socketpair()
        with there:
            socket.send_fds(self._here, [b"x"], [there.fileno(), *(each.fileno() for each in streams)])
        here.sendall(json.dumps([list(words), str(cwd), dict(env)]).encode() + b"\n")
        return Forked(here, stdout)


@cache
def fork_server() -> ForkServer:
    """Return the server of this process, which starts with the first command."""
    return ForkServer()


def _serve(requests: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        found, (*streams,), _, _ = socket.recv_fds(requests, 1, 4)
        if not found:
            return
        if not os.fork():
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(*streams)
        for each in streams:
            os.close(each)


def _answer(connection: int, *streams: int) -> None:
    """Fork once more for the command, and send its exit code."""
    with socket.socket(fileno=connection) as asking:
        words, cwd, env = json.loads(asking.makefile("rb").readline())
        command = os.fork()
        if not command:
            asking.close()
            _become(words, cwd, env, streams)
        asking.sendall(b"%d\n" % command)
        _, status = os.waitpid(command, 0)
        # The test may be over by now.
        with suppress(OSError):
            asking.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(words: list[str], cwd: str, env: dict[str, str], streams: Sequence[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [str(Path(turnwire.__file__).with_name("__main__.py")), *apply(words)]
    sys.orig_argv = [sys.executable, "-m", "turnwire", *words]
    code: Any = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    # Some commands import these when they run.
    import_module("turnwire.server.daemon")
    for module in {row.module for row in COMMANDS.values() if row.module}:
        import_module(f"turnwire.cli.{module}")
    _serve(socket.socket(fileno=int(sys.argv[1])))
