"""Commands with which the agent asks its client for something and says what came back.

Each function does one command in the `Work` it is given. What the client does not offer is not asked for.
"""

from __future__ import annotations

import shlex

import msgspec

from turnwire.testing.scripted import commands as c
from turnwire.testing.scripted.host import Unavailable
from turnwire.testing.scripted.shapes import V2Shapes, member
from turnwire.testing.scripted.speaking import announce_tool_call, run_tool_call
from turnwire.testing.scripted.work import Work, performs


@performs(c.Ask)
async def ask(work: Work, command: c.Ask) -> None:
    await announce_tool_call(work, command.id)
    params = work.shapes.permission(work.session.id, command.id, command.options)
    answer = await work.ask("session/request_permission", params)
    is_selected = member(answer, "outcome", "outcome") == "selected"
    option = member(answer, "outcome", "optionId") if is_selected else None
    # An option that was not offered is no approval.
    if option in command.options and str(option).startswith("allow"):
        await run_tool_call(work, command.id)
    else:
        await work.update(work.shapes.tool_status(command.id, "failed"))
    await work.say("cancelled" if option is None else f"selected {option}")


@performs(c.Read)
async def read(work: Work, command: c.Read) -> None:
    _require(work, work.offer.reads_files, "fs.readTextFile")
    answer = await work.ask("fs/read_text_file", {"sessionId": work.session.id, "path": command.path})
    await work.say(member(answer, "content") or "")


@performs(c.Write)
async def write(work: Work, command: c.Write) -> None:
    _require(work, work.offer.writes_files, "fs.writeTextFile")
    params = {"sessionId": work.session.id, "path": command.path, "content": command.text}
    await work.ask("fs/write_text_file", params)
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
    created = await work.ask("terminal/create", {**session, "command": program, "args": args})
    terminal_id = {**session, "terminalId": member(created, "terminalId")}
    await work.ask("terminal/wait_for_exit", terminal_id)
    shown = await work.ask("terminal/output", terminal_id)
    await work.ask("terminal/release", terminal_id)
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
    answer = await work.ask("elicitation/create", params)
    content = msgspec.json.encode(member(answer, "content") or {}).decode()
    await work.say(f"elicited {member(answer, 'action')} {content}")


def _require(work: Work, offered: bool, capability: str) -> None:
    if isinstance(work.shapes, V2Shapes):
        raise Unavailable("v2 has no such client method")
    if not offered:
        raise Unavailable(f"the client does not offer {capability}")
