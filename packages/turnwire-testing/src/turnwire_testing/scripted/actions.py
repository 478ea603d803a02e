"""The implementation of each command; its argument is the run of commands (`Work`).

`ACTIONS` is the table; a command that is not possible here raises `Unavailable`.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from itertools import cycle, islice
from typing import TypeVar

import msgspec
from anyio import sleep_forever
from anyio.lowlevel import checkpoint

from turnwire.errors import LimitExceeded
from turnwire.wire.jsonrpc import ErrorObject
from turnwire.wire.methods import (
    ELICITATION_CREATE,
    FS_READ_TEXT_FILE,
    FS_WRITE_TEXT_FILE,
    SESSION_REQUEST_PERMISSION,
    TERMINAL_CREATE,
    TERMINAL_OUTPUT,
    TERMINAL_RELEASE,
    TERMINAL_WAIT_FOR_EXIT,
)
from turnwire_testing.scripted import commands as c
from turnwire_testing.scripted.host import Unavailable
from turnwire_testing.scripted.session import Action, Work
from turnwire_testing.scripted.shapes import MODES, V2Shapes, member, text_block

ECHO_CHUNKS = 3


GARBAGE = (
    b"this is not JSON",
    b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":',
    b'"only a string"',
    b"42",
    b"null",
    b"[]",
    b"\xff\xfe\xfd not UTF-8",
    b'{"jsonrpc":"2.0"}',
    b'{"jsonrpc":"1.0","id":0,"result":{}}',
    b'{"jsonrpc":"2.0","id":true,"result":{}}',
    b'{"jsonrpc":"2.0","id":1.5,"result":{}}',
    b'{"jsonrpc":"2.0","id":{"a":1},"result":{}}',
    b'{"jsonrpc":"2.0","id":"nobody asked","result":{},"error":{"code":1,"message":"both"}}',
)
"""One line of each kind that is not a frame."""

UNKNOWN_ID = "nobody-asked-this"

BREATH = 256
"""The agent yields after this number of chunks of a flood, so that it receives a cancel however fast the link
accepts frames.
"""


C = TypeVar("C", bound=c.Command)

ACTIONS: dict[type[c.Command], Action] = {}
"""The function of each command."""


def performs(
    command: type[C],
) -> Callable[[Callable[[Work, C], Awaitable[None]]], Callable[[Work, C], Awaitable[None]]]:
    """Register the function that does a command."""

    def register(function: Callable[[Work, C], Awaitable[None]]) -> Callable[[Work, C], Awaitable[None]]:
        ACTIONS[command] = function
        return function

    return register


# -- the agent tells -------------------------------------------------------------------------------------


@performs(c.Say)
async def say(work: Work, command: c.Say) -> None:
    for _ in range(command.n):
        await work.say(command.text)


@performs(c.Echo)
async def echo(work: Work, command: c.Echo) -> None:
    size = max(1, -(-len(command.text) // ECHO_CHUNKS))
    for start in range(0, len(command.text), size):
        await work.say(command.text[start : start + size])


@performs(c.Think)
async def think(work: Work, command: c.Think) -> None:
    await work.say(command.text, "agent_thought")


@performs(c.User)
async def user(work: Work, command: c.User) -> None:
    for update in work.shapes.user_message([text_block(command.text)], work.session.new_id("message")):
        await work.update(update)


@performs(c.Plan)
async def plan(work: Work, command: c.Plan) -> None:
    await work.update(work.shapes.plan(command.entries))


async def announce_tool_call(work: Work, tool_call_id: str, kind: str = "other", title: str = "") -> None:
    """Show a tool call as pending, unless the client has seen it."""
    if tool_call_id not in work.session.tool_calls:
        work.session.tool_calls.add(tool_call_id)
        await work.update(work.shapes.tool_call(tool_call_id, kind, title or tool_call_id))


async def run_tool_call(work: Work, tool_call_id: str) -> None:
    await work.update(work.shapes.tool_status(tool_call_id, "in_progress"))
    await work.update(work.shapes.tool_status(tool_call_id, "completed", f"{tool_call_id} is done"))


@performs(c.Tool)
async def tool(work: Work, command: c.Tool) -> None:
    await announce_tool_call(work, command.id, command.kind, command.title)
    await run_tool_call(work, command.id)


@performs(c.ToolOpen)
async def tool_open(work: Work, command: c.ToolOpen) -> None:
    await announce_tool_call(work, command.id)


@performs(c.Usage)
async def usage(work: Work, command: c.Usage) -> None:
    await work.update({"sessionUpdate": "usage_update", "used": command.used, "size": command.size})


@performs(c.Mode)
async def mode(work: Work, command: c.Mode) -> None:
    if command.id not in MODES:
        raise Unavailable(f"there is no mode {command.id!r}; the modes are {', '.join(MODES)}")
    work.session.config["mode"] = command.id
    await work.update(work.shapes.mode_changed(work.session.config))


@performs(c.Title)
async def title(work: Work, command: c.Title) -> None:
    work.session.title = command.text
    await work.update({"sessionUpdate": "session_info_update", "title": command.text})


@performs(c.Commands)
async def available_commands(work: Work, command: c.Commands) -> None:
    listed = work.shapes.commands(command.names)
    await work.update({"sessionUpdate": "available_commands_update", "availableCommands": listed})


@performs(c.Update)
async def update(work: Work, command: c.Update) -> None:
    await work.update(command.json.encode())


@performs(c.Notify)
async def notify(work: Work, command: c.Notify) -> None:
    line = b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (_quoted(command.method), command.json.encode())
    await work.peer.send_line(line)


def _quoted(text: str) -> bytes:
    return msgspec.json.encode(text)


# -- requests to the client, whose results are sent as text; only offered methods are called -------------


@performs(c.Ask)
async def ask(work: Work, command: c.Ask) -> None:
    await announce_tool_call(work, command.id)
    params = work.shapes.permission(work.session.id, command.id, command.options)
    answer = await work.ask(SESSION_REQUEST_PERMISSION, params)
    is_selected = member(answer, "outcome", "outcome") == "selected"
    option = member(answer, "outcome", "optionId") if is_selected else None
    # An option that was not offered is no approval.
    if option in command.options and str(option).startswith("allow"):
        await run_tool_call(work, command.id)
    else:
        await work.update(work.shapes.tool_status(command.id, "failed"))
    await work.say("cancelled" if option is None else f"selected {option}")


@performs(c.Child)
async def child(work: Work, command: c.Child) -> None:
    _require_v2(work)
    await (await work.child(command.name)).do([command.command])


@performs(c.ChildRests)
async def child_rests(work: Work, command: c.ChildRests) -> None:
    shapes = _require_v2(work)
    inner = await work.child(command.name)
    await inner.update(shapes.state("idle", "end_turn"), kept=False)


def _require_v2(work: Work) -> V2Shapes:
    if not isinstance(work.shapes, V2Shapes):
        raise Unavailable("child sessions are played in v2")
    return work.shapes


@performs(c.Read)
async def read(work: Work, command: c.Read) -> None:
    _require(work, work.offer.reads_files, "fs.readTextFile")
    answer = await work.ask(FS_READ_TEXT_FILE, {"sessionId": work.session.id, "path": command.path})
    await work.say(member(answer, "content") or "")


@performs(c.Write)
async def write(work: Work, command: c.Write) -> None:
    _require(work, work.offer.writes_files, "fs.writeTextFile")
    params = {"sessionId": work.session.id, "path": command.path, "content": command.text}
    await work.ask(FS_WRITE_TEXT_FILE, params)
    await work.say(f"wrote {command.path}")


@performs(c.Terminal)
async def terminal(work: Work, command: c.Terminal) -> None:
    if isinstance(work.shapes, V2Shapes):
        line = shlex.join(command.words)
        life = work.shapes.terminal(work.session.new_id("terminal"), line, work.session.cwd, f"$ {line}\n".encode())
        for update in life:
            await work.update(update)
        return
    _require(work, work.offer.has_terminals, "terminal")
    program, *args = command.words
    session = {"sessionId": work.session.id}
    created = await work.ask(TERMINAL_CREATE, {**session, "command": program, "args": args})
    terminal_id = {**session, "terminalId": member(created, "terminalId")}
    await work.ask(TERMINAL_WAIT_FOR_EXIT, terminal_id)
    shown = await work.ask(TERMINAL_OUTPUT, terminal_id)
    await work.ask(TERMINAL_RELEASE, terminal_id)
    await work.say(member(shown, "output") or "")


@performs(c.Elicit)
async def elicit(work: Work, command: c.Elicit) -> None:
    if not work.offer.shows_forms:
        raise Unavailable("the client does not offer elicitation.form")
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    params = {
        "sessionId": work.session.id,
        "message": command.message,
        "mode": "form",
        "requestedSchema": schema,
    }
    answer = await work.ask(ELICITATION_CREATE, params)
    content = msgspec.json.encode(member(answer, "content") or {}).decode()
    await work.say(f"elicited {member(answer, 'action')} {content}")


def _require(work: Work, offered: bool, capability: str) -> None:
    if isinstance(work.shapes, V2Shapes):
        raise Unavailable("v2 has no such client method")
    if not offered:
        raise Unavailable(f"the client does not offer {capability}")


# -- when things happen and how a turn ends: mostly noted for `Turns` to do later ------------------------


@performs(c.Gate)
async def gate(work: Work, command: c.Gate) -> None:
    await work.host.wait_at_gate(command.name)


@performs(c.Never)
async def never(work: Work, command: c.Never) -> None:
    await sleep_forever()


@performs(c.IgnoreCancel)
async def ignore_cancel(work: Work, command: c.IgnoreCancel) -> None:
    work.ignores_cancel = True


@performs(c.OnCancel)
async def on_cancel(work: Work, command: c.OnCancel) -> None:
    work.on_cancel.append(command.command)


@performs(c.Stop)
async def stop(work: Work, command: c.Stop) -> None:
    work.stop_reason = command.reason


@performs(c.Error)
async def error(work: Work, command: c.Error) -> None:
    work.error = ErrorObject(command.code, command.message)


@performs(c.Reject)
async def reject(work: Work, command: c.Reject) -> None:
    raise Unavailable("reject is only possible as the first command of a prompt")


@performs(c.After)
async def after(work: Work, command: c.After) -> None:
    work.after.append(command.command)


@performs(c.IdleSpeak)
async def idle_speak(work: Work, command: c.IdleSpeak) -> None:
    work.idle.append(command.command)


@performs(c.AgentTurn)
async def agent_turn(work: Work, command: c.AgentTurn) -> None:
    if work.foreground:
        work.idle.append(command)
        return
    shapes = work.shapes if isinstance(work.shapes, V2Shapes) else None
    if shapes is not None:
        await work.update(shapes.state("running"), kept=False)
    for number in range(1, command.n + 1):
        await work.say(f"of my own accord {number}")
    if shapes is not None:
        await work.update(shapes.state("idle", "end_turn"), kept=False)


@performs(c.DuplicateAnswer)
async def duplicate_answer(work: Work, command: c.DuplicateAnswer) -> None:
    work.answers = 2


@performs(c.Repeat)
async def repeat(work: Work, command: c.Repeat) -> None:
    for _ in range(command.n):
        await work.do([command.command])


# -- the agent misbehaves; nothing of it is kept in the session's history --------------------------------


@performs(c.Raw)
async def raw(work: Work, command: c.Raw) -> None:
    await work.peer.send_line(command.line.encode())


@performs(c.Garbage)
async def garbage(work: Work, command: c.Garbage) -> None:
    for line in islice(cycle(GARBAGE), command.n or len(GARBAGE)):
        await work.peer.send_line(line)


@performs(c.AnswerUnknownId)
async def answer_unknown_id(work: Work, command: c.AnswerUnknownId) -> None:
    await work.peer.respond(UNKNOWN_ID, {"stopReason": "end_turn"})


@performs(c.Bigline)
async def bigline(work: Work, command: c.Bigline) -> None:
    head, tail = _around_text(work)
    padding = max(0, command.size - len(head) - len(tail))
    await work.peer.send_line(b"%b%b%b" % (head, b"x" * padding, tail))


@performs(c.Flood)
async def flood(work: Work, command: c.Flood) -> None:
    head, tail = _around_text(work)
    tail = b" " + b"x" * command.size + tail if command.size else tail
    link = work.peer.link
    for number in range(command.n):
        line = b"%b%d%b" % (head, number, tail)
        # A wait costs several times a write, so wait only when there is no room.
        try:
            link.send_nowait(line)
        except LimitExceeded:
            await link.send(line)
        if number % BREATH == 0:
            await checkpoint()


@performs(c.Exit)
async def exit_(work: Work, command: c.Exit) -> None:
    await work.host.exit(command.code)


@performs(c.Signal)
async def signal(work: Work, command: c.Signal) -> None:
    await work.host.die_by(command.name)


@performs(c.IgnoreSignal)
async def ignore_signal(work: Work, command: c.IgnoreSignal) -> None:
    work.host.ignore(command.name)


@performs(c.Stderr)
async def stderr(work: Work, command: c.Stderr) -> None:
    work.host.complain(command.text)


@performs(c.Fork)
async def fork(work: Work, command: c.Fork) -> None:
    await work.say(str(work.host.fork(hold_pipes=command.pipes == "held")))


def _around_text(work: Work) -> tuple[bytes, bytes]:
    """Return a message chunk's frame, split where its text is inserted."""
    mark = "\x1f"
    chunk = work.shapes.chunk("agent_message", mark, work.message_id("agent_message"))
    head, _, tail = work.session.line(msgspec.json.encode(chunk)).partition(msgspec.json.encode(mark)[1:-1])
    return head, tail
