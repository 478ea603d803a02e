"""An editor on the official Python SDK, ACP v1. Runs in `.peers/py-v1`.

Its arguments are a folder, a session's id or `-` for a new one, and the agent's command; it prints its observations
as one line of JSON. In a new session it answers a request and cancels a turn; an old one it loads and continues.
"""
# The SDK is installed in a separate environment, so its types are unknown here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import os
import sys

import acp
from acp import schema


class Editor(acp.Client):
    """An editor that receives updates and approves requests."""

    def __init__(self) -> None:
        self.text = ""
        self.asked = 0
        self.waits = asyncio.Event()

    async def session_update(self, session_id, update, **kwargs) -> None:
        if update.session_update == "agent_message_chunk":
            self.text += update.content.text
            if "waiting" in self.text:
                self.waits.set()

    async def request_permission(self, session_id, tool_call, options, **kwargs):
        self.asked += 1
        chosen = schema.AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        return acp.RequestPermissionResponse(outcome=chosen)


async def main(cwd: str, session_id: str, *command: str) -> None:
    editor, stops = Editor(), []
    async with acp.spawn_agent_process(editor, *command, cwd=cwd, env=dict(os.environ)) as (agent, _):

        async def prompt(text: str) -> None:
            answer = await agent.prompt(session_id=session_id, prompt=[acp.text_block(text)])
            stops.append(answer.stop_reason)

        hello = await agent.initialize(protocol_version=1)
        if session_id == "-":
            session_id = (await agent.new_session(cwd=cwd, mcp_servers=[])).session_id
            await prompt("ask edit allow_once,reject_once")
            turn = asyncio.ensure_future(prompt("say 1 waiting\nnever"))
            await editor.waits.wait()
            await agent.cancel(session_id=session_id)
            await turn
        else:
            await agent.load_session(cwd=cwd, session_id=session_id, mcp_servers=[])
            await prompt("say 1 more")
    found = {"version": hello.protocol_version, "session": session_id, "stops": stops, "asked": editor.asked}
    sys.stdout.write(json.dumps({**found, "text": editor.text}))


asyncio.run(main(*sys.argv[1:]))
