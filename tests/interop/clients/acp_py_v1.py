"""A client on the official Python SDK, ACP v1. Runs in `.peers/py-v1` and in `.peers/py-v2`, as a program."""
# The SDK is installed in a separate environment, so its types are unknown here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio

import acp
from acp import schema
from acp_py import Noted, allowing, tour


class Client(acp.Client):
    """The methods that the agent may call."""

    def __init__(self, noted: Noted, *ends) -> None:
        self.noted = noted
        self.connection = acp.connect_to_agent(self, *ends, observers=[noted.observe])

    def on_connect(self, conn) -> None:
        """It is known already."""

    async def session_update(self, session_id, update, **kwargs) -> None:
        self.noted.handle(update)

    async def request_permission(self, session_id, tool_call, options, **kwargs):
        return schema.RequestPermissionResponse(
            outcome=schema.AllowedOutcome(outcome="selected", option_id=allowing(options))
        )

    async def ext_notification(self, method, params) -> None:
        """Ignore extensions: this client knows none."""

    async def new(self, cwd: str) -> str:
        return (await self.connection.new_session(cwd=cwd, mcp_servers=[])).session_id

    async def prompt(self, session_id: str, text: str) -> None:
        block = schema.TextContentBlock(type="text", text=text)
        await self.connection.prompt(session_id=session_id, prompt=[block])

    async def cancel(self, session_id: str) -> None:
        await self.connection.cancel(session_id=session_id)

    async def restore(self, session_id: str, cwd: str) -> None:
        await self.connection.load_session(cwd=cwd, session_id=session_id, mcp_servers=[])


async def connected(noted: Noted, *ends) -> Client:
    client = Client(noted, *ends)
    info = schema.Implementation(name="acp_py_v1", version="1")
    await client.connection.initialize(
        protocol_version=1, client_capabilities=schema.ClientCapabilities(), client_info=info
    )
    return client


if __name__ == "__main__":
    asyncio.run(tour(connected))
