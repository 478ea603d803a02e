"""Files and commands for an agent's author: the client's where it offers them, otherwise the agent's own.

Takes a turn, and what its author wants; gives text and how commands ended. A path may be relative to the session's
working directory. Beyond the session's directories the agent's own refuse; what a client gives is the client's to
decide. A cancelled command is killed, at the client too. With a tool call the output is shown while it is written:
as a terminal of the client, or as one of the agent. Never asks a client for what it did not offer.
"""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import checkpoint

from turnwire.agent.own_workplace import OwnWorkplace, Ran
from turnwire.errors import RemoteProtocolError, TurnwireError
from turnwire.limits import Limits
from turnwire.runtime import new_ids

if TYPE_CHECKING:
    from turnwire.agent.session import Session
    from turnwire.agent.tool_call import ToolCall
    from turnwire.agent.turn import Turn

LIMITS = Limits()

MADE_S, LET_GO_S = 5.0, 2.0
"""For the client, once the turn is being stopped: to name the terminal it is making, and to kill or release it.
Together less than `max_cancel_s`, so that the turn does not end before its command."""

AnyPath: TypeAlias = str | os.PathLike[str]

_own: WeakKeyDictionary[Session, OwnWorkplace] = WeakKeyDictionary()
"""One per session: it fixes the session's directories when they are first used."""


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
    return _text(await turn.request("fs/read_text_file", params), "content")


async def write_file(turn: Turn, path: AnyPath, text: str) -> None:
    """Create or replace a text file. Raises `RequestRefused`."""
    whole = _absolute(turn, path)
    if turn.session.client.fs_write:
        await turn.request("fs/write_text_file", {"path": whole, "content": text})
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


async def _run_there(turn: Turn, params: dict[str, Any], call: ToolCall | None) -> Ran:
    """In a terminal of the client."""
    named = {"terminalId": _text(await _made(turn, params), "terminalId")}
    try:
        if call is not None:
            await call.terminal(named["terminalId"])
        ended = await turn.request("terminal/wait_for_exit", named)
        told = await turn.request("terminal/output", named)
    except BaseException:
        await _let_go(turn, "terminal/kill", named)
        raise
    finally:
        await _let_go(turn, "terminal/release", named)
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
                made = await turn.request("terminal/create", params)
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


async def _run_here(turn: Turn, params: dict[str, Any], call: ToolCall | None) -> Ran:
    """In a process of our own, shown as a terminal of the agent."""
    shown = None if call is None else _Shown(turn, call, params)
    try:
        ran = await _own_of(turn).run(
            params["command"],
            params["args"],
            cwd=params["cwd"],
            env={each["name"]: each["value"] for each in params["env"]},
            output_bytes=params["outputByteLimit"],
            heard=None if shown is None else shown.heard,
        )
    except BaseException:
        if shown is not None:
            shown.end({"signal": "SIGKILL"})
        raise
    if shown is not None:
        status = {"exitCode": ran.exit_code, "signal": ran.signal}
        shown.end({name: value for name, value in status.items() if value is not None})
    return ran


class _Shown:
    """A command of ours in a tool call."""

    def __init__(self, turn: Turn, call: ToolCall, params: dict[str, Any]) -> None:
        self._turn = turn
        self._named = {"terminalId": new_ids.terminal_id()}
        line = shlex.join((params["command"], *params["args"])) if params["args"] else params["command"]
        turn.publish({"sessionUpdate": "terminal_update", **self._named, "command": line, "cwd": params["cwd"]})
        call.show({"type": "terminal", **self._named})

    async def heard(self, text: str) -> None:
        piece = base64.b64encode(text.encode()).decode()
        await self._turn.publish({"sessionUpdate": "terminal_output_chunk", **self._named, "data": piece})

    def end(self, status: dict[str, Any]) -> None:
        """Tell its end. Only enqueued: the turn may be ending."""
        self._turn.publish({"sessionUpdate": "terminal_update", **self._named, "exitStatus": status})


def _own_of(turn: Turn) -> OwnWorkplace:
    session = turn.session
    own = _own.get(session)
    if own is None:
        own = _own[session] = OwnWorkplace(str(session.cwd), [str(each) for each in session.directories], LIMITS)
    return own


def _absolute(turn: Turn, path: AnyPath) -> str:
    return os.path.join(turn.session.cwd, path)


def _text(result: dict[str, Any], name: str) -> str:
    value = result.get(name)
    if not isinstance(value, str):
        raise RemoteProtocolError(f"the client's answer has no text in `{name}`")
    return value


def _maybe(value: object, kind: type[Any]) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None
