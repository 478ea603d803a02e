"""A program that has turnwire in its own service, on a loop that it began with `asyncio.run`; for `test_embedding`.

    python -m tests.server.embedding uvicorn|listen FOLDER

It serves below `/agents`, is its own client over REST, the event stream and a WebSocket, and prints the responses.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from websockets.asyncio.client import connect as connect_socket

import turnwire
from turnwire.hosting.source import ProcessSource
from turnwire.limits import Limits
from turnwire.server.app import create_app
from turnwire.server.daemon import open_daemon
from turnwire.server.listener import listen
from turnwire.server.settings.declared import Settings
from turnwire_testing.patience import WAIT_S

TOKEN = "tw_" + "x" * 43
AGENT = [sys.executable, "-m", "turnwire_testing.agent"]


def service(folder: Path) -> Starlette:
    """Build the service as in docs/rest.md."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        settings = Settings(data=folder / "data", cwd=(folder,), token=TOKEN)
        limits = Limits()
        async with open_daemon(settings, limits, ProcessSource(AGENT, limits=limits)) as daemon:
            app.mount("/agents", create_app(daemon))
            yield
            await daemon.drain()

    return Starlette(lifespan=lifespan)


@asynccontextmanager
async def with_uvicorn(folder: Path) -> AsyncGenerator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(service(folder), loop="asyncio", log_level="warning", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve([listener]))
            while not server.started:
                await checkpoint()
            yield f"127.0.0.1:{listener.getsockname()[1]}"
            server.should_exit = True


@asynccontextmanager
async def with_listen(folder: Path) -> AsyncGenerator[str]:
    app, stop = service(folder), anyio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with app.router.lifespan_context(app), asyncio.TaskGroup() as tasks:
        tasks.create_task(listen(app, host="127.0.0.1", port=0, ready=ready.set_result, stop=stop))
        yield (await ready).removeprefix("http://")
        stop.set()


async def over_the_sdk(host: str, folder: Path) -> str:
    async with turnwire.connect(f"http://{host}/agents", token=TOKEN) as client:
        session = await client.new_session(str(folder))
        result = await session.prompt("say 3000 a")
        return f"{result.stop_reason} {len(result.text)}"


async def over_a_socket(host: str, folder: Path) -> str:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    async with connect_socket(f"ws://{host}/agents/acp", additional_headers=bearer) as acp:

        async def ask(request_id: int, method: str, **params: Any) -> dict[str, Any]:
            await acp.send(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}))
            while (answer := json.loads(await acp.recv())).get("id") != request_id:
                pass
            return answer["result"]

        await ask(1, "initialize", protocolVersion=1, clientCapabilities={})
        session_id = (await ask(2, "session/new", cwd=str(folder), mcpServers=[]))["sessionId"]
        prompt = [{"type": "text", "text": "say 3000 b"}]
        ended = await ask(3, "session/prompt", sessionId=session_id, prompt=prompt)
        return str(ended["stopReason"])


async def main(way: str, folder: Path) -> None:
    async with asyncio.timeout(WAIT_S), with_listen(folder) if way == "listen" else with_uvicorn(folder) as host:
        for ended in (await over_the_sdk(host, folder), await over_a_socket(host, folder)):
            sys.stdout.write(f"{ended}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
