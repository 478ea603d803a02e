"""The `/acp` measurement with the server of the official Python SDK. Runs in `.peers/py-v1`; prints its port.

Takes the packages of an environment with an HTTP server: the SDK's own has none, so it gets the one that turnwire
has, on the same loop. One agent inside of the server: a prompt `burst N` is N chunks.
"""
# The SDK lives in an environment of its own, so the types of what is imported are not known here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import sys
import uuid

import acp
from acp.http.asgi import create_asgi_app


class Agent(acp.Agent):
    """Says as much as it is told to."""

    def on_connect(self, conn) -> None:
        self._client = conn

    async def initialize(self, protocol_version, client_capabilities=None, client_info=None, **kwargs):
        return acp.InitializeResponse(protocol_version=1)

    async def new_session(self, cwd, mcp_servers=None, **kwargs):
        return acp.NewSessionResponse(session_id=str(uuid.uuid4()))

    async def prompt(self, prompt, session_id, **kwargs):
        for number in range(int(prompt[0].text.split()[1])):
            chunk = acp.update_agent_message_text(f"piece {number:08} of an answer")
            await self._client.session_update(session_id, chunk)
        return acp.PromptResponse(stop_reason="end_turn")


def new_agent(connection: object) -> Agent:
    agent = Agent()
    agent.on_connect(connection)
    return agent


async def main() -> None:
    config = uvicorn.Config(create_asgi_app(new_agent), host="127.0.0.1", port=0, log_level="error")
    listener = config.bind_socket()
    # Who reads the port may come at once.
    listener.listen()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    # Behind its own, so that everything the SDK has is the SDK's.
    sys.path.append(sys.argv[1])
    import uvicorn
    import uvloop

    uvloop.run(main())
