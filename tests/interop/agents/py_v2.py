"""An agent on the official Python SDK, ACP v2. Runs in the environment `.peers/py-v2`, as a program.

Its argument is the folder where it stores its sessions, so that a second process can resume those of the first. It
executes the first word of a prompt; `words.md` in this folder lists the words. A prompt is answered once it is
inserted, and its work continues in a task.
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

from acp.exceptions import RequestError
from acp.experimental import v2
from acp.experimental.v2 import schema

OPTIONS = [
    schema.PermissionOption(option_id="yes", name="Do it", kind="allow_once"),
    schema.PermissionOption(option_id="no", name="Leave it", kind="reject_once"),
]


def block(text: str) -> schema.TextContentBlock:
    return schema.TextContentBlock(type="text", text=text)


class Agent:
    """One agent, many sessions."""

    def __init__(self, folder: Path, tasks: asyncio.TaskGroup) -> None:
        self._folder = folder
        self._tasks = tasks
        self._stops: dict[str, asyncio.Event] = {}

    def on_connect(self, conn: v2.AgentSideConnection) -> None:
        self._client = conn

    async def initialize(self, protocol_version, info, capabilities=None, **kwargs):
        return schema.InitializeResponse(
            protocol_version=v2.PROTOCOL_VERSION,
            info=schema.Implementation(name="py-v2", version="1"),
            capabilities=schema.AgentCapabilities(session=schema.SessionCapabilities()),
        )

    async def new_session(self, cwd, mcp_servers=None, **kwargs):
        session_id = uuid4().hex
        self._file(session_id).touch()
        return schema.NewSessionResponse(session_id=session_id)

    async def resume_session(self, session_id, cwd, replay_from=None, **kwargs):
        if not self._file(session_id).exists():
            raise RequestError.resource_not_found(session_id)
        if replay_from is not None:
            for role, message_id, text in self._history(session_id):
                make = schema.UserMessageUpdate if role == "user" else schema.AgentMessageUpdate
                kind = "user_message" if role == "user" else "agent_message"
                update = make(session_update=kind, message_id=message_id, content=[block(text)])
                await self._client.session_update(session_id, update)
        await self._idle(session_id, None)
        return schema.ResumeSessionResponse()

    async def cancel_session(self, session_id, **kwargs):
        if session_id in self._stops:
            self._stops[session_id].set()

    async def prompt(self, session_id, prompt, **kwargs):
        text = "".join(each.text for each in prompt if each.type == "text")
        message_id = self._remember(session_id, "user", text)
        update = schema.UserMessageUpdate(session_update="user_message", message_id=message_id, content=prompt)
        await self._client.session_update(session_id, update)
        self._stops[session_id] = asyncio.Event()
        self._tasks.create_task(self._work(session_id, text))
        return schema.PromptResponse(message_id=message_id)

    async def _work(self, session_id: str, text: str) -> None:
        await self._client.session_update(session_id, schema.RunningSessionStateUpdate())
        stop_reason = "end_turn"
        match text.split(" ", 1)[0]:
            case "edit":
                stop_reason = await self._edit(session_id)
            case "wait":
                await self._say(session_id, "waiting")
                await self._stops[session_id].wait()
                stop_reason = "cancelled"
            case "count":
                heard = [role for role, *_ in self._history(session_id) if role == "user"]
                await self._say(session_id, f"{len(heard)} prompts")
            case "pid":
                await self._say(session_id, str(os.getpid()))
            case "exit":
                sys.stderr.write("py-v2 gives up\n")
                sys.stderr.flush()
                os._exit(int(text.split()[1]))
            case _:
                await self._say(session_id, "You said: ", text, ".")
        await self._idle(session_id, stop_reason)

    async def _edit(self, session_id: str) -> str:
        call = schema.SessionToolCallUpdate(
            tool_call_id="edit-1", title="Edit a file", kind="edit", status="pending"
        )
        await self._client.session_update(session_id, call)
        await self._client.session_update(session_id, schema.RequiresActionSessionStateUpdate())
        asked = schema.ToolCallUpdate(tool_call_id="edit-1")
        subject = schema.ToolCallPermissionSubjectVariant(type="tool_call", tool_call=asked)
        answer = await self._client.request_permission(session_id, "Edit a file?", OPTIONS, subject=subject)
        if answer.outcome.outcome == "cancelled":
            return "cancelled"
        await self._client.session_update(session_id, schema.RunningSessionStateUpdate())
        is_allowed = answer.outcome.option_id == "yes"
        done = schema.SessionToolCallUpdate(tool_call_id="edit-1", status="completed" if is_allowed else "failed")
        await self._client.session_update(session_id, done)
        await self._say(session_id, "edited" if is_allowed else "left alone")
        return "end_turn"

    async def _idle(self, session_id: str, stop_reason: str | None) -> None:
        state = (
            schema.IdleSessionStateUpdate()
            if stop_reason is None
            else schema.IdleSessionStateUpdate(stop_reason=stop_reason)
        )
        await self._client.session_update(session_id, state)

    async def _say(self, session_id: str, *pieces: str) -> None:
        message_id = self._remember(session_id, "agent", "".join(pieces))
        for piece in pieces:
            chunk = schema.AgentMessageChunk(
                session_update="agent_message_chunk", message_id=message_id, content=block(piece)
            )
            await self._client.session_update(session_id, chunk)

    def _file(self, session_id: str) -> Path:
        return self._folder / session_id

    def _remember(self, session_id: str, role: str, text: str) -> str:
        message_id = uuid4().hex
        with self._file(session_id).open("a") as file:
            file.write(json.dumps([role, message_id, text]) + "\n")
        return message_id

    def _history(self, session_id: str) -> list[tuple[str, str, str]]:
        return [json.loads(line) for line in self._file(session_id).read_text().splitlines()]


async def main() -> None:
    async with asyncio.TaskGroup() as tasks:
        await v2.run_agent(Agent(Path(sys.argv[1]), tasks))


if __name__ == "__main__":
    asyncio.run(main())
