"""A raw agent without a process: its output is complete when `send` returns, so nothing is ever waited for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from check_peers.raw_agent import Home, RawAgent
from turnwire_check.case import Scene
from turnwire_check.run import Bounds
from turnwire_check.tape import Tape
from turnwire_check.transport import Opener, Transport

PROMPTS: dict[Scene, str] = {
    "plain": "hello",
    "wait": "wait",
    "tool": "tool",
    "ask": "ask",
    "fail": "fail",
    "plan": "plan",
    "usage": "usage",
    "read": "read",
    "terminal": "terminal",
    "elicit": "elicit",
    "background": "background",
    "child": "child",
}
BOUNDS = Bounds(patience_s=5.0, silence_s=5.0)
"""Never waited for."""


class MemoryTransport:
    """The agent as a function of bytes."""

    def __init__(self, agent: type[RawAgent], home: Home) -> None:
        self.tape = Tape(clock=lambda: 0.0)
        self._rest = b""
        self._agent = agent(self._take, home)

    def _take(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self.tape.add(line, is_ours=False)

    async def send(self, raw: bytes) -> None:
        if self.tape.ended:
            return
        try:
            self._agent.feed(raw)
        except SystemExit:
            self.tape.end("it closed its output")

    def leave(self) -> None:
        self._agent.left()

    async def more(self, length: int) -> bool:
        return len(self.tape.frames) > length


def memory_opener(agent: type[RawAgent]) -> Opener:
    home = Home()

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Transport]:
        transport = MemoryTransport(agent, home)
        yield transport
        transport.leave()

    return opened
