"""Shared code of the workspace tests: requests as an agent sends them, and reading the errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from turnwire.errors import RequestRefused
from turnwire.hosting.services import Workspace
from turnwire.limits import Limits
from turnwire.wire.jsonrpc import raw
from turnwire_testing.patience import WAIT_S


@asynccontextmanager
async def workspace_in(
    cwd: Path, *additional: Path, limits: Limits | None = None, environment: dict[str, str] | None = None
) -> AsyncGenerator[Workspace]:
    """Open a workspace whose terminals are gone when the test is over, also when the test fails."""
    workspace = Workspace(str(cwd), [str(each) for each in additional], limits, environment)
    try:
        yield workspace
    finally:
        await workspace.aclose()


async def ask(workspace: Workspace, method: str, **params: Any) -> Any:
    """Return the agent's answer, decoded."""
    with anyio.fail_after(WAIT_S):
        return msgspec.json.decode(await workspace.serve(method, raw({"sessionId": "s", **params})))


async def refused(workspace: Workspace, method: str, **params: Any) -> RequestRefused:
    """Return the agent's error; its message has a remedy and repeats no foreign text."""
    with pytest.raises(RequestRefused) as refusal:
        await ask(workspace, method, **params)
    error = refusal.value
    assert error.context == {"jsonrpc": error.jsonrpc, "reason": error.reason}
    assert "Errno" not in str(error)
    return error


async def read(workspace: Workspace, path: Path | str, **params: Any) -> str:
    return (await ask(workspace, "fs/read_text_file", path=str(path), **params))["content"]


async def write(workspace: Workspace, path: Path | str, content: str) -> None:
    assert await ask(workspace, "fs/write_text_file", path=str(path), content=content) == {}


async def create(workspace: Workspace, command: str, *args: str, **params: Any) -> str:
    answer = await ask(workspace, "terminal/create", command=command, args=list(args), **params)
    return answer["terminalId"]


async def output(workspace: Workspace, terminal_id: str) -> dict[str, Any]:
    return await ask(workspace, "terminal/output", terminalId=terminal_id)


async def exit_of(workspace: Workspace, terminal_id: str) -> dict[str, Any]:
    return await ask(workspace, "terminal/wait_for_exit", terminalId=terminal_id)


async def lines_of(workspace: Workspace, terminal_id: str, count: int) -> list[str]:
    """Return the first lines of a terminal that continues to run."""
    with anyio.fail_after(WAIT_S):
        while (text := (await output(workspace, terminal_id))["output"]).count("\n") < count:
            await checkpoint()
    return text.splitlines()
