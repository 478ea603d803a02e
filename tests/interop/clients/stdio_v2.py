"""An editor on the official Python SDK, ACP v2. Runs in `.peers/py-v2`. Performs the steps of `stdio_v1.py`."""
# The SDK is installed in a separate environment, so its types are unknown here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import os
import sys

from acp.experimental import v2
from acp.experimental.v2 import schema


class Editor(v2.Client):
    """An editor that receives updates and approves requests."""

    def __init__(self) -> None:
        self.text = ""
        self.asked = 0
        self.word: str | None = None
        self.waits = asyncio.Event()
        self.stops: list[str] = []
        self.ended = asyncio.Event()

    async def session_update(self, session_id, update, **kwargs) -> None:
        if update.session_update == "agent_message_chunk":
            self.text += update.content.text
        elif update.session_update == "agent_message":
            self.text += "".join(each.text for each in update.content)
        elif update.session_update == "state_update" and getattr(update, "stop_reason", None):
            # Updates are handled concurrently with the program: an end before the turn's words is that of an
            # earlier one.
            is_ours = self.word is not None and self.word in self.text
            self.stops += [str(update.stop_reason)] if is_ours else []
            self.ended.set()
        if "waiting" in self.text:
            self.waits.set()

    async def end(self, turns: int) -> None:
        while len(self.stops) < turns:
            self.ended.clear()
            await self.ended.wait()

    async def request_permission(self, session_id, title, options, **kwargs):
        self.asked += 1
        chosen = schema.SelectedPermissionOutcomeVariant(outcome="selected", option_id=options[0].option_id)
        return schema.RequestPermissionResponse(outcome=chosen)


async def main(cwd: str, session_id: str, *command: str) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=cwd, env=dict(os.environ))
    editor = Editor()
    async with v2.connect_to_agent(editor, process.stdin, process.stdout) as agent:
        info = schema.Implementation(name="py-v2", version="1")
        hello = await agent.initialize(protocol_version=2, info=info)

        async def prompt(text: str, word: str) -> None:
            editor.word = word
            await agent.prompt(session_id=session_id, prompt=[schema.TextContentBlock(type="text", text=text)])

        if session_id == "-":
            session_id = (await agent.new_session(cwd=cwd, mcp_servers=[])).session_id
            await prompt("ask edit allow_once,reject_once", "selected")
            await editor.end(1)
            await prompt("say 1 waiting\nnever", "waiting")
            await editor.waits.wait()
            await agent.cancel_session(session_id=session_id)
            await editor.end(2)
        else:
            start = schema.ReplayFromStartVariant(type="start")
            await agent.resume_session(session_id=session_id, cwd=cwd, mcp_servers=[], replay_from=start)
            await prompt("say 1 more", "more")
            await editor.end(1)
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()
    found = {"version": hello.protocol_version, "session": session_id, "stops": editor.stops, "asked": editor.asked}
    sys.stdout.write(json.dumps({**found, "text": editor.text}))


asyncio.run(main(*sys.argv[1:]))
