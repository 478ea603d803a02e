"""The output of one terminal: its end, as text, within a number of bytes.

Takes bytes as they arrive, cut anywhere; gives text that begins and ends at a character. Drops from the
beginning what is too much and says so. Never holds more than its bound and one read.
"""

from __future__ import annotations

import codecs


class Output:
    """What a command printed, or the end of it. What is no UTF-8 is shown as replacement characters."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = bytearray()
        """Always whole characters of UTF-8."""
        self.is_truncated = False

    def feed(self, chunk: bytes) -> None:
        self._keep(self._decoder.decode(chunk))

    def end(self) -> None:
        """There is no more: a character that was begun stays unfinished."""
        self._keep(self._decoder.decode(b"", final=True))

    def text(self) -> str:
        return self._kept.decode()

    def _keep(self, text: str) -> None:
        self._kept += text.encode()
        excess = len(self._kept) - self._max_bytes
        if excess <= 0:
            return
        # The bytes that continue a character are 10xxxxxx; one that lost its first byte goes as a whole.
        while excess < len(self._kept) and self._kept[excess] & 0xC0 == 0x80:
            excess += 1
        del self._kept[:excess]
        self.is_truncated = True
