"""What an agent prints to standard error: kept at its end, and logged line by line.

Takes the descriptor, and owns it; gives the last bytes as text and each line to the logger `turnwire.agent`.
Values of secret variables are blotted out in both. Never holds more than the tail, never blocks the loop, and
never takes more than a little per turn of it, so that a flood of text delays no frame.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence

from turnwire.wire.ndjson import LineReader, Oversized

READ_BYTES = 16 * 1024
"""Taken in one turn of the loop."""

LAST_READS = 8
"""Reads at most before it is closed while somebody may still write: twice a pipe's usual buffer."""

LINE_BYTES = 8 * 1024
"""Of a longer line only its size is logged."""

BLOT = b"[redacted]"

log = logging.getLogger("turnwire.agent")


class StderrTail:
    """The end of an agent's standard error."""

    def __init__(self, fd: int, max_bytes: int, secrets: Sequence[bytes], ended: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._max_bytes = max_bytes
        self._secrets = secrets
        self._longest = max(map(len, secrets), default=0)
        self._ended = ended
        self._lines = LineReader(LINE_BYTES)
        self._tail = bytearray()
        self._is_cut = False
        self.is_ended = False
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def text(self) -> str:
        """The last of it, safe to show."""
        seen = self._blotted(bytes(self._tail))
        if self._is_cut:
            # The cut may have gone through a secret, and half of one is not found.
            seen = seen[self._longest :]
        return seen[-self._max_bytes :].decode(errors="replace")

    def close(self) -> None:
        """Take what there is and read no more, whoever holds the far end."""
        reads = 0
        while reads < LAST_READS and not self.is_ended and self._take():
            reads += 1
        self._end()

    def _read(self) -> None:
        self._take()
        if self.is_ended:
            self._ended()

    def _end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._log(self._lines.end())

    def _take(self) -> bool:
        """Take one chunk; whether there was one."""
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._end()
            return False
        self._tail += chunk
        excess = len(self._tail) - self._max_bytes - self._longest
        if excess > 0:
            self._is_cut = True
            del self._tail[:excess]
        self._log(self._lines.feed(chunk))
        return True

    def _log(self, lines: list[bytes | Oversized]) -> None:
        if not log.isEnabledFor(logging.DEBUG):
            return
        for line in lines:
            if isinstance(line, Oversized):
                log.debug("stderr: a line of %d bytes", line.size)
            else:
                log.debug("stderr: %s", self._blotted(line).decode(errors="replace"))

    def _blotted(self, text: bytes) -> bytes:
        for secret in self._secrets:
            text = text.replace(secret, BLOT)
        return text
