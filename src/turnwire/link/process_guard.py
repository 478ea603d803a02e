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


NO_END = -1
"""In place of an end of a pipe that was not made."""


class Ends(NamedTuple):
    """Our ends of the pipes."""

    stdin: int
    stdout: int
    stderr: int
    control: int
    status: int


def start_guard(
    command: Sequence[str], cwd: str | os.PathLike[str], env: Mapping[str, str], *, output_only: bool = False
) -> tuple[subprocess.Popen[bytes], Ends]:
    """Start a guard that starts the command. Raises `OSError`, `ValueError` when not even that is possible.

    With `output_only` the command gets no input, and its two output streams are one pipe, so they keep order.

    Call it in the thread that runs the event loop: the kernel signals a guard when the thread that started it ends.
    """
    ours: list[int] = []
    theirs: list[int] = []

    def pipe(*, we_read: bool) -> tuple[int, int]:
        reading, writing = os.pipe()
        our_end, their_end = (reading, writing) if we_read else (writing, reading)
        ours.append(our_end)
        theirs.append(their_end)
        return our_end, their_end

    try:
        from_stdout, stdout = pipe(we_read=True)
        to_control, control = pipe(we_read=False)
        from_status, status = pipe(we_read=True)
        to_stdin, stdin = (NO_END, subprocess.DEVNULL) if output_only else pipe(we_read=False)
        from_stderr, stderr = (NO_END, stdout) if output_only else pipe(we_read=True)
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
        _close_all(ours)
        raise
    finally:
        _close_all(theirs)
    return guard, Ends(to_stdin, from_stdout, from_stderr, to_control, from_status)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


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
