"""A client on the official Python SDK, ACP v2. Runs in the environment `.peers/py-v2`, as a program."""
# The SDK is installed in a separate environment, so its types are unknown here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio

from acp.experimental import v2
from acp.experimental.v2 import schema
from acp_py import Noted, allowing, tour


class Client:
    """The methods that the agent may call."""

    def __init__(self, noted: Noted, *ends) -> None:
        self.noted = noted
        self.connection = v2.connect_to_agent(self, *ends, observers=[noted.observe])

    async def session_update(self, session_id, update, **kwargs) -> None:
        self.noted.handle(update)

    async def request_permission(self, session_id, title, options, description=None, subject=None, **kwargs):
        outcome = schema.SelectedPermissionOutcomeVariant(outcome="selected", option_id=allowing(options))
        return schema.RequestPermissionResponse(outcome=outcome)

    async def new(self, cwd: str) -> str:
        return (await self.connection.new_session(cwd=cwd, mcp_servers=[])).session_id

    async def prompt(self, session_id: str, text: str) -> None:
        """Prompt, and wait for the end of the turn: the answer to the prompt is not it."""
        block = schema.TextContentBlock(type="text", text=text)
        message_id = (await self.connection.prompt(session_id=session_id, prompt=[block])).message_id
        await self.noted.until(lambda: self.noted.is_over(message_id))

    async def cancel(self, session_id: str) -> None:
        await self.connection.cancel_session(session_id=session_id)

    async def restore(self, session_id: str, cwd: str) -> None:
        start = schema.ReplayFromStartVariant(type="start")
        await self.connection.resume_session(session_id=session_id, cwd=cwd, mcp_servers=[], replay_from=start)


async def connected(noted: Noted, *ends) -> Client:
    client = Client(noted, *ends)
    info = schema.Implementation(name="acp_py_v2", version="1")
    await client.connection.initialize(protocol_version=2, info=info, capabilities=schema.ClientCapabilities())
    return client


if __name__ == "__main__":
    asyncio.run(tour(connected))
