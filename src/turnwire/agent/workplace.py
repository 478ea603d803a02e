"""Files and commands of a turn: the client's if it offers them, otherwise the agent's own.

Paths may be relative to the session's working directory. The agent's own files are limited to the session's
directories; a client applies its own rules. A cancelled command is killed with its process tree, at the client as
well. With a tool call, output is shown while it is written: in a terminal of the client, or of the agent. A client
is never asked for what it did not offer.
"""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from turnwire.agent.connected_client import Sent
from turnwire.agent.own_workplace import Heard, Ran
from turnwire.agent.tool_call import ToolCall
from turnwire.agent.turn_run import TurnRun
from turnwire.agent.v2_updates import Json
from turnwire.errors import RemoteProtocolError, TurnwireError
from turnwire.hosting.services.terminals import TERMINAL_OUTPUT_BYTES, new_terminal_id
from turnwire.wire.methods import (
    FS_READ_TEXT_FILE,
    FS_WRITE_TEXT_FILE,
    TERMINAL_CREATE,
    TERMINAL_KILL,
    TERMINAL_OUTPUT,
    TERMINAL_RELEASE,
    TERMINAL_WAIT_FOR_EXIT,
)

MADE_S, LET_GO_S = 5.0, 2.0
"""For the client, once the turn is being stopped: to name the terminal it is making, and to kill or release it.
Together less than `max_cancel_s`, so that the turn does not end before its command."""

AnyPath: TypeAlias = str | os.PathLike[str]


async def read_file(turn: TurnRun, path: AnyPath, line: int | None = None, limit: int | None = None) -> str:
    """Return a text file, or `limit` lines of it from `line` on; lines count from 1.

    Raises:
        RequestRefused: The file is outside, missing, too large or not text.
    """
    whole = _absolute(turn, path)
    if not turn.live.session.client.fs_read:
        return await turn.live.own_workplace.read_file(whole, line, limit)
    params: dict[str, Any] = {"path": whole}
    params |= {name: value for name, value in (("line", line), ("limit", limit)) if value is not None}
    return _text(await turn.request(FS_READ_TEXT_FILE, params), "content")


async def write_file(turn: TurnRun, path: AnyPath, text: str) -> None:
    """Create or replace a text file. Raises `RequestRefused`."""
    whole = _absolute(turn, path)
    if turn.live.session.client.fs_write:
        await turn.request(FS_WRITE_TEXT_FILE, {"path": whole, "content": text})
    else:
        await turn.live.own_workplace.write_file(whole, text)


async def run(
    turn: TurnRun,
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
        turn: The turn it belongs to; the command ends with it.
        command: A program, or without arguments a shell line.
        arguments: The program's arguments.
        cwd: Directory to run in; by default the session's working directory.
        env: Variables in addition to the inherited ones.
        call: The tool call that shows the output while the command runs.
        limit: Bytes of output to return; the newest count.

    Raises:
        RequestRefused: It cannot be started, or its directory is outside.
    """
    most = TERMINAL_OUTPUT_BYTES
    params: dict[str, Any] = {
        "command": command,
        "args": list(arguments),
        "cwd": str(turn.live.session.cwd) if cwd is None else _absolute(turn, cwd),
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
        "outputByteLimit": most if limit is None else max(0, min(limit, most)),
    }
    return await (_run_there if turn.live.session.client.terminal else _run_here)(turn, params, call)


def _absolute(turn: TurnRun, path: AnyPath) -> str:
    return os.path.join(turn.live.session.cwd, path)


# -- at the client -----------------------------------------------------------------------------------------


async def _run_there(turn: TurnRun, params: dict[str, Any], call: ToolCall | None) -> Ran:
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


async def _made(turn: TurnRun, params: dict[str, Any]) -> dict[str, Any]:
    """Wait for the new terminal's id. A cancelled call still waits for a while: without the id nobody can end the
    command, and a cancelled request may have been carried out.
    """
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
    """Bound the wait once cancelled."""
    try:
        await anyio.sleep_forever()
    finally:
        waiting.deadline = anyio.current_time() + MADE_S


async def _let_go(turn: TurnRun, method: str, named: dict[str, Any]) -> None:
    """Release the terminal, even while the turn is being stopped. A client that refuses or disconnected has
    released it.
    """
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


async def _run_here(turn: TurnRun, params: dict[str, Any], call: ToolCall | None) -> Ran:
    """In a process of our own, shown as a terminal of the agent."""

    async def run(heard: Heard | None) -> Ran:
        return await turn.live.own_workplace.run(
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
    return await show_terminal(turn.publish, call, line, params["cwd"], run)


async def show_terminal(
    publish: Callable[[Json], Sent], call: ToolCall, line: str, cwd: str, run: Callable[[Heard], Awaitable[Ran]]
) -> Ran:
    """Run a command on this machine and show it as an agent terminal in its tool call. `publish` is the turn's."""
    named = {"terminalId": new_terminal_id()}
    publish({"sessionUpdate": "terminal_update", **named, "command": line, "cwd": cwd})
    call.show({"type": "terminal", **named})

    async def heard(text: str) -> None:
        piece = base64.b64encode(text.encode()).decode()
        await publish({"sessionUpdate": "terminal_output_chunk", **named, "data": piece})

    status: dict[str, Any] = {"signal": "SIGKILL"}
    try:
        ran = await run(heard)
        ended = {"exitCode": ran.exit_code, "signal": ran.signal}
        status = {name: value for name, value in ended.items() if value is not None}
        return ran
    finally:
        # Only enqueued: the turn may be ending.
        publish({"sessionUpdate": "terminal_update", **named, "exitStatus": status})
