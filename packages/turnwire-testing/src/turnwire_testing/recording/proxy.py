"""The recording proxy: an agent's command between two pipes, with a copy of every line in a file.

Bytes pass in both directions as they come, before and after the agent has ended a line, and none is changed. A line
is in the file before it is forwarded, so that no answer precedes its request. Plain threads with blocking reads: a
side that does not read blocks the other side, exactly as without the proxy.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from typing import BinaryIO, cast

from turnwire.errors import AgentLaunchFailed
from turnwire.hosting.process import EXIT_DRAIN_S
from turnwire.limits import Limits
from turnwire.server.telemetry.redaction import Redactor
from turnwire.wire.ndjson import LineReader, Oversized
from turnwire_testing.recording.format import Entry, Side, entry_line, first_line

READ_BYTES = 64 * 1024
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Passed on to the agent; when it ends, so do we."""


class Recorder:
    """Writer of the file, line by line and unbuffered: the file is valid at any time."""

    def __init__(
        self, file: BinaryIO | FileIO, redactor: Redactor, monotonic: Callable[[], float], limits: Limits
    ) -> None:
        self._file = file
        self._redactor = redactor
        self._monotonic = monotonic
        self._begun = monotonic()
        self._lock = threading.Lock()
        self._readers: dict[Side, LineReader] = {
            "client": LineReader(limits.frame_bytes),
            "agent": LineReader(limits.frame_bytes),
        }
        self.count = 0
        """Number of frames."""
        self.failure: str | None = None
        """Why nothing more could be written, if that happened. Bytes pass all the same."""
        self._is_over = False
        file.write(first_line(redactor.rules))

    def took(self, side: Side, chunk: bytes) -> None:
        """Record bytes from one side; None marks the end of its output."""
        with self._lock:
            reader = self._readers[side]
            for each in reader.feed(chunk) if chunk else reader.end():
                # Such a long line could not be read again.
                line = each.head if isinstance(each, Oversized) else each
                self._write(side, self._redactor.line(line))
            if not chunk and side == "client":
                self._write(side, b"", closed=True)

    def ended(self, exit_code: int) -> None:
        """The agent ended."""
        with self._lock:
            self._write("agent", b"", exit_code=exit_code)
            self._is_over = True

    def _write(self, side: Side, line: bytes, *, exit_code: int | None = None, closed: bool = False) -> None:
        if self._is_over:
            return
        elapsed = int((self._monotonic() - self._begun) * 1000)
        written = entry_line(Entry(self.count + 1, elapsed, side, line, exit_code, closed))
        try:
            self._file.write(written)
            self.count += 1
        except OSError as error:
            self._is_over, self.failure = True, error.strerror or type(error).__name__


def private(path: str, flags: int) -> int:
    """Open a file that only its user can access, because recordings may contain secrets."""
    return os.open(path, flags, 0o600)


def run_agent(command: Sequence[str], recorder: Recorder, client_in: FileIO, client_out: FileIO) -> int:
    """Run the agent between these files until it ends; return its exit code, negative for a signal.

    Raises:
        AgentLaunchFailed: There is no such program.
    """
    try:
        agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    except OSError as error:
        raise AgentLaunchFailed(
            f"{command[0]!r} cannot be started ({error.strerror}); check the command and PATH",
            definite=True,
            reason="not_found" if isinstance(error, FileNotFoundError) else "refused",
        ) from None
    for each in SIGNALS:
        signal.signal(each, lambda number, _: agent.send_signal(number))
    to_agent, from_agent = cast("FileIO", agent.stdin), cast("FileIO", agent.stdout)
    # A daemon thread: client input after the agent's end is not awaited.
    threading.Thread(target=_carry, args=(recorder, "client", client_in, to_agent), daemon=True).start()
    out = threading.Thread(target=_carry, args=(recorder, "agent", from_agent, client_out), daemon=True)
    out.start()
    code = agent.wait()
    # A child of the agent may hold its output for as long as it likes.
    out.join(EXIT_DRAIN_S)
    recorder.ended(code)
    return code


def _carry(recorder: Recorder, side: Side, source: FileIO, target: FileIO) -> None:
    """Everything from one file to the other, and its end."""
    # A pipe that another process set to non-blocking would look like end of file.
    os.set_blocking(source.fileno(), True)
    os.set_blocking(target.fileno(), True)
    with suppress(OSError), source, target:
        while chunk := source.read(READ_BYTES):
            recorder.took(side, chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[target.write(rest) :]
    recorder.took(side, b"")
