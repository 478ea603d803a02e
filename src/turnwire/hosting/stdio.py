"""Frames as lines over two file descriptors: an agent's pipes, or our own standard input and output.

The link owns both descriptors. Whole reads are split into lines as they arrive, so a burst costs one wake-up;
frames sent in one event loop round go out in one write. The loop never blocks on a pipe or socket, whatever the
peer does:

* a peer that never reads: up to `link_buffer_bytes` are queued, then `send` waits and `send_nowait` rejects;
* a peer that never stops: reading pauses while `link_buffer_bytes` wait to be received;
* a line beyond `frame_bytes`: dropped, counted in `breaches`, its head is stored; the next line is unharmed.

Each direction ends separately. When the peer no longer reads, sending is broken, and its output is still received
to the end. Frames hold no line end; `turnwire.wire.jsonrpc.encode` ensures that.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import stat
import sys
from collections import Counter, deque
from contextlib import suppress

import anyio

from turnwire.hosting.peer import KEPT_BREACHES, Breach
from turnwire.hosting.queues import Inbound, Outbound
from turnwire.limits import Limits
from turnwire.wire.ndjson import LineReader, Oversized

OVERSIZED = "oversized"
"""The reason under which a dropped line is counted."""

READ_BYTES = 256 * 1024
"""Size of one read, and of the pipe to us: four times the usual."""

LAST_READS = 16
"""Maximum number of reads before an input is given up: many times a pipe's buffer, in case a process keeps
writing.
"""

WRITE_AT = 64 * 1024
"""Size from which output is written before the end of the event loop round: a pipe's usual buffer."""


class _Output(Outbound):
    """The descriptor we write to, and the frames to be written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, max_bytes: int) -> None:
        super().__init__(max_bytes, "link_buffer_bytes")
        self._loop = loop
        self._fd = fd
        self._waiting = bytearray()
        self._is_flush_due = False
        self._is_blocked = False
        self._is_writing = False
        self.ended = anyio.Event()
        self.flushed = anyio.Event()
        """Set while no frame waits to be written, or none can be written any more."""
        self._was_blocking = _make_nonblocking(fd)

    def has_room(self) -> bool:
        return len(self._waiting) < self._max_size

    def put(self, frame: bytes) -> None:
        self._waiting += frame
        self._waiting += b"\n"
        if self._is_blocked or self._is_writing:
            return
        if len(self._waiting) >= WRITE_AT:
            self.write()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.write)

    def write(self) -> None:
        self._is_flush_due = False
        if self.ended.is_set():
            return
        self._is_writing = True
        try:
            while self._waiting:
                with memoryview(self._waiting) as waiting:
                    written = os.write(self._fd, waiting)
                del self._waiting[:written]
                self.admit()
        except BlockingIOError:
            if not self._is_blocked:
                self._is_blocked = True
                self._loop.add_writer(self._fd, self.write)
        except OSError:
            self.break_off("the peer no longer reads; the frame was not sent")
            self.abort()
        else:
            self._unblock()
            self.flushed.set()
            if self.is_closed:
                self.abort()
        finally:
            self._is_writing = False

    async def flush(self) -> None:
        """Return once no frame waits to be written, or none can be written any more."""
        self.flushed = anyio.Event()
        self.write()
        if self.ended.is_set():
            return
        await self.flushed.wait()

    def close(self) -> None:
        """Accept no more frames, and close the descriptor once everything that was sent is written."""
        if not self.is_closed:
            super().close()
            self.write()

    def abort(self) -> None:
        """Close the descriptor now; unwritten frames are lost."""
        if self.ended.is_set():
            return
        self._unblock()
        self._waiting.clear()
        self._turn_away()
        _close(self._fd, self._was_blocking)
        self.flushed.set()
        self.ended.set()

    def _unblock(self) -> None:
        if self._is_blocked:
            self._is_blocked = False
            self._loop.remove_writer(self._fd)


class _Input(Inbound):
    """The descriptor we read from, and the frames to be received."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, limits: Limits) -> None:
        super().__init__(
            limits.link_buffer_bytes, "the peer closed its output and everything it sent has been read"
        )
        self._loop = loop
        self._fd = fd
        self._lines = LineReader(limits.frame_bytes)
        self._is_watched = False
        self.breaches: Counter[str] = Counter()
        self.last_breaches: deque[Breach] = deque(maxlen=KEPT_BREACHES)
        self._was_blocking = _make_nonblocking(fd)
        _widen(fd)
        self._watch()

    def on_taken(self) -> None:
        if not self._is_watched and not self.is_ended:
            self._watch()

    def end(self) -> None:
        """Close the descriptor; frames that have arrived can still be received."""
        if not self.is_ended:
            self._unwatch()
            _close(self._fd, self._was_blocking)
            super().end()

    def drain(self) -> None:
        """Read the available data, then end, although other processes may hold the other end open."""
        reads = 0
        while reads < LAST_READS and not self.is_ended and _is_readable(self._fd) and self._read():
            reads += 1
        self.end()

    def _watch(self) -> None:
        self._is_watched = True
        try:
            self._loop.add_reader(self._fd, self._read)
        except PermissionError:
            # A regular file is always readable, so the event loop refuses to watch it.
            self._loop.call_soon(self._read_file)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            with suppress(PermissionError):
                self._loop.remove_reader(self._fd)

    def _read_file(self) -> None:
        if self._is_watched:
            self._read()
            self._loop.call_soon(self._read_file)

    def _read(self) -> bool:
        """Read one chunk. Return true if there was one."""
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            # A terminal that hung up, which means the end of input.
            chunk = b""
        self._take_in(self._lines.feed(chunk) if chunk else self._lines.end(), len(chunk))
        if not chunk:
            self.end()
            return False
        # Without a whole frame there is nothing to wait for; the unfinished line is bounded separately.
        if self._frames and self.is_full:
            self._unwatch()
        return True

    def _take_in(self, lines: list[bytes | Oversized], size: int) -> None:
        frames = [line for line in lines if isinstance(line, bytes)]
        if len(frames) < len(lines):
            dropped = [line for line in lines if isinstance(line, Oversized)]
            self.breaches[OVERSIZED] += len(dropped)
            self.last_breaches.extend(Breach(OVERSIZED, each.head) for each in dropped)
        self.add(frames, size)


class StdioLink:
    """Lines over two file descriptors, which it closes. Create it inside a running event loop."""

    def __init__(self, read_fd: int = 0, write_fd: int = 1, limits: Limits | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._limits = limits or Limits()
        self._output = _Output(loop, write_fd, self._limits.link_buffer_bytes)
        self._input = _Input(loop, read_fd, self._limits)
        self.receive = self._input.receive
        self.send = self._output.send
        self.send_nowait = self._output.send_nowait

    @property
    def breaches(self) -> Counter[str]:
        """Number of dropped lines, by reason."""
        return self._input.breaches

    @property
    def last_breaches(self) -> deque[Breach]:
        """The newest dropped lines, each with its first bytes."""
        return self._input.last_breaches

    def end_output(self) -> None:
        """End our output: the peer reads the sent frames, then the end of its input. Receiving continues.
        Idempotent.
        """
        self._output.close()

    def end_input(self) -> None:
        """The peer is known to be gone: receive the frames that have arrived, without waiting for other holders of
        its pipe.
        """
        self._input.drain()

    async def flush(self) -> None:
        """Return once all sent frames are written, or the peer is gone. Cancel-safe."""
        await self._output.flush()

    async def aclose(self) -> None:
        """Write the sent frames, for at most `stop_eof_s`, then close both descriptors. Idempotent."""
        if self._input.is_closed:
            return
        self._input.close()
        self._output.close()
        with anyio.move_on_after(self._limits.stop_eof_s, shield=True):
            await self._output.ended.wait()
        self._output.abort()


def _make_nonblocking(fd: int) -> bool:
    """Make a pipe or socket non-blocking; return its previous mode. Terminals and files are shared, so not
    changed.
    """
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or not os.get_blocking(fd):
        return False
    os.set_blocking(fd, False)
    return True


def _widen(fd: int) -> None:
    """Enlarge a pipe to the size of one read, so that its writer waits less for us. Only Linux can, and not always.

    Not more: the total size of a user's pipes is limited, and beyond the limit new ones are very small.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, max(READ_BYTES, fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)))


def _is_readable(fd: int) -> bool:
    """Return true if a read would not block. A terminal is not changed, so reading one may block."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _close(fd: int, was_blocking: bool) -> None:
    with suppress(OSError):
        if was_blocking:
            # An inherited descriptor is shared with other processes, so its mode is restored.
            os.set_blocking(fd, True)
        os.close(fd)


STDIN, STDOUT, STDERR = 0, 1, 2


def open_pipes(limits: Limits) -> StdioLink:
    """Return the link to our parent process. Call it once, inside a running event loop.

    The streams are protected: later prints go to stderr, and later reads of standard input find it empty.
    """
    sys.stdout.flush()
    read_fd, write_fd = os.dup(STDIN), os.dup(STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, STDIN)
    os.close(nothing)
    os.dup2(STDERR, STDOUT)
    return StdioLink(read_fd, write_fd, limits)
