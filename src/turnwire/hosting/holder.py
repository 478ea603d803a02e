"""The holder: a tiny program that owns one agent's pipes and keeps the agent alive while its daemon is replaced.

It is the guard (`turnwire.hosting.guard`) plus a spool. The daemon connects to its Unix socket; when the daemon
dies, the agent continues, and the next daemon of the same data folder connects. `turnwire.hosting.held` is the
daemon's side. It runs from memory, so an upgrade of the package does not touch it.

Theory of operation
-------------------
A daemon can be killed at any instant, and a kill leaves three questions: which output of the agent is in the log,
which input has the agent received, and what did the daemon know that the log does not contain. The holder answers
all three, because it survives, and because it accepts what the daemon sends in indivisible rounds.

H1  Nothing is lost. Output stays in the spool until the daemon acknowledges it. A new connection first gets the
    whole spool again. A full spool is not read on, so the agent waits in its `write`; nothing is dropped.
H2  A round is atomic. It has an acknowledgement, notes and input for the agent; it takes effect as a whole once
    all of it has arrived, or not at all. So a note that explains an input is there if, and only if, the input is.
H3  Notes belong to the daemon: the holder stores the newest value of each name and does not read them.
H4  One daemon at a time. A newer connection replaces the older one, after everything that the older one has sent.
    Only a process that owns the lock of the data folder connects, so the older one is dead by then.
H5  The agent outlives its daemon for at most `hold_s`. The time runs while no daemon is connected, and while the
    machine sleeps. Then the process tree is killed.
H6  The end is spooled as well: after the agent's exit the holder waits, for at most `hold_s`, for a daemon that has
    received everything and dismisses it.

The agent's stdout is a stream of bytes counted from 0; no frame is inspected. If the holder is killed, the kernel
kills the agent (Linux), and the daemon kills the rest of the tree as for a guard.

Protocol, version 1. A message is a kind (1 byte), the length of its payload (u32, little endian), and the payload.

    to the holder    R  ack u64, count u32, notes, input    a round (H2). Stdout before byte `ack` may be forgotten.
                                                            A note: length of name u32, length of value u32, name,
                                                            value; a length of 2^32-1 removes the note
                     C                                      close the agent's stdin after all input
                     T, K                                   SIGTERM to the agent's process group; kill the tree
                     Q                                      dismiss: kill the tree and end
    from the holder  H  JSON                                version, the holder's pid, first byte of the spool
                     N  length of name u32, name, value     a note; all of them follow H
                     .                                      the end of the notes
                     O  position u64, bytes                 stdout from that byte
                     E  bytes                               stderr
                     o, e, b                                end of stdout; of stderr; nothing reads stdin any more
                     W  count u64                           bytes of input that the agent has accepted
                     S  JSON                                a status as a guard reports it
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from socket import socket

from turnwire.hosting.guard import BOOT_CLOCK, IS_LINUX, PR_SET_CHILD_SUBREAPER, Tree, own, set_process_option

VERSION = 1
SPOOL_BYTES = 8 << 20
"""Unacknowledged output at which the agent waits while no daemon is connected."""
UNSENT_BYTES = 1 << 20
"""The same while a daemon is connected but does not read."""
STDERR_BYTES = 64 << 10
"""Standard error that waits for the daemon. Older text is dropped: it explains, and is in no log."""
READ_BYTES = 256 << 10
LAST_READS = 64
"""Reads of a pipe after the end of the agent, in case a process that escaped keeps writing."""
CHECKED_S = 0.5
"""Interval of checks of the holding time: a wait does not count the time that the machine sleeps."""
PIPE_SIZE = 1031
"""`F_SETPIPE_SZ` of Linux."""

HEADER = struct.Struct("<cI")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
ROUND = struct.Struct("<QI")
NOTE = struct.Struct("<II")
REMOVED = 0xFFFF_FFFF


def message(kind: bytes, payload: bytes = b"") -> bytes:
    """Return an encoded message."""
    return HEADER.pack(kind, len(payload)) + payload


class Holder(Tree):
    """One agent with its pipes, its spool and the connection of its daemon."""

    def __init__(self, listener: socket, path: str, *, hold_s: float, spool_bytes: int, report_bytes: int) -> None:
        """`spool_bytes`: bound of the spool while a daemon is connected. `report_bytes`: interval of `W`."""
        super().__init__()
        self._listener = listener
        self._path = path
        self._hold_s = hold_s
        self._spool_bytes = spool_bytes
        self._report_bytes = report_bytes
        self._stdin = self._stdout = self._stderr = -1
        self._input = bytearray()
        """Input that the agent's pipe has no room for."""
        self._is_input_ending = False
        self._written = 0
        """Bytes of input that the agent has accepted; `_told_written` were reported."""
        self._told_written = 0
        self._spool: deque[tuple[int, bytes]] = deque()
        """Chunks of stdout with their positions, the oldest first."""
        self._unsent: deque[tuple[int, bytes]] = deque()
        self._unsent_bytes = 0
        self._first = self._next = 0
        """Positions of the first spooled byte and of the next one to be read."""
        self._errors = bytearray()
        self._notes: dict[bytes, bytes] = {}
        self._reports: list[bytes] = []
        self._daemon: socket | None = None
        self._received = bytearray()
        self._out = bytearray()
        self._alone_since = time.clock_gettime(BOOT_CLOCK)
        self._is_dismissed = False
        self._ends_sent: set[bytes] = set()
        """The ends of streams that this connection was sent."""
        listener.setblocking(False)

    def run(self, cwd: str, command: list[str]) -> None:
        """Start the agent; return once it and its tree are gone and a daemon knows it, or the holding time is
        over.
        """
        self._open_pipes()
        super().run(cwd, command)
        for _ in range(LAST_READS):
            if not (self._read_output() | self._read_errors()):
                break
        self._end_output()
        self._end_errors()
        if self._stdin >= 0:
            self._break_input()
        while not self._is_dismissed:
            self._serve()
        with suppress(OSError):
            os.unlink(self._path)

    def _open_pipes(self) -> None:
        """Make the agent's pipes. Their other ends are our standard streams until the agent has inherited them."""
        to_stdin, self._stdin = os.pipe()
        self._stdout, from_stdout = os.pipe()
        self._stderr, from_stderr = os.pipe()
        if IS_LINUX:
            import fcntl

            with suppress(OSError):
                fcntl.fcntl(self._stdout, PIPE_SIZE, READ_BYTES)
        for fd in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(fd, False)
        for number, fd in enumerate((to_stdin, from_stdout, from_stderr)):
            os.dup2(fd, number)
            os.close(fd)

    def _report(self, line: str) -> None:
        report = message(b"S", line.encode())
        self._reports.append(report)
        self._send(report)

    def _watch(self) -> None:
        while self._agent_is_alive and not self._must_end:
            self._serve()
            self._reap()

    # -- one wait for everything -----------------------------------------------------------------------------

    def _serve(self) -> None:
        """Wait for the daemon, the agent, a signal or the end of the holding time, and react."""
        reads = [self._listener.fileno(), self._wake]
        writes: list[int] = []
        daemon = -1 if self._daemon is None else self._daemon.fileno()
        if daemon >= 0:
            reads.append(daemon)
            if self._out:
                writes.append(daemon)
        if self._stdout >= 0 and self._has_room():
            reads.append(self._stdout)
        if self._stderr >= 0:
            reads.append(self._stderr)
        if self._stdin >= 0 and self._input:
            writes.append(self._stdin)
        readable, writable, _ = select.select(reads, writes, [], self._remaining_s())
        self._drain_wake()
        if self._stdin in writable:
            self._write_input()
        if daemon in readable:
            self._read_daemon()
        if self._stdout in readable:
            self._read_output()
        if self._stderr in readable:
            self._read_errors()
        if daemon in writable:
            self._flush()
        if self._listener.fileno() in readable:
            self._accept()
        if self._remaining_s() == 0.0:
            self._dismiss()

    def _has_room(self) -> bool:
        if self._daemon is None:
            return self._next - self._first < SPOOL_BYTES
        return self._unsent_bytes < UNSENT_BYTES and self._next - self._first < self._spool_bytes

    def _remaining_s(self) -> float | None:
        """Return the longest wait before the next check of the holding time; 0 if it is over (H5)."""
        if self._daemon is not None:
            return None
        return min(CHECKED_S, max(0.0, self._alone_since + self._hold_s - time.clock_gettime(BOOT_CLOCK)))

    def _end(self, *_: object) -> None:
        super()._end()
        # A signal ends the wait for the next daemon as well.
        self._hold_s = 0.0

    def _dismiss(self) -> None:
        self._must_end = self._is_dismissed = True

    # -- the agent's pipes -----------------------------------------------------------------------------------

    def _read_output(self) -> bool:
        """Read one chunk of stdout. Return true if there was one."""
        try:
            chunk = os.read(self._stdout, READ_BYTES) if self._stdout >= 0 else None
        except BlockingIOError:
            return False
        if not chunk:
            self._end_output()
            return False
        self._spool.append((self._next, chunk))
        if self._daemon is not None:
            self._unsent.append((self._next, chunk))
            self._unsent_bytes += len(chunk)
        self._next += len(chunk)
        self._flush()
        return True

    def _read_errors(self) -> bool:
        try:
            chunk = os.read(self._stderr, READ_BYTES) if self._stderr >= 0 else None
        except BlockingIOError:
            return False
        if not chunk:
            self._end_errors()
            return False
        self._errors += chunk
        del self._errors[:-STDERR_BYTES]
        self._flush()
        return True

    def _write_input(self) -> None:
        try:
            while self._input and self._stdin >= 0:
                with memoryview(self._input) as waiting:
                    written = os.write(self._stdin, waiting)
                del self._input[:written]
                self._written += written
        except BlockingIOError:
            pass
        except OSError:
            self._break_input()
            return
        if self._written - self._told_written > self._report_bytes:
            self._told_written = self._written
            self._send(message(b"W", U64.pack(self._written)))
        if self._is_input_ending and not self._input:
            self._end_input()

    def _break_input(self) -> None:
        self._end_input()
        self._send(message(b"b"))

    def _end_input(self) -> None:
        self._input.clear()
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def _end_output(self) -> None:
        if self._stdout >= 0:
            os.close(self._stdout)
            self._stdout = -1
            self._flush()

    def _end_errors(self) -> None:
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1
            self._flush()

    # -- the daemon ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            daemon, _ = self._listener.accept()
        except OSError:
            return
        while self._daemon is not None and self._read_daemon():
            pass
        self._hang_up()
        daemon.setblocking(False)
        self._daemon = daemon
        hello = f'{{"version": {VERSION}, "holder": {os.getpid()}, "first": {self._first}}}'
        self._out += message(b"H", hello.encode())
        for name, value in self._notes.items():
            self._out += message(b"N", U32.pack(len(name)) + name + value)
        self._out += message(b".") + b"".join(self._reports)
        self._out += message(b"W", U64.pack(self._written))
        if self._stdin < 0:
            self._out += message(b"b")
        self._unsent.extend(self._spool)
        self._unsent_bytes = self._next - self._first
        self._told_written = self._written
        self._ends_sent.clear()
        self._flush()

    def _hang_up(self) -> None:
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None
            self._alone_since = time.clock_gettime(BOOT_CLOCK)
        self._received.clear()
        self._out.clear()
        self._unsent.clear()
        self._unsent_bytes = 0

    def _send(self, what: bytes) -> None:
        if self._daemon is not None:
            self._out += what
            self._flush()

    def _flush(self) -> None:
        """Send as much as the daemon's socket accepts. Output and errors are appended as room appears."""
        while self._daemon is not None:
            self._fill()
            if not self._out:
                return
            try:
                sent = self._daemon.send(self._out)
            except BlockingIOError:
                return
            except OSError:
                # What it has sent before its death is still to be read (H4).
                self._out.clear()
                self._unsent.clear()
                return
            del self._out[:sent]

    def _fill(self) -> None:
        while self._unsent and len(self._out) < READ_BYTES:
            position, chunk = self._unsent.popleft()
            self._unsent_bytes -= len(chunk)
            self._out += HEADER.pack(b"O", U64.size + len(chunk)) + U64.pack(position) + chunk
        if self._errors and len(self._out) < READ_BYTES:
            self._out += message(b"E", bytes(self._errors))
            self._errors.clear()
        if self._stdout < 0 and not self._unsent:
            self._send_end(b"o")
        if self._stderr < 0 and not self._errors:
            self._send_end(b"e")

    def _send_end(self, kind: bytes) -> None:
        if kind not in self._ends_sent:
            self._ends_sent.add(kind)
            self._out += message(kind)

    def _read_daemon(self) -> bool:
        """Obey what has arrived. Return true if there may be more."""
        assert self._daemon is not None
        try:
            chunk = self._daemon.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self._hang_up()
            return False
        self._received += chunk
        start = 0
        while len(self._received) - start >= HEADER.size:
            kind, size = HEADER.unpack_from(self._received, start)
            end = start + HEADER.size + size
            if end > len(self._received):
                break
            self._obey(kind, bytes(self._received[start + HEADER.size : end]))
            start = end
        del self._received[:start]
        return True

    def _obey(self, kind: bytes, payload: bytes) -> None:
        if kind == b"R":
            self._take_round(payload)
        elif kind == b"C":
            self._is_input_ending = True
            self._write_input()
        elif kind == b"T" and self._agent_is_alive:
            self._kill_group(signal.SIGTERM)
        elif kind == b"K":
            self._must_end = True
        elif kind == b"Q":
            self._dismiss()

    def _take_round(self, payload: bytes) -> None:
        ack, count = ROUND.unpack_from(payload)
        at = ROUND.size
        for _ in range(count):
            name_size, value_size = NOTE.unpack_from(payload, at)
            at += NOTE.size
            name = payload[at : at + name_size]
            at += name_size
            if value_size == REMOVED:
                self._notes.pop(name, None)
                continue
            self._notes[name] = payload[at : at + value_size]
            at += value_size
        while self._spool and self._spool[0][0] < ack:
            position, chunk = self._spool.popleft()
            if position + len(chunk) > ack:
                self._spool.appendleft((ack, chunk[ack - position :]))
                break
        self._first = max(self._first, min(ack, self._next))
        if at < len(payload) and self._stdin >= 0 and not self._is_input_ending:
            self._input += payload[at:]
            self._write_input()


def main(arguments: list[str]) -> None:
    listener, path, hold_s, spool_bytes, report_bytes, cwd = arguments[:6]
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    holder = Holder(
        socket(fileno=own(int(listener))),
        path,
        hold_s=float(hold_s),
        spool_bytes=int(spool_bytes),
        report_bytes=int(report_bytes),
    )
    holder.run(cwd, arguments[7:])
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
