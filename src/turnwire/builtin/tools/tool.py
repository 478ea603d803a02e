"""What a tool is to the loop, and what a tool has to work with.

Takes nothing; gives the protocols `Tool`, `Call` and `Workplace`. A tool never asks for permission: the loop does.

The loop uses a tool in this order: it announces the call with `kind` and `title`, awaits `prepare`, asks the user
if the mode wants that, and awaits `run`. `prepare` refuses bad arguments before anybody is asked, and shows what is
going to happen: the files it is about, and the diff of an edit. It changes nothing. `run` does it, and looks again:
time has passed since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from turnwire.builtin.model import ToolSpec
from turnwire.runtime.services import Roots


class Ran(NamedTuple):
    """How a command ended. With neither a code nor a signal nobody saw it end."""

    exit_code: int | None
    signal: str | None
    output: str
    """Both streams in their order, or the beginning and the end of them."""
    truncated: bool = False
    timed_out: bool = False


class Call(Protocol):
    """The tool call as the user sees it. What these give back may be awaited, to wait for a slow client."""

    def say(self, text: str, /) -> object: ...

    def diff(self, path: str, old: str | None, new: str, /) -> object: ...

    def locate(self, path: str, line: int | None = None, /) -> object: ...


class Workplace(Protocol):
    """Where a session's tools work. `LocalWorkplace` is the plain one; paths here are absolute."""

    @property
    def cwd(self) -> Path: ...

    @property
    def roots(self) -> Roots:
        """The session's cwd and further directories, as the one judge of what is inside them."""
        ...

    @property
    def allows_fetch(self) -> bool: ...

    async def read_text(self, path: str) -> str:
        """The whole file. Raises `RequestRefused`; its reason is `not_found` if there is none."""
        ...

    async def write_text(self, path: str, text: str) -> None:
        """Make the file, with the directories above it, or replace it. Raises `RequestRefused`."""
        ...

    async def run(self, command: str, call: Call, timeout_s: float) -> Ran:
        """Run a line of shell in `cwd`, telling its output as it comes. Raises `RequestRefused` if it cannot start.

        After `timeout_s`, and when cancelled, everything that the command started is ended first.
        """
        ...


class Tool(Protocol):
    """Something that a model can have done."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def kind(self) -> str:
        """In ACP's words: read, edit, search, execute, fetch, think, other."""
        ...

    @property
    def asks(self) -> bool:
        """Whether it needs permission in mode `ask`."""
        ...

    @property
    def edits(self) -> bool:
        """Whether it only edits files, which mode `accept_edits` allows without asking."""
        ...

    def title(self, arguments: dict[str, Any]) -> str:
        """The call in a few words, also for arguments that are wrong."""
        ...

    async def prepare(self, where: Workplace, arguments: dict[str, Any], call: Call) -> None:
        """Check the arguments and show what is going to happen. Raises `RequestRefused`."""
        ...

    async def run(self, where: Workplace, arguments: dict[str, Any], call: Call) -> str:
        """Do it; gives the text for the model. Raises `RequestRefused`, whose text is for the model too."""
        ...
