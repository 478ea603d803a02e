"""The proxy that records: an agent's command between two pipes, with a copy of every line in a file.

Bytes pass in both directions as they come, before and after the agent has ended a line, and none is changed. A line
is in the file before it is passed on, so that no answer stands before what it answers. Plain threads with blocking
reads: whoever does not read makes the other side wait, exactly as without the proxy.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import BinaryIO, cast

from msgspec.structs import replace

from turnwire.errors import AgentLaunchFailed
from turnwire.limits import Limits
from turnwire.recording.format import Entry, Side, entry_line, first_line, read_entry
from turnwire.recording.redaction import Redactor
from turnwire.recording.second_look import SecondLook
from turnwire.wire.ndjson import LineReader, Oversized

READ_BYTES = 64 * 1024
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Passed on to the agent; when it ends, so do we."""


class Recorder:
    """Writes the file, which has no buffer, line by line: it is of use whatever happens next."""

    def __init__(
        self, file: BinaryIO | FileIO, redactor: Redactor, monotonic: Callable[[], float], limits: Limits
    ) -> None:
        self._file = file
        self._look = SecondLook(redactor)
        self._monotonic = monotonic
        self._begun = monotonic()
        self._lock = threading.Lock()
        self._readers: dict[Side, LineReader] = {
            "client": LineReader(limits.frame_bytes),
            "agent": LineReader(limits.frame_bytes),
        }
        self.count = 0
        """How many frames there are."""
        self.failure: str | None = None
        """Why nothing more could be written, if that happened. Bytes pass all the same."""
        self._is_over = False
        file.write(first_line(redactor.rules))

    def took(self, side: Side, chunk: bytes) -> None:
        """These bytes came from this side; none is the end of what it says."""
        with self._lock:
            reader = self._readers[side]
            for each in reader.feed(chunk) if chunk else reader.end():
                # Nothing of ours could read so long a line again.
                line = each.head if isinstance(each, Oversized) else each
                self._write(side, self._look.line(self.count + 1, line))
            if not chunk and side == "client":
                self._write(side, b"", closed=True)

    def ended(self, exit_code: int) -> None:
        """The agent ended."""
        with self._lock:
            self._write("agent", b"", exit_code=exit_code)
            self._is_over = True

    def look_again(self, path: Path) -> None:
        """The file is complete, and at this path: redact what can be known only now. Raises `OSError`."""
        if not self._look.is_needed:
            return
        part = path.with_name(f".{path.name}.part")
        with path.open("rb") as source, FileIO(part, "wb", opener=private) as raw:
            try:
                with BufferedWriter(raw) as to:
                    to.write(source.readline())
                    for line, shown in zip(source, self._look.again(lambda: _bodies(path)), strict=True):
                        to.write(_with_frame(line, shown))
                # In one step: whoever is killed before it leaves the file as it was.
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise

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


def _bodies(path: Path) -> Iterator[tuple[int, bytes]]:
    """The frames of a recording with their numbers, one for each line."""
    with path.open("rb") as file:
        file.readline()
        for number, line in enumerate(file, 1):
            entry = read_entry(line)
            yield number, b"" if entry is None else entry.line


def _with_frame(line: bytes, frame: bytes) -> bytes:
    entry = read_entry(line)
    return line if entry is None or entry.line == frame else entry_line(replace(entry, line=frame))


def private(path: str, flags: int) -> int:
    """An opener: for its user alone, because it may hold what nobody else should read."""
    return os.open(path, flags, 0o600)


def run_agent(
    command: Sequence[str], recorder: Recorder, client_in: FileIO, client_out: FileIO, limits: Limits
) -> int:
    """Run the agent between these files until it ends; gives its exit code, negative for a signal.

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
    # Nobody waits for what the client has still to say once the agent is gone.
    threading.Thread(target=_carry, args=(recorder, "client", client_in, to_agent), daemon=True).start()
    out = threading.Thread(target=_carry, args=(recorder, "agent", from_agent, client_out), daemon=True)
    out.start()
    code = agent.wait()
    # A child of the agent may hold its output for as long as it likes.
    out.join(limits.exit_drain_s)
    recorder.ended(code)
    return code


def _carry(recorder: Recorder, side: Side, source: FileIO, target: FileIO) -> None:
    """Everything from one file to the other, and its end."""
    # What others left non-blocking would look like the end.
    os.set_blocking(source.fileno(), True)
    os.set_blocking(target.fileno(), True)
    with suppress(OSError), source, target:
        while chunk := source.read(READ_BYTES):
            recorder.took(side, chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[target.write(rest) :]
    recorder.took(side, b"")
