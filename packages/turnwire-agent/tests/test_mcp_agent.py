"""The MCP servers of the built-in agent as a process: they go when it is killed, however stubborn they are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.process.starting import needs_linux, watching

from turnwire.hosting.guard import descendants

pytestmark = [pytest.mark.anyio, needs_linux]

OLD = Path(__file__).with_name("agent_kit") / "mcp_old_server.py"
LONG_S = 60.0


@asynccontextmanager
async def agent(folder: Path) -> AsyncGenerator[Process]:
    command = [sys.executable, "-m", "turnwire", "agent", "--model", "ollama:x", "--data", str(folder / "data")]
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


async def ask(process: Process, lines: BufferedByteReceiveStream, number: int, method: str, **params: Any) -> Any:
    assert process.stdin is not None
    frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    await process.stdin.send(json.dumps(frame).encode() + b"\n")
    while True:
        found = json.loads(await lines.receive_until(b"\n", 2**20))
        if found.get("id") == number and "method" not in found:
            return found["result"]


async def test_the_servers_of_a_killed_agent_are_gone(tmp_path: Path) -> None:
    arguments = ["-I", "-S", str(OLD), "stubborn"]
    server: dict[str, Any] = {"name": "old", "command": sys.executable, "args": arguments, "env": []}
    with anyio.fail_after(LONG_S), watching() as tree:
        async with agent(tmp_path) as process:
            assert process.stdout is not None
            lines = BufferedByteReceiveStream(process.stdout)
            await ask(process, lines, 1, "initialize", protocolVersion=1, clientCapabilities={})
            session = (await ask(process, lines, 2, "session/new", cwd=str(tmp_path), mcpServers=[server]))[
                "sessionId"
            ]
            # A command also waits until the servers are connected.
            prompt = [{"type": "text", "text": "/usage"}]
            ended = await ask(process, lines, 3, "session/prompt", sessionId=session, prompt=prompt)
            assert ended["stopReason"] == "end_turn"
            below = descendants(process.pid)
            assert len(below) == 3, "a guard, the server, and its child in a session of its own"
            tree.add(*below)
            process.kill()
            await tree.gone()
