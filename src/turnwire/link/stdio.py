"""Frames as lines over two file descriptors: an agent's pipes, or our own standard input and output.

The link owns both descriptors. Whole chunks are cut into lines as they come, so a burst costs one wake-up; what is
sent in one turn of the event loop goes out in one write. The loop never blocks on a pipe or socket, whatever the
peer does:

* a peer that never reads: `link_buffer_bytes` wait for it, then `send` waits and `send_nowait` refuses;
* a peer that never stops: reading pauses while `link_buffer_bytes` wait to be received;
* a line beyond `frame_bytes`: dropped, counted in `breaches`, kept with its head; the next line is unharmed.

Each direction ends on its own. When the peer no longer reads, sending is broken, and what it wrote is still
received to its end. Frames hold no line end; `turnwire.wire.jsonrpc.encode` sees to that.
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

from turnwire.errors import LimitExceeded, LinkBroken, LinkClosed
from turnwire.limits import Limits
from turnwire.link.peer import KEPT_BREACHES, Breach
from turnwire.link.queues import Senders, next_frames, tell_arrived
from turnwire.wire.ndjson import LineReader, Oversized

OVERSIZED = "oversized"
"""The reason under which a dropped line is counted."""

READ_BYTES = 256 * 1024
"""One read, and what a pipe to us may hold: four times the usual."""

LAST_READS = 16
"""Reads at most before an input is given up: many times a pipe's buffer, in case somebody keeps writing."""

WRITE_AT = 64 * 1024
"""Written without waiting for the end of the loop's turn once this much waits: a pipe's usual buffer."""


class _Output:
    """The descriptor we write to, and what waits to be written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, max_bytes: int) -> None:
        self._loop = loop
        self._fd = fd
        self._max_bytes = max_bytes
        self._waiting = bytearray()
        self._senders = Senders()
        self._is_flush_due = False
        self._is_blocked = False
        self.is_ending = False
        """No more frames; closed once what waits is written."""
        self.is_broken = False
        self.ended = anyio.Event()
        self.flushed = anyio.Event()
        """Set whenever nothing waits any more, or never will."""
        self._was_blocking = _make_nonblocking(fd)

    def has_room(self) -> bool:
        # Nobody overtakes a sender that waits: those are let in as soon as there is room.
        return len(self._waiting) < self._max_bytes

    def put(self, frame: bytes) -> None:
        self._keep(frame)
        if self._is_blocked:
            return
        if len(self._waiting) >= WRITE_AT:
            self.write()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.write)

    async def wait_for_room(self, frame: bytes) -> bool:
        """Hand the frame over when there is room; whether that happened before the output ended."""
        return await self._senders.wait(frame)

    def write(self) -> None:
        self._is_flush_due = False
        if self.ended.is_set():
            return
        try:
            while self._waiting:
                with memoryview(self._waiting) as waiting:
                    written = os.write(self._fd, waiting)
                del self._waiting[:written]
                self._senders.let_in(self.has_room, self._keep)
        except BlockingIOError:
            if not self._is_blocked:
                self._is_blocked = True
                self._loop.add_writer(self._fd, self.write)
        except OSError:
            self.is_broken = True
            self.close()
        else:
            self._unblock()
            self.flushed.set()
            if self.is_ending:
                self.close()

    async def flush(self) -> None:
        """Return once nothing waits, or never will."""
        self.flushed = anyio.Event()
        self.write()
        if self.ended.is_set():
            return
        await self.flushed.wait()

    def end(self) -> None:
        """Close once everything that was sent is written. Senders that wait for room are turned away."""
        if not self.is_ending:
            self.is_ending = True
            self._senders.turn_away()
            self.write()

    def close(self) -> None:
        """Close now; what waits is lost."""
        if self.ended.is_set():
            return
        self._unblock()
        self._waiting.clear()
        self._senders.turn_away()
        _close(self._fd, self._was_blocking)
        self.flushed.set()
        self.ended.set()

    def _keep(self, frame: bytes) -> None:
        self._waiting += frame
        self._waiting += b"\n"

    def _unblock(self) -> None:
        if self._is_blocked:
            self._is_blocked = False
            self._loop.remove_writer(self._fd)


class _Input:
    """The descriptor we read from, and the frames that wait to be received."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, limits: Limits) -> None:
        self._loop = loop
        self._fd = fd
        self._max_bytes = limits.link_buffer_bytes
        self._lines = LineReader(limits.frame_bytes)
        self._frames: list[bytes] = []
        self._unreceived = 0
        self._is_watched = False
        self.arrived: asyncio.Future[None] | None = None
        """Set while a reader waits."""
        self.is_ended = False
        self.breaches: Counter[str] = Counter()
        self.last_breaches: deque[Breach] = deque(maxlen=KEPT_BREACHES)
        self._was_blocking = _make_nonblocking(fd)
        _widen(fd)
        self._watch()

    def take(self) -> list[bytes]:
        frames, self._frames = self._frames, []
        self._unreceived = 0
        if frames and not self._is_watched and not self.is_ended:
            self._watch()
        return frames

    def close(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self._unwatch()
            _close(self._fd, self._was_blocking)
            tell_arrived(self)

    def end(self) -> None:
        """Take what there is, then close, although others may hold the far end open."""
        reads = 0
        while reads < LAST_READS and not self.is_ended and _is_readable(self._fd) and self._read():
            reads += 1
        self.close()

    def drop(self) -> None:
        """Close, and forget what was not received."""
        self.close()
        self._frames.clear()

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
        """Take one chunk; whether there was one."""
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            # A terminal that hung up; the end of input by another name.
            chunk = b""
        self._take_in(self._lines.feed(chunk) if chunk else self._lines.end())
        if not chunk:
            self.close()
            return False
        self._unreceived += len(chunk)
        # Without a whole frame there is nothing to wait for; the unfinished line has its own bound.
        if self._frames and self._unreceived >= self._max_bytes:
            self._unwatch()
        return True

    def _take_in(self, lines: list[bytes | Oversized]) -> None:
        frames = [line for line in lines if isinstance(line, bytes)]
        if len(frames) < len(lines):
            dropped = [line for line in lines if isinstance(line, Oversized)]
            self.breaches[OVERSIZED] += len(dropped)
            self.last_breaches.extend(Breach(OVERSIZED, each.head) for each in dropped)
        self._frames += frames
        if self._frames:
            tell_arrived(self)


class StdioLink:
    """Lines over two file descriptors, which it closes. Make it inside a running event loop."""

    def __init__(self, read_fd: int = 0, write_fd: int = 1, limits: Limits | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._limits = limits or Limits()
        self._output = _Output(loop, write_fd, self._limits.link_buffer_bytes)
        self._input = _Input(loop, read_fd, self._limits)
        self._is_closed = False

    @property
    def breaches(self) -> Counter[str]:
        """Lines that were dropped, by reason."""
        return self._input.breaches

    @property
    def last_breaches(self) -> deque[Breach]:
        """The newest of them, each with its first bytes."""
        return self._input.last_breaches

    async def receive(self) -> list[bytes]:
        """Every frame that has arrived, at least one. Cancel-safe: a cancelled call took nothing."""
        return await next_frames(self._input, lambda: self._is_closed, lambda: _READ_TO_THE_END)

    async def send(self, frame: bytes) -> None:
        """Send one frame, waiting for room in order. Cancel-safe: a cancelled call sent all or nothing."""
        self._check_open()
        if self._output.has_room():
            self._output.put(frame)
        elif not await self._output.wait_for_room(frame):
            self._check_open()

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame or refuse with `LimitExceeded`."""
        self._check_open()
        if not self._output.has_room():
            raise LimitExceeded(
                "the peer does not read what it was sent; use send() to wait for room",
                limit="link_buffer_bytes",
                value=self._limits.link_buffer_bytes,
            )
        self._output.put(frame)

    def end_output(self) -> None:
        """Send no more: the peer reads what was sent, then the end of its input. Receiving goes on. Idempotent."""
        self._output.end()

    def end_input(self) -> None:
        """The peer is known to be gone: receive what has arrived, and wait for nobody who holds its pipe."""
        self._input.end()

    async def flush(self) -> None:
        """Return once what was sent is written, or the peer is gone. Cancel-safe."""
        await self._output.flush()

    async def aclose(self) -> None:
        """Write what was sent, for at most `stop_eof_s`, then close both descriptors. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._input.drop()
        self._output.end()
        with anyio.move_on_after(self._limits.stop_eof_s, shield=True):
            await self._output.ended.wait()
        self._output.close()

    def _check_open(self) -> None:
        if self._output.is_ending:
            raise LinkClosed("this link is closed; start a new one")
        if self._output.is_broken:
            raise LinkBroken("the peer no longer reads; the frame was not sent")


_READ_TO_THE_END = "the peer closed its output and everything it sent has been read"


def _make_nonblocking(fd: int) -> bool:
    """Let a pipe or socket never block; whether it did before. Terminals and files are shared, so left alone."""
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or not os.get_blocking(fd):
        return False
    os.set_blocking(fd, False)
    return True


def _widen(fd: int) -> None:
    """Let a pipe hold what one read takes, so that its writer waits less for us. Only Linux can, and not always.

    Not more: what a user's pipes may hold together is little, and beyond it new ones are made very small.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, max(READ_BYTES, fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)))


def _is_readable(fd: int) -> bool:
    """Whether a read would not wait. A terminal is left as it was, so a read of one may."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _close(fd: int, was_blocking: bool) -> None:
    with suppress(OSError):
        if was_blocking:
            # The other holders of an inherited descriptor get it back as it was.
            os.set_blocking(fd, True)
        os.close(fd)


STDIN, STDOUT, STDERR = 0, 1, 2


def open_pipes(limits: Limits) -> StdioLink:
    """The link to whoever started us. Once, and inside a running event loop.

    Kept clean: what anybody prints from here on goes to stderr, and who reads standard input finds it empty.
    """
    sys.stdout.flush()
    read_fd, write_fd = os.dup(STDIN), os.dup(STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, STDIN)
    os.close(nothing)
    os.dup2(STDERR, STDOUT)
    return StdioLink(read_fd, write_fd, limits)
