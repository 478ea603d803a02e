"""Transports to the checked peer: a process with its pipes, and our own pipes; other transports have the same
interface.

A transport adds nothing to the bytes: a case's bytes are sent unchanged, and received ones are put on the tape.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeAlias

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process

from turnwire.errors import AgentLaunchFailed
from turnwire_check.tape import Tape

STDERR_BYTES = 4096
"""Retained bytes of the end of stderr, for the reader of a report."""
PIECE_BYTES = 64 * 1024
LEAVING_S = 0.5
"""Time for a process to exit by itself after its input has ended."""


class Transport(Protocol):
    """One open connection to the peer."""

    tape: Tape

    async def send(self, raw: bytes) -> None:
        """These bytes as they are. A line is ended by the caller."""
        ...

    async def more(self, length: int) -> bool:
        """Wait until the tape is longer than that; false when it will not be."""
        ...


Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[Transport]]
"""Opens a separate connection for each case."""


class ProcessTransport:
    """The pipes of a process."""

    def __init__(self, process: Process) -> None:
        self.tape = Tape()
        self._process = process
        self.stderr_tail = b""

    async def send(self, raw: bytes) -> None:
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(raw)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.tape.end("it closed its input")

    async def more(self, length: int) -> bool:
        await self.tape.longer_than(length)
        return len(self.tape.frames) > length

    async def read_lines(self) -> None:
        """Put every line of stdout on the tape, until there is no more."""
        assert self._process.stdout is not None
        rest = await put_lines(pieces(self._process.stdout), lambda: self.tape)
        if rest.strip():
            self.tape.add(rest, is_ours=False)
        self.tape.end("it closed its output")

    async def let_go(self, within_s: float) -> bool:
        """Close its input, as a disconnecting client does; return True if it exited by itself within that time."""
        assert self._process.stdin is not None
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._process.stdin.aclose()
        with anyio.move_on_after(within_s) as scope:
            await self._process.wait()
        return not scope.cancelled_caught

    async def read_errors(self) -> None:
        assert self._process.stderr is not None
        async for piece in pieces(self._process.stderr):
            self.stderr_tail = (self.stderr_tail + piece)[-STDERR_BYTES:]


async def put_lines(said: AsyncIterable[bytes], tape: Callable[[], Tape]) -> bytes:
    """Record every line of the peer except blank ones on the current tape. Return an unfinished last line."""
    rest = bytearray()
    async for piece in said:
        *lines, last = piece.split(b"\n")
        for line in lines:
            rest += line
            if rest.strip():
                tape().add(bytes(rest), is_ours=False)
            rest.clear()
        rest += last
    return bytes(rest)


async def pieces(stream: ByteReceiveStream) -> AsyncGenerator[bytes]:
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            yield await stream.receive()


def process_opener(command: Sequence[str], cwd: str, env: Mapping[str, str] | None = None) -> Opener:
    """Each connection is a new process of this command."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Transport]:
        try:
            process = await anyio.open_process(
                command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=env, start_new_session=True
            )
        except OSError as error:
            raise AgentLaunchFailed(
                f"{command[0]!r} cannot be started ({error.strerror}); look at the command behind `--`",
                definite=True,
            ) from None
        transport = ProcessTransport(process)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(transport.read_lines)
                tasks.start_soon(transport.read_errors)
                yield transport
                await transport.let_go(LEAVING_S)
                tasks.cancel_scope.cancel()
        finally:
            kill(process)
            with anyio.CancelScope(shield=True):
                await process.aclose()

    return opened


def kill(process: Process) -> None:
    """Kill the process and its process group, so that no process of a case is leaked."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class OwnStdio:
    """Our own pipes, when a client has started us: its output goes on the tape, our frames go to it.

    Reads and writes are plain calls in threads, because a client may pass a pipe, a socket or a file. A thread that
    still reads when the case is over is abandoned, and ends with the process.
    """

    def __init__(self, source: int = 0, target: int = 1) -> None:
        self.tape = Tape()
        self._source = source
        self._target = target

    async def send(self, raw: bytes) -> None:
        rest = memoryview(raw)
        try:
            while rest:
                sent = await anyio.to_thread.run_sync(os.write, self._target, rest, abandon_on_cancel=True)
                rest = rest[sent:]
        except OSError:
            self.tape.end("it closed its end")

    async def more(self, length: int) -> bool:
        await self.tape.longer_than(length)
        return len(self.tape.frames) > length

    async def hang_up(self) -> None:
        """Close our output; the client's frames are still received."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._target)
        os.close(nowhere)

    async def read_lines(self) -> None:
        """Put every line on the tape, until the client has closed its end."""
        await put_lines(self._pieces(), lambda: self.tape)
        self.tape.end("it closed the connection")

    async def _pieces(self) -> AsyncGenerator[bytes]:
        while piece := await anyio.to_thread.run_sync(os.read, self._source, PIECE_BYTES, abandon_on_cancel=True):
            yield piece
