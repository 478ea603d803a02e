"""The environment of the built-in agent's tools: the session's files and commands, and the call shown to the user.

On this machine they are those of the SDK (`turnwire.agent.own_workplace`): paths never lead outside of the
session's directories, and commands do not get our environment, so that a model's key stays here. A command itself
may access everything that its user may; that is the reason to ask for permission. In a turn the client's files and
terminals are used instead, where it offers them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from inspect import isawaitable
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from turnwire.agent import Ran, ToolCall, Turn
from turnwire.agent.own_workplace import Heard, LiveOutput, OwnWorkplace
from turnwire.agent.workplace import show_terminal
from turnwire.errors import RequestRefused
from turnwire.hosting.environment import agent_environment
from turnwire.hosting.services.refusals import not_found
from turnwire.hosting.services.terminals import SHELL
from turnwire.wire.jsonrpc import RESOURCE_NOT_FOUND

NOT_ENDED = "It was still running. What it printed is in the terminal."

HEAD_BYTES, TAIL_BYTES = 32 * 1024, 32 * 1024
"""Retained bytes of output: a build's first error and its last line both fit; more fills the model's context with
noise.
"""


class ShownCall(Protocol):
    """The tool call as the user sees it. The results may be awaited, to wait for a slow client."""

    def say(self, text: str, /) -> object: ...

    def diff(self, path: str, old: str | None, new: str, /) -> object: ...

    def locate(self, path: str, line: int | None = None, /) -> object: ...

    def fail(self) -> object: ...


async def show(call: ShownCall, text: str) -> None:
    """Show text to the user, and wait for a slow client."""
    sent = call.say(text)
    if isawaitable(sent):
        await sent


class Workplace:
    """The environment of a session's tools on this machine. Paths here are absolute."""

    def __init__(self, cwd: Path, directories: Sequence[Path] = (), *, allows_fetch: bool = False) -> None:
        """Looks at nothing on disk yet. Raises `RequestRefused` for a directory that is not absolute."""
        self.cwd = cwd
        self.allows_fetch = allows_fetch
        self._own = OwnWorkplace(os.fspath(cwd), [os.fspath(each) for each in directories])
        self.roots = self._own.roots
        """The session's cwd and further directories; they alone decide which paths are inside."""

    async def read_text(self, path: str) -> str:
        """Return the whole file. Raises `RequestRefused`; its reason is `not_found` if the file does not exist."""
        return await self._own.read_file(path)

    async def write_text(self, path: str, text: str) -> None:
        """Make the file, with the directories above it, or replace it. Raises `RequestRefused`."""
        await self._own.write_file(path, text)

    async def run(self, command: str, call: ShownCall, timeout_s: float) -> Ran:
        """Run a line of shell in `cwd`, telling its output as it comes. Raises `RequestRefused` if it cannot start.

        After `timeout_s`, and when cancelled, everything that the command started is ended first.
        """
        return await self._run_here(command, lambda text: show(call, text), timeout_s)

    async def _run_here(self, command: str, heard: Heard, timeout_s: float) -> Ran:
        cwd = await to_thread.run_sync(self.roots.directory)
        environment = agent_environment(os.environ)
        shell = shutil.which("bash", path=environment.get("PATH", os.defpath)) or SHELL
        return await self._own.perform([shell, "-c", command], cwd, environment, TwoEnds(), heard, timeout_s)


class TurnWorkplace(Workplace):
    """The environment of one turn's tools: at the client where it offers files and terminals, otherwise here."""

    def __init__(self, turn: Turn, *, allows_fetch: bool) -> None:
        session = turn.session
        super().__init__(session.cwd, session.directories, allows_fetch=allows_fetch)
        self._turn = turn

    async def read_text(self, path: str) -> str:
        if not self._turn.session.client.fs_read:
            return await super().read_text(path)
        try:
            return await self._turn.read_file(path)
        except RequestRefused as error:
            # Not every client has a distinct code for a missing file.
            if error.jsonrpc == RESOURCE_NOT_FOUND or not await to_thread.run_sync(Path(path).exists):
                raise not_found(path) from None
            raise

    async def write_text(self, path: str, text: str) -> None:
        if self._turn.session.client.fs_write:
            await self._turn.write_file(path, text)
        else:
            await super().write_text(path, text)

    async def run(self, command: str, call: ShownCall, timeout_s: float) -> Ran:
        client = self._turn.session.client
        if client.terminal and isinstance(call, ToolCall):
            return await self._run_there(command, call, timeout_s)
        # v1 has no terminals of an agent: there the output is text of the tool call.
        if client.version == 1 or not isinstance(call, ToolCall):
            return await super().run(command, call, timeout_s)
        return await show_terminal(
            self._turn.publish,
            call,
            command,
            str(self.cwd),
            lambda heard: self._run_here(command, heard, timeout_s),
        )

    async def _run_there(self, command: str, call: ToolCall, timeout_s: float) -> Ran:
        """In the client's own terminal. Cancelling kills it there."""
        # Many clients start the program directly, without a shell. By its name only: the client knows the path of
        # its shell.
        shell = "bash" if shutil.which("bash") else "sh"
        with anyio.move_on_after(timeout_s):
            return await self._turn.run(shell, "-c", command, call=call)
        return Ran(exit_code=None, signal=None, output=NOT_ENDED, truncated=False, timed_out=True)


class TwoEnds(LiveOutput):
    """Output whose beginning and end are retained, with a line between that notes the omission.

    The beginning is emitted as it arrives, the rest when it has ended. It never holds more than its two bounds and
    one read, however slowly the user's client accepts it.
    """

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        super().__init__(tail_bytes)
        self._room = head_bytes
        self._head: list[str] = []
        self._told = 0
        """Number of chunks of the head that were emitted."""
        self._left_out = 0

    def text(self) -> str:
        return "".join(self._head) + self._rest()

    def take(self) -> str:
        pieces, self._told = self._head[self._told :], len(self._head)
        return "".join(pieces) + (self._rest() if self.has_ended else "")

    def _keep(self, text: str) -> None:
        if not text:
            return
        if self._room:
            # By characters, not bytes: a bound need not be exact, and this never splits a character.
            taken, text = text[: self._room], text[self._room :]
            self._room = max(0, self._room - len(taken.encode()))
            self._head.append(taken)
            self.wake()
        before = len(self._kept) + len(text.encode())
        super()._keep(text)
        self._left_out += before - len(self._kept)

    def _rest(self) -> str:
        if not self._left_out:
            return super().text()
        return f"\n[… {self._left_out} bytes of output are left out here …]\n{super().text()}"
