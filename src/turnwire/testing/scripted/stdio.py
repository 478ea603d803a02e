"""The agent's end of its pipes: frames as lines on standard input and output.

Takes two file descriptors; gives a `FrameLink`. Writes of one turn of the event loop go out together; what
the peer has not read is bounded. Never blocks the loop on a pipe or socket; files and terminals work as well.
A line beyond the frame limit is dropped.
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress

import anyio

from turnwire.errors import LimitExceeded, LinkBroken, LinkClosed, LocalProtocolError
from turnwire.limits import Limits
from turnwire.wire.ndjson import LineReader, Oversized

READ_BYTES = 256 * 1024
"""One read: four times a pipe's usual buffer, so that one call empties it."""

WRITE_AT = 64 * 1024
"""Written at once when this much waits: a pipe's usual buffer."""

HIGH_BYTES = 1024 * 1024
"""What may wait for the peer before a sender waits as well."""

MAX_FRAMES = 4096
"""What may wait for us before we stop reading."""

FLUSH_S = 5.0
"""How long the last bytes may take to go out before the process ends anyway."""


class StdioLink:
    """Lines over two file descriptors. Make it inside a running event loop."""

    def __init__(self, read_fd: int = 0, write_fd: int = 1) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._lines = LineReader(Limits().frame_bytes)
        self._frames: list[bytes] = []
        self._out = bytearray()
        self._arrived: asyncio.Event = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_reading = False
        self._reader_waits = False
        self._is_ended = False
        self._is_broken = False
        self._is_closed = False
        self._is_flush_due = False
        if _can_block(write_fd):
            os.set_blocking(write_fd, False)
        self._resume_reading()

    async def receive(self) -> list[bytes]:
        """Every frame that has arrived, at least one. Cancel-safe."""
        if self._reader_waits:
            raise LocalProtocolError("another task is already in receive(); a link has one reader")
        while not self._frames:
            if self._is_closed:
                raise LinkClosed("this link is closed")
            if self._is_ended:
                raise LinkBroken("the peer closed standard input and everything it sent has been read")
            self._arrived.clear()
            self._reader_waits = True
            try:
                await self._arrived.wait()
            finally:
                self._reader_waits = False
        if self._is_closed:
            raise LinkClosed("this link is closed")
        frames, self._frames = self._frames, []
        self._resume_reading()
        return frames

    async def send(self, frame: bytes) -> None:
        """Send one frame, waiting for room. Cancel-safe: a cancelled call sent all or nothing."""
        self._check_open()
        while len(self._out) >= HIGH_BYTES:
            self._room.clear()
            await self._room.wait()
            self._check_open()
        self._put(frame)

    def send_nowait(self, frame: bytes) -> None:
        self._check_open()
        if len(self._out) >= HIGH_BYTES:
            raise LimitExceeded(
                f"{len(self._out)} bytes wait for the peer; use send() to wait for room",
                limit="high_bytes",
                value=HIGH_BYTES,
            )
        self._put(frame)

    async def flush(self) -> None:
        """Return once everything sent is written, the peer is gone, or `FLUSH_S` seconds are over."""
        with anyio.move_on_after(FLUSH_S):
            self._write()
            while self._out:
                self._room.clear()
                await self._room.wait()

    async def aclose(self) -> None:
        """Write what was sent, then let go of both descriptors. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            await self.flush()
        self._stop_reading()
        self._loop.remove_writer(self._write_fd)
        self._out.clear()
        self._room.set()
        self._arrived.set()
        for fd in (self._read_fd, self._write_fd):
            with suppress(OSError):
                os.close(fd)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LinkClosed("this link is closed")
        if self._is_broken:
            raise LinkBroken("the peer no longer reads standard output")

    def _put(self, frame: bytes) -> None:
        self._out += frame
        self._out += b"\n"
        if len(self._out) >= WRITE_AT:
            self._write()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_flush_due = False
        try:
            while self._out:
                with memoryview(self._out) as waiting:
                    written = os.write(self._write_fd, waiting)
                del self._out[:written]
        except BlockingIOError:
            self._loop.add_writer(self._write_fd, self._write)
        except OSError:
            self._break()
        else:
            self._loop.remove_writer(self._write_fd)
        if len(self._out) < HIGH_BYTES // 2:
            self._room.set()

    def _break(self) -> None:
        """The peer is gone; whoever waits finds out."""
        self._is_broken = True
        self._out.clear()
        self._loop.remove_writer(self._write_fd)
        self._end_input()

    def _resume_reading(self) -> None:
        if self._is_reading or self._is_ended or self._is_closed or len(self._frames) >= MAX_FRAMES:
            return
        self._is_reading = True
        try:
            self._loop.add_reader(self._read_fd, self._read)
        except PermissionError:
            # Regular files and /dev/null are always readable, so the event loop refuses to watch them.
            self._loop.call_soon(self._read_file)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            with suppress(PermissionError):
                self._loop.remove_reader(self._read_fd)

    def _read_file(self) -> None:
        if self._is_reading:
            self._read()
        if self._is_reading:
            self._loop.call_soon(self._read_file)

    def _read(self) -> None:
        try:
            chunk = os.read(self._read_fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._take(self._lines.end())
            self._end_input()
            return
        self._take(self._lines.feed(chunk))
        if len(self._frames) >= MAX_FRAMES:
            self._stop_reading()

    def _take(self, lines: list[bytes | Oversized]) -> None:
        self._frames += [line for line in lines if isinstance(line, bytes)]
        if self._frames:
            self._arrived.set()

    def _end_input(self) -> None:
        self._is_ended = True
        self._stop_reading()
        self._arrived.set()


def _can_block(fd: int) -> bool:
    """Whether a write may wait for a peer. Terminals and files are left as they are, others share them."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
