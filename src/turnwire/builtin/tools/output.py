"""The output of a command: its beginning, its end, and a live view for the user.

Takes bytes as they arrive, cut anywhere; gives the beginning as it comes, and in the end a text with both ends of a
long output and a line that says what was left out between them. Never holds more than its two bounds and one read,
however slowly the user's client takes it.
"""

from __future__ import annotations

from inspect import isawaitable

import anyio

from turnwire.builtin.tools.tool import Call
from turnwire.runtime.services.terminals import Output

HEAD_BYTES, TAIL_BYTES = 32 * 1024, 32 * 1024
"""A build's first error and its last word both fit; more fills the model's context with noise."""

SHOWN_CHARACTERS = 8000
"""What a person looks at of a result that is there as a whole."""


class TwoEnds(Output):
    """An `Output` that keeps its beginning too, and tells it while it grows."""

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        super().__init__(tail_bytes)
        self._room = head_bytes
        self._head: list[str] = []
        self._told = 0
        """How many pieces of the head were told."""
        self._left_out = 0
        self._has_ended = False
        self._news = anyio.Event()

    def end(self) -> None:
        super().end()
        self._has_ended = True
        self._news.set()

    def text(self) -> str:
        return "".join(self._head) + self._rest()

    async def tell(self, call: Call) -> None:
        """Tell the beginning as it comes and the rest when it has ended. Returns then. Waits for a slow client."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            has_ended = self._has_ended
            pieces, self._told = self._head[self._told :], len(self._head)
            if has_ended:
                pieces.append(self._rest())
            if text := "".join(pieces):
                await show(call, text)
            if has_ended:
                return

    def _keep(self, text: str) -> None:
        if not text:
            return
        if self._room:
            # By characters, not bytes: a bound need not be exact, and this never cuts one in two.
            taken, text = text[: self._room], text[self._room :]
            self._room = max(0, self._room - len(taken.encode()))
            self._head.append(taken)
            self._news.set()
        before = len(self._kept) + len(text.encode())
        super()._keep(text)
        self._left_out += before - len(self._kept)

    def _rest(self) -> str:
        if not self._left_out:
            return super().text()
        return f"\n[… {self._left_out} bytes of output are left out here …]\n{super().text()}"


async def show(call: Call, text: str) -> None:
    """Tell the user, and wait for a client that is slow."""
    sent = call.say(text)
    if isawaitable(sent):
        await sent


async def shown(call: Call, text: str) -> str:
    """A result for the model, shown to the user too: a long one with its two ends."""
    await show(call, shortened(text, SHOWN_CHARACTERS))
    return text


def shortened(text: str, most: int, what: str = "characters") -> str:
    """The beginning and the end of a text that is too long for a model, with a line between that says so."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} {what} are left out here …]\n{text[-half:]}"
