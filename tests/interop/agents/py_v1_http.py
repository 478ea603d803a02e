"""The agent of `py_v1.py` with the HTTP and WebSocket server of the official Python SDK. Prints its port.

Its arguments are the folder for its sessions and the packages of an environment with an HTTP server: the SDK's own
has none.
"""
# The SDK is installed in a separate environment, so its types are unknown here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from acp.http.asgi import create_asgi_app
from py_v1 import Agent


def new_agent(connection: object) -> Agent:
    agent = Agent(Path(sys.argv[1]))
    agent.on_connect(connection)
    return agent


async def main() -> None:
    sys.path.append(sys.argv[2])
    import uvicorn

    config = uvicorn.Config(create_asgi_app(new_agent), host="127.0.0.1", port=0, log_level="error", loop="asyncio")
    listener = config.bind_socket()
    # A client that reads the port may connect at once.
    listener.listen()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    asyncio.run(main())
