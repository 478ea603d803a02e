"""The daemon's end of a guard: starts it, sends it orders, hears its reports, buries it.

Takes a command for the guard to start; gives the ends of the agent's streams and of the guard's two pipes.
Never waits: everything that comes back is a callback. What the guard does is in `turnwire.link.guard`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from turnwire.wire.ndjson import LineReader

GUARD = Path(__file__).with_name("guard.py")

LINE_BYTES = 4096
"""A report is some forty bytes."""

FIRST_LOOK_S, LONGEST_LOOK_S = 0.001, 0.05
"""How soon a guard that has closed its pipe is looked for among the dead."""

Report: TypeAlias = dict[str, int | str]

_reports = msgspec.json.Decoder(Report)


class Ends(NamedTuple):
    """Our ends of the five pipes."""

    stdin: int
    stdout: int
    stderr: int
    control: int
    status: int


def start_guard(
    command: Sequence[str], cwd: str | os.PathLike[str], env: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Ends]:
    """Start a guard that starts the command. Raises `OSError`, `ValueError` when not even that is possible.

    Call it in the thread that runs the event loop: the kernel signals a guard when the thread that started it ends.
    """
    opened: list[int] = []
    try:
        for _ in Ends._fields:
            opened += os.pipe()
        stdin, to_stdin, from_stdout, stdout, from_stderr, stderr, control, to_control, from_status, status = opened
        guard = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(GUARD), str(control), str(status), os.path.abspath(cwd), "--"),
                *command,
            ],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(control, status),
            env=env,
            cwd="/",
            start_new_session=True,
        )
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    for fd in (stdin, stdout, stderr, control, status):
        os.close(fd)
    return guard, Ends(to_stdin, from_stdout, from_stderr, to_control, from_status)


class GuardEnd:
    """Orders to one guard, and its reports. `ended` is called once, when the guard is dead and buried."""

    def __init__(
        self,
        guard: subprocess.Popen[bytes],
        ends: Ends,
        heard: Callable[[Report], None],
        ended: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._guard = guard
        self._control = ends.control
        self._status = ends.status
        self._heard = heard
        self._ended = ended
        self._lines = LineReader(LINE_BYTES)
        self._is_open = True
        os.set_blocking(self._control, False)
        os.set_blocking(self._status, False)
        self._loop.add_reader(self._status, self._read)

    def order(self, what: bytes) -> bool:
        """Whether there is still a guard to take the order."""
        if not self._is_open:
            return False
        try:
            os.write(self._control, what)
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Kill a guard that does not answer. The kernel then kills its agent, where it can."""
        self._guard.kill()

    def _read(self) -> None:
        try:
            chunk = os.read(self._status, LINE_BYTES)
        except BlockingIOError:
            return
        for line in self._lines.feed(chunk):
            # The guard writes short lines of JSON and nothing else; a broken one would be a fault of ours.
            assert isinstance(line, bytes)
            self._heard(_reports.decode(line))
        if not chunk:
            self._is_open = False
            self._loop.remove_reader(self._status)
            os.close(self._status)
            os.close(self._control)
            self._bury(FIRST_LOOK_S)

    def _bury(self, again_s: float) -> None:
        # A pipe ends a moment before its process can be waited for.
        if self._guard.poll() is None:
            self._loop.call_later(again_s, self._bury, min(2 * again_s, LONGEST_LOOK_S))
        else:
            self._ended()
