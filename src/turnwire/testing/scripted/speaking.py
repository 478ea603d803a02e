"""Commands with which the agent only tells: messages, plans, tool calls, state of the session.

Each function does one command in the `Work` it is given. None of them waits for the client.
"""

from __future__ import annotations

import msgspec

from turnwire.testing.scripted import commands as c
from turnwire.testing.scripted.host import Unavailable
from turnwire.testing.scripted.shapes import MODES, text_block
from turnwire.testing.scripted.work import Work, performs

ECHO_CHUNKS = 3


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
