"""A workplace over a turn: the client's files and terminals where it offers them, otherwise this machine's.

Takes a turn; gives `Workplace`. On v2 a command of ours is shown as a terminal. Never leaves the session's
directories by a path: see `LocalWorkplace`.
"""

from __future__ import annotations

import base64
from pathlib import Path

import anyio
from anyio import to_thread

from turnwire.agent import ToolCall, Turn
from turnwire.builtin.tools.tool import Call, Ran
from turnwire.builtin.tools.workplace import LocalWorkplace
from turnwire.errors import RequestRefused
from turnwire.runtime import new_ids
from turnwire.runtime.services.refusals import not_found
from turnwire.wire.jsonrpc import RESOURCE_NOT_FOUND

NOT_ENDED = "It was still running. What it printed is in the terminal."


class TurnWorkplace(LocalWorkplace):
    """Where the tools of one turn work."""

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
            # Not every client has a code of its own for a file that is not there.
            if error.jsonrpc == RESOURCE_NOT_FOUND or not await to_thread.run_sync(Path(path).exists):
                raise not_found(path) from None
            raise

    async def write_text(self, path: str, text: str) -> None:
        if self._turn.session.client.fs_write:
            await self._turn.write_file(path, text)
        else:
            await super().write_text(path, text)

    async def run(self, command: str, call: Call, timeout_s: float) -> Ran:
        client = self._turn.session.client
        if client.terminal and isinstance(call, ToolCall):
            return await self._run_there(command, call, timeout_s)
        if client.version == 1 or not isinstance(call, ToolCall):
            return await super().run(command, call, timeout_s)
        return await self._run_shown(command, call, timeout_s)

    async def _run_there(self, command: str, call: ToolCall, timeout_s: float) -> Ran:
        """In the client's own terminal. Cancelling kills it there."""
        with anyio.move_on_after(timeout_s):
            ran = await self._turn.run(command, call=call)
            return Ran(ran.exit_code, ran.signal, ran.output, ran.truncated)
        return Ran(None, None, NOT_ENDED, timed_out=True)

    async def _run_shown(self, command: str, call: ToolCall, timeout_s: float) -> Ran:
        shown = _Shown(self._turn, call)
        await shown.begin(command, str(self.cwd))
        try:
            ran = await super().run(command, shown, timeout_s)
        except BaseException:
            shown.end({"signal": "SIGKILL"})
            raise
        shown.end({"exitCode": ran.exit_code, "signal": ran.signal})
        return ran


class _Shown:
    """A command of ours as a terminal of v2, in the place of its tool call."""

    def __init__(self, turn: Turn, call: ToolCall) -> None:
        self._turn = turn
        self._call = call
        self._id = new_ids.terminal_id()

    async def begin(self, command: str, cwd: str) -> None:
        await self._turn.update({**self._update(), "command": command, "cwd": cwd})
        await self._call.terminal(self._id)

    def end(self, status: dict[str, int | str | None]) -> None:
        """Only enqueued: the turn may be ending."""
        known = {name: value for name, value in status.items() if value is not None}
        self._turn.update({**self._update(), "exitStatus": known})

    def say(self, text: str, /) -> object:
        chunk = base64.b64encode(text.encode()).decode()
        return self._turn.update({"sessionUpdate": "terminal_output_chunk", "terminalId": self._id, "data": chunk})

    def diff(self, path: str, old: str | None, new: str, /) -> object:
        return self._call.diff(path, old, new)

    def locate(self, path: str, line: int | None = None, /) -> object:
        return self._call.locate(path, line)

    def _update(self) -> dict[str, object]:
        return {"sessionUpdate": "terminal_update", "terminalId": self._id}
