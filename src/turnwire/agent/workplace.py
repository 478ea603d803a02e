"""Files and commands for an agent's author: the client's where it offers them, otherwise the agent's own.

A path may be relative to the session's working directory. Beyond the session's directories the agent's own refuse;
what a client gives is the client's to decide. A cancelled command is killed with its whole tree, at the client
too. With a tool call the output is shown while it is written: as a terminal of the client, or as one of the agent.
Never asks a client for what it did not offer, and never gives a command more of the environment than an agent
gets.
"""

from __future__ import annotations

import base64
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import checkpoint
from msgspec import Struct

from turnwire.errors import RemoteProtocolError, TurnwireError
from turnwire.limits import Limits
from turnwire.link.environment import agent_environment
from turnwire.runtime.services.files import Files
from turnwire.runtime.services.roots import Roots
from turnwire.runtime.services.terminals import Output, new_terminal_id, prepare, start_terminal
from turnwire.wire.methods import (
    FS_READ_TEXT_FILE,
    FS_WRITE_TEXT_FILE,
    TERMINAL_CREATE,
    TERMINAL_KILL,
    TERMINAL_OUTPUT,
    TERMINAL_RELEASE,
    TERMINAL_WAIT_FOR_EXIT,
)
from turnwire.wire.schema.common import TerminalExit

if TYPE_CHECKING:
    from turnwire.agent.session import Session
    from turnwire.agent.tool_call import ToolCall
    from turnwire.agent.turn import Turn

LIMITS = Limits()

MADE_S, LET_GO_S = 5.0, 2.0
"""For the client, once the turn is being stopped: to name the terminal it is making, and to kill or release it.
Together less than `max_cancel_s`, so that the turn does not end before its command."""

AnyPath: TypeAlias = str | os.PathLike[str]

Heard: TypeAlias = Callable[[str], Awaitable[object]]
"""Takes a piece of output, and the next one once that has returned."""


class Ran(Struct, frozen=True, kw_only=True):
    """A command that has ended."""

    exit_code: int | None
    """`None` if a signal ended it."""
    signal: str | None
    output: str
    """Both of its streams in the order they were written, or the end of that."""
    truncated: bool
    timed_out: bool = False
    """It was ended because its time was up. `Turn.run` sets it no time."""

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.exit_code == 0


async def read_file(turn: Turn, path: AnyPath, line: int | None = None, limit: int | None = None) -> str:
    """A text file, or `limit` lines of it from `line` on; lines count from 1.

    Raises:
        RequestRefused: It is outside, missing, too large or no text.
    """
    whole = _absolute(turn, path)
    if not turn.session.client.fs_read:
        return await _own_of(turn).read_file(whole, line, limit)
    params: dict[str, Any] = {"path": whole}
    params |= {name: value for name, value in (("line", line), ("limit", limit)) if value is not None}
    return _text(await turn.request(FS_READ_TEXT_FILE, params), "content")


async def write_file(turn: Turn, path: AnyPath, text: str) -> None:
    """Create or replace a text file. Raises `RequestRefused`."""
    whole = _absolute(turn, path)
    if turn.session.client.fs_write:
        await turn.request(FS_WRITE_TEXT_FILE, {"path": whole, "content": text})
    else:
        await _own_of(turn).write_file(whole, text)


async def run(
    turn: Turn,
    command: str,
    arguments: tuple[str, ...] = (),
    *,
    cwd: AnyPath | None = None,
    env: Mapping[str, str] | None = None,
    call: ToolCall | None = None,
    limit: int | None = None,
) -> Ran:
    """Run a command to its end.

    Args:
        turn: Whose work it is; with it the command ends.
        command: A program, or without arguments a line for a shell.
        arguments: What the program is given.
        cwd: Where it runs; the session's working directory unless told otherwise.
        env: Variables on top of those that it gets anyway.
        call: The tool call that shows the output while the command runs.
        limit: Bytes of output that are kept; the newest count.

    Raises:
        RequestRefused: It cannot be started, or its directory is outside.
    """
    most = LIMITS.terminal_output_bytes
    params: dict[str, Any] = {
        "command": command,
        "args": list(arguments),
        "cwd": str(turn.session.cwd) if cwd is None else _absolute(turn, cwd),
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
        "outputByteLimit": most if limit is None else max(0, min(limit, most)),
    }
    return await (_run_there if turn.session.client.terminal else _run_here)(turn, params, call)


def _absolute(turn: Turn, path: AnyPath) -> str:
    return os.path.join(turn.session.cwd, path)


_own: WeakKeyDictionary[Session, OwnWorkplace] = WeakKeyDictionary()
"""One per session: it fixes the session's directories when they are first used."""


def _own_of(turn: Turn) -> OwnWorkplace:
    session = turn.session
    own = _own.get(session)
    if own is None:
        own = _own[session] = OwnWorkplace(str(session.cwd), [str(each) for each in session.directories], LIMITS)
    return own


# -- at the client -----------------------------------------------------------------------------------------


async def _run_there(turn: Turn, params: dict[str, Any], call: ToolCall | None) -> Ran:
    """In a terminal of the client."""
    named = {"terminalId": _text(await _made(turn, params), "terminalId")}
    try:
        if call is not None:
            await call.terminal(named["terminalId"])
        ended = await turn.request(TERMINAL_WAIT_FOR_EXIT, named)
        told = await turn.request(TERMINAL_OUTPUT, named)
    except BaseException:
        await _let_go(turn, TERMINAL_KILL, named)
        raise
    finally:
        await _let_go(turn, TERMINAL_RELEASE, named)
    return Ran(
        exit_code=_maybe(ended.get("exitCode"), int),
        signal=_maybe(ended.get("signal"), str),
        output=_text(told, "output"),
        truncated=told.get("truncated") is True,
    )


async def _made(turn: Turn, params: dict[str, Any]) -> dict[str, Any]:
    """The new terminal. A cancelled call still waits for its name, for a while: without it nobody can end what runs
    there, and a request that is taken back may have been done."""
    made: dict[str, Any] | TurnwireError | None = None
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope(shield=True) as waiting:
            tasks.start_soon(_hurry, waiting)
            try:
                made = await turn.request(TERMINAL_CREATE, params)
            except TurnwireError as error:
                # Raised in here it would come out wrapped in a group.
                made = error
        tasks.cancel_scope.cancel()
    if isinstance(made, TurnwireError):
        raise made
    if made is None:
        await checkpoint()
        raise AssertionError("only a cancelled call gives up waiting")
    return made


async def _hurry(waiting: anyio.CancelScope) -> None:
    """Once cancelled, give the wait a bound."""
    try:
        await anyio.sleep_forever()
    finally:
        waiting.deadline = anyio.current_time() + MADE_S


async def _let_go(turn: Turn, method: str, named: dict[str, Any]) -> None:
    """Also when the turn is being stopped. A client that refuses, or has left, has let go already."""
    with anyio.move_on_after(LET_GO_S, shield=True), suppress(TurnwireError):
        await turn.request(method, named)


def _text(result: dict[str, Any], name: str) -> str:
    value = result.get(name)
    if not isinstance(value, str):
        raise RemoteProtocolError(f"the client's answer has no text in `{name}`")
    return value


def _maybe(value: object, kind: type[Any]) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


# -- on this machine ---------------------------------------------------------------------------------------


async def _run_here(turn: Turn, params: dict[str, Any], call: ToolCall | None) -> Ran:
    """In a process of our own, shown as a terminal of the agent."""

    async def run(heard: Heard | None) -> Ran:
        return await _own_of(turn).run(
            params["command"],
            params["args"],
            cwd=params["cwd"],
            env={each["name"]: each["value"] for each in params["env"]},
            output_bytes=params["outputByteLimit"],
            heard=heard,
        )

    if call is None:
        return await run(None)
    line = shlex.join((params["command"], *params["args"])) if params["args"] else params["command"]
    return await show_terminal(turn, call, line, params["cwd"], run)


async def show_terminal(
    turn: Turn, call: ToolCall, line: str, cwd: str, run: Callable[[Heard], Awaitable[Ran]]
) -> Ran:
    """Run a command of ours, and show it as a terminal of the agent in its tool call."""
    named = {"terminalId": new_terminal_id()}
    turn.publish({"sessionUpdate": "terminal_update", **named, "command": line, "cwd": cwd})
    call.show({"type": "terminal", **named})

    async def heard(text: str) -> None:
        piece = base64.b64encode(text.encode()).decode()
        await turn.publish({"sessionUpdate": "terminal_output_chunk", **named, "data": piece})

    status: dict[str, Any] = {"signal": "SIGKILL"}
    try:
        ran = await run(heard)
        ended = {"exitCode": ran.exit_code, "signal": ran.signal}
        status = {name: value for name, value in ended.items() if value is not None}
        return ran
    finally:
        # Only enqueued: the turn may be ending.
        turn.publish({"sessionUpdate": "terminal_update", **named, "exitStatus": status})


class OwnWorkplace:
    """Files and commands of one session. Made without a look at the disk."""

    def __init__(self, cwd: str, directories: Sequence[str] = (), limits: Limits | None = None) -> None:
        """Raises `RequestRefused` if a directory is not an absolute path."""
        self._limits = limits or Limits()
        self._threads = CapacityLimiter(self._limits.file_threads)
        self.roots = Roots(cwd, directories)
        self._files = Files(self.roots, self._limits, self._threads)

    async def read_file(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """A text file, or `limit` lines of it from `line` on. Raises `RequestRefused`."""
        return await self._files.read_text_file(path, line, limit)

    async def write_file(self, path: str, text: str) -> None:
        """Create or replace a file, whole or not at all. Raises `RequestRefused`."""
        await self._files.write_text_file(path, text)

    async def run(
        self,
        command: str,
        arguments: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        output_bytes: int,
        heard: Heard | None = None,
    ) -> Ran:
        """Run a command to its end. Raises `RequestRefused` if it cannot start or its directory is outside."""
        environment = agent_environment(os.environ, additions=[f"{name}={value}" for name, value in env.items()])
        words, where = await to_thread.run_sync(
            prepare, self.roots, command, arguments, environment, cwd, limiter=self._threads
        )
        return await self.perform(words, where, environment, NewestOutput(output_bytes), heard)

    async def perform(
        self,
        words: Sequence[str],
        cwd: str,
        environment: Mapping[str, str],
        output: LiveOutput,
        heard: Heard | None = None,
        timeout_s: float | None = None,
    ) -> Ran:
        """Run a program to its end, or until its time is up; with it goes everything that it started.

        Raises `RequestRefused` if it cannot start. When `heard` raises an error of ours, nobody hears the program
        any more: it is ended, and the error raised.
        """
        terminal = start_terminal(words, cwd, environment, 0)
        # Nothing has been read yet: that begins when this task first waits.
        terminal.output = output
        timed_out, failures = False, list[TurnwireError]()
        try:
            await terminal.launched(self._limits.launch_s)
            async with anyio.create_task_group() as tasks:
                if heard is not None:
                    tasks.start_soon(_tell, output, heard, tasks.cancel_scope, failures)
                with anyio.move_on_after(timeout_s) as waiting:
                    await terminal.exited()
                timed_out = waiting.cancelled_caught
                await terminal.stop(self._limits.stop_kill_s)
                if terminal.exit is None:
                    # Something of it hangs in the kernel. What it has printed is all there is.
                    output.end()
        finally:
            await terminal.stop(self._limits.stop_kill_s)
        if failures:
            raise failures[0]
        ended = terminal.exit or TerminalExit()
        return Ran(
            exit_code=ended.exit_code,
            signal=ended.signal,
            output=output.text(),
            truncated=output.is_truncated,
            timed_out=timed_out,
        )


# -- what a command prints, told while it comes ------------------------------------------------------------


class LiveOutput(Output, ABC):
    """Output that is told piece by piece while it comes. A subclass says what of it is told, and when."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.has_ended = False
        self._news = anyio.Event()

    def end(self) -> None:
        super().end()
        self.has_ended = True
        self._news.set()

    @abstractmethod
    def take(self) -> str:
        """What was not told yet; with `has_ended` all that is left."""

    def wake(self) -> None:
        """There is something to take."""
        self._news.set()

    async def tell(self, heard: Heard) -> None:
        """Tell it as it comes, and return when all is told. Waits for one who is slow to hear."""
        is_last = False
        while not is_last:
            await self._news.wait()
            self._news = anyio.Event()
            is_last = self.has_ended
            if text := self.take():
                await heard(text)


class NewestOutput(LiveOutput):
    """The newest part is kept. What is not heard in time is cut like the whole."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._fresh = Output(max_bytes)
        self._max = max_bytes

    def take(self) -> str:
        taken, self._fresh = self._fresh, Output(self._max)
        return f"[...]\n{taken.text()}" if taken.is_truncated else taken.text()

    def _keep(self, text: str) -> None:
        super()._keep(text)
        # Whole characters only, so the decoder of each buffer starts and ends clean.
        self._fresh.feed(text.encode())
        self.wake()


async def _tell(output: LiveOutput, heard: Heard, scope: anyio.CancelScope, failures: list[TurnwireError]) -> None:
    """The error is handed over, not raised: out of a task group it would come wrapped."""
    try:
        await output.tell(heard)
    except TurnwireError as error:
        failures.append(error)
        scope.cancel()
