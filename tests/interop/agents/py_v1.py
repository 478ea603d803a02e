"""An agent on the official Python SDK, ACP v1. Runs in the environment `.peers/py-v1`, as a program.

Its argument is the folder where it stores its sessions, so that a second process can load those of the first. It
executes the first word of a prompt; `words.md` in this folder lists the words.
"""
# The SDK is installed in a separate environment, so its types are unknown here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from uuid import uuid4

import acp
from acp import schema

OPTIONS = [
    schema.PermissionOption(option_id="yes", name="Do it", kind="allow_once"),
    schema.PermissionOption(option_id="no", name="Leave it", kind="reject_once"),
]


class Agent(acp.Agent):
    """One agent, many sessions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stops: dict[str, asyncio.Event] = {}

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    async def initialize(self, protocol_version, client_capabilities=None, client_info=None, **kwargs):
        return acp.InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_capabilities=schema.AgentCapabilities(load_session=True),
            agent_info=schema.Implementation(name="py-v1", version="1"),
        )

    async def new_session(self, cwd, mcp_servers=None, **kwargs):
        session_id = uuid4().hex
        self._file(session_id).touch()
        return acp.NewSessionResponse(session_id=session_id)

    async def load_session(self, cwd, session_id, mcp_servers=None, **kwargs):
        if not self._file(session_id).exists():
            raise acp.RequestError.resource_not_found(session_id)
        for role, text in self._history(session_id):
            say = acp.update_user_message_text if role == "user" else acp.update_agent_message_text
            await self._client.session_update(session_id, say(text))
        return acp.LoadSessionResponse()

    async def cancel(self, session_id, **kwargs):
        if session_id in self._stops:
            self._stops[session_id].set()

    async def prompt(self, session_id, prompt, **kwargs):
        text = "".join(block.text for block in prompt if block.type == "text")
        self._remember(session_id, "user", text)
        self._stops[session_id] = asyncio.Event()
        match text.split(" ", 1)[0]:
            case "edit":
                return await self._edit(session_id)
            case "wait":
                await self._say(session_id, "waiting")
                await self._stops[session_id].wait()
                return acp.PromptResponse(stop_reason="cancelled")
            case "count":
                heard = [role for role, _ in self._history(session_id) if role == "user"]
                await self._say(session_id, f"{len(heard)} prompts")
            case "pid":
                await self._say(session_id, str(os.getpid()))
            case "exit":
                sys.stderr.write("py-v1 gives up\n")
                sys.stderr.flush()
                os._exit(int(text.split()[1]))
            case _:
                for piece in ("You said: ", text, "."):
                    await self._say(session_id, piece)
        return acp.PromptResponse(stop_reason="end_turn")

    async def _edit(self, session_id: str):
        call = acp.start_edit_tool_call("edit-1", "Edit a file", "/tmp/file", "new text")
        await self._client.session_update(session_id, call)
        asked = schema.ToolCallUpdate(tool_call_id="edit-1", title="Edit a file")
        answer = await self._client.request_permission(session_id, asked, OPTIONS)
        if answer.outcome.outcome == "cancelled":
            return acp.PromptResponse(stop_reason="cancelled")
        is_allowed = answer.outcome.option_id == "yes"
        status = "completed" if is_allowed else "failed"
        await self._client.session_update(session_id, acp.update_tool_call("edit-1", status=status))
        await self._say(session_id, "edited" if is_allowed else "left alone")
        return acp.PromptResponse(stop_reason="end_turn")

    async def _say(self, session_id: str, text: str) -> None:
        self._remember(session_id, "agent", text)
        await self._client.session_update(session_id, acp.update_agent_message_text(text))

    def _file(self, session_id: str) -> Path:
        return self._folder / session_id

    def _remember(self, session_id: str, role: str, text: str) -> None:
        with self._file(session_id).open("a") as file:
            file.write(json.dumps([role, text]) + "\n")

    def _history(self, session_id: str) -> list[tuple[str, str]]:
        return [json.loads(line) for line in self._file(session_id).read_text().splitlines()]


if __name__ == "__main__":
    asyncio.run(acp.run_agent(Agent(Path(sys.argv[1]))))
