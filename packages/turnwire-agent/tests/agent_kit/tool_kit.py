"""Shared parts of the tool tests: a workplace in a folder, a recorded call, and a way to use a tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from turnwire.errors import RequestRefused
from turnwire_agent.tools import Tool, Workplace
from turnwire_testing.patience import WAIT_S


class Heard:
    """A call that records its reports."""

    def __init__(self) -> None:
        self.text = ""
        self.diffs: list[tuple[str, str | None, str]] = []
        self.places: list[tuple[str, int | None]] = []
        self.has_failed = False
        self.news = anyio.Event()

    def fail(self) -> None:
        self.has_failed = True

    def say(self, text: str, /) -> None:
        self.text += text
        self.news.set()

    def diff(self, path: str, old: str | None, new: str, /) -> None:
        self.diffs.append((path, old, new))

    def locate(self, path: str, line: int | None = None, /) -> None:
        self.places.append((path, line))

    async def until(self, wanted: str) -> str:
        """All that was said, once `wanted` was."""
        with anyio.fail_after(WAIT_S):
            while wanted not in self.text:
                self.news = anyio.Event()
                await self.news.wait()
        return self.text


async def use(tool: Tool, where: Workplace | Path, call: Heard | None = None, **arguments: Any) -> str:
    """Use a tool as the loop does when everything is allowed."""
    place = Workplace(where) if isinstance(where, Path) else where
    heard = call or Heard()
    with anyio.fail_after(WAIT_S):
        await tool.prepare(place, arguments, heard)
        return await tool.run(place, arguments, heard)


async def refused(tool: Tool, where: Workplace | Path, **arguments: Any) -> RequestRefused:
    """The refusal of a call; it is the same without `prepare`, for time may pass between the two."""
    place = Workplace(where) if isinstance(where, Path) else where
    with anyio.fail_after(WAIT_S), pytest.raises(RequestRefused) as found:
        await tool.run(place, arguments, Heard())
    return found.value
