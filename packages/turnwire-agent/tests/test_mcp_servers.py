"""MCP servers of a session: real ones, over stdio and HTTP, well and badly behaved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.process.starting import is_listed, needs_linux

from agent_kit.tool_kit import WAIT_S, Heard, refused, use
from turnwire_agent.mcp_servers import McpServers
from turnwire_agent.tools import Tool
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

FULL = Path(__file__).with_name("agent_kit") / "mcp_full_server.py"
OLD = Path(__file__).with_name("agent_kit") / "mcp_old_server.py"
LONG_S = 60.0
"""The official library takes its time to be imported, twice."""


def full(name: str = "full", **more: Any) -> dict[str, Any]:
    return {"name": name, "command": sys.executable, "args": [str(FULL)], "env": [], **more}


def old(habit: str = "good", name: str = "old", **more: Any) -> dict[str, Any]:
    return {"name": name, "command": sys.executable, "args": ["-I", "-S", str(OLD), habit], "env": [], **more}


@asynccontextmanager
async def connected(cwd: Path, *servers: dict[str, Any], **bounds: Any) -> AsyncGenerator[McpServers]:
    """Hold the servers as a session does: in a task that is cancelled at its end."""
    mcp = McpServers(servers, cwd, **bounds)
    with anyio.fail_after(LONG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mcp.run)
            await mcp.connected()
            yield mcp
            tasks.cancel_scope.cancel()


async def listing(mcp: McpServers, wanted: str) -> dict[str, Tool]:
    """The tools, once there is one of that name."""
    with anyio.fail_after(WAIT_S):
        while wanted not in mcp.tools():
            await quiet()
    return mcp.tools()


async def test_a_session_without_servers_loads_nothing(tmp_path: Path) -> None:
    async with connected(tmp_path) as mcp:
        assert mcp.tools() == {}
        assert mcp.failures() == []
    code = "import sys, turnwire_agent.mcp_servers; print('mcp' in sys.modules)"
    done = await anyio.run_process([sys.executable, "-c", code])
    assert done.stdout == b"False\n"


async def test_tools_of_the_official_library_over_stdio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-model")
    server = full(env=[{"name": "GIVEN", "value": "by the client"}])
    async with connected(tmp_path, server) as mcp:
        assert mcp.failures() == []
        tools = mcp.tools()
        assert {"full__add", "full__fail", "full__slow"} <= tools.keys()
        add = tools["full__add"]
        assert add.spec.description == "Add two numbers."
        assert set(add.spec.schema["properties"]) == {"a", "b"}
        assert (add.kind, add.asks, add.edits, add.title({})) == ("other", True, False, "full: add")
        call = Heard()
        assert await use(add, tmp_path, call, a=2, b=3) == call.text == "5"
        assert "no luck today" in str(await refused(tools["full__fail"], tmp_path))
        assert await use(tools["full__picture"], tmp_path) == "[image image/png, 120 bytes, not shown]"
        assert (
            await use(tools["full__mixed"], tmp_path) == "[file:///a.txt]\nof a file\n[more: file:///b.txt]\nwords"
        )
        seen = await use(tools["full__surroundings"], tmp_path)
        assert str(tmp_path) in seen
        assert "by the client" in seen
        assert "key-of-a-model" not in seen
        assert "validation error" in str(await refused(add, tmp_path, a="x", b=3))
        await cancel_when_it_began(tools["full__slow"], tmp_path, "half way", witness=str(tmp_path / "cancelled"))
        await use(tools["full__learn"], tmp_path, name="sum")
        assert await use((await listing(mcp, "full__sum"))["full__sum"], tmp_path, a=1, b=1) == "2"
        assert "cancelled" in os.listdir(tmp_path)


async def cancel_when_it_began(tool: Tool, cwd: Path, began: str, **arguments: str) -> None:
    call = Heard()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: use(tool, cwd, call, **arguments))
        assert await call.until(began) == f"{began}\n"
        tasks.cancel_scope.cancel()


async def test_a_call_that_is_cancelled_or_takes_too_long_is_taken_back(tmp_path: Path) -> None:
    for bound in (LONG_S, 1.0):
        async with connected(tmp_path, old(), call_s=bound) as mcp:
            [tool] = mcp.tools().values()
            if bound == LONG_S:
                await cancel_when_it_began(tool, tmp_path, "waiting", word="wait")
            else:
                error = await refused(tool, tmp_path, word="wait")
                assert str(error) == "the MCP server `old` did not answer within 1 s"
            assert (await use(tool, tmp_path, word="cancelled")).endswith("True")


@asynccontextmanager
async def http_server(kind: str) -> AsyncGenerator[str]:
    async with await anyio.open_process([sys.executable, str(FULL), kind], stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            with anyio.fail_after(LONG_S):
                port = int(await process.stdout.receive())
            yield f"http://127.0.0.1:{port}/{'mcp' if kind == 'http' else 'sse'}"
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["http", pytest.param("sse", marks=pytest.mark.full("deprecated"))])
async def test_tools_over_http(tmp_path: Path, kind: str) -> None:
    async with http_server(kind) as url:
        server = {"type": kind, "name": "web", "url": url, "headers": [{"name": "X-Test", "value": "1"}]}
        wrong: dict[str, Any] = {"type": kind, "name": "lost", "url": f"{url}/nowhere", "headers": []}
        async with connected(tmp_path, server, wrong) as mcp:
            assert [name for name, _ in mcp.failures()] == ["lost"]
            assert "404" in mcp.failures()[0][1] or "refused" in mcp.failures()[0][1]
            assert await use(mcp.tools()["web__add"], tmp_path, a=20, b=22) == "42"
            await use(mcp.tools()["web__learn"], tmp_path, name="sum")
            assert "web__sum" in await listing(mcp, "web__sum")


async def test_an_older_server_is_spoken_to_in_its_own_way(tmp_path: Path) -> None:
    async with connected(tmp_path, old("noisy")) as mcp:
        assert mcp.failures() == []
        [tool] = mcp.tools().values()
        assert tool.spec.name == "old__say_it"
        assert (await use(tool, tmp_path, word="hello")).endswith(" hello")
        with pytest.raises(Exception, match="arguments are missing: word"):
            await use(tool, tmp_path)
        await use(tool, tmp_path, word="learn")
        # Two names that are one in the letters of providers.
        tools = await listing(mcp, "old__say_it_2")
        assert list(tools) == ["old__say_it", "old__say_it_2"]
        assert [each.title({}) for each in tools.values()] == ["old: say it", "old: say.it"]


async def test_a_schema_with_faults_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    async with connected(tmp_path, old("careless")) as mcp:
        [tool] = mcp.tools().values()
        assert tool.spec.schema == {"type": "object"}
        assert (await use(tool, tmp_path, word="hello")).endswith(" hello")


async def test_servers_that_fail_are_named_and_the_others_work(tmp_path: Path) -> None:
    servers: list[dict[str, Any]] = [
        old("dies", "dead"),
        {"name": "absent", "command": "/no/such/program", "args": [], "env": []},
        {"type": "http", "name": "nobody", "url": "http://127.0.0.1:9/mcp", "headers": []},
        {"type": "sse", "name": "older", "url": "http://127.0.0.1:9/sse", "headers": []},
        {"type": "acp", "name": "strange", "serverId": "x"},
        {"name": "own", "command": "true", "args": [], "env": [{"name": "TURNWIRE_X", "value": "1"}]},
        {"command": "true"},
        old(name="good one"),
        old(name="good one"),
    ]
    async with connected(tmp_path, *servers) as mcp:
        failures = dict(mcp.failures())
        assert list(mcp.tools()) == ["good_one__say_it", "good_one__say_it_2"]
        first, second = [await use(tool, tmp_path, word="x") for tool in mcp.tools().values()]
        assert first != second, "each has a process of its own"
    assert failures == {
        "a server without a name": "its description is malformed; give a name with a command or a URL",
        "dead": "it ended with exit code 3: cannot find my settings",
        "absent": "its program cannot be started; check the command and that it is installed",
        "nobody": "it cannot be reached at its URL",
        "older": "it cannot be reached at its URL",
        "strange": "its kind is not known here, or it has no command or URL; use stdio, http or sse",
        "own": "TURNWIRE_X belongs to the daemon and is not given to agents; use another name",
    }


async def test_how_a_server_ended_is_told_also_when_its_output_ends_first(tmp_path: Path) -> None:
    program = "exec 1>&-; read -r line; echo 'no licence' >&2; exit 4"
    server = {"name": "slow to go", "command": "sh", "args": ["-c", program], "env": []}
    async with connected(tmp_path, server) as mcp:
        assert mcp.failures() == [("slow to go", "it ended with exit code 4: no licence")]


async def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    async with connected(tmp_path, old("mute"), connect_s=0.5) as mcp:
        assert mcp.failures() == [("old", "it did not answer within 0.5 s")]


async def test_a_server_that_dies_takes_its_tools_along(tmp_path: Path) -> None:
    async with connected(tmp_path, old()) as mcp:
        [tool] = mcp.tools().values()
        error = await refused(tool, tmp_path, word="die")
        assert "the MCP server `old`" in str(error)
        with anyio.fail_after(WAIT_S):
            while mcp.tools():
                await quiet()
        assert mcp.failures() == [("old", "it ended with exit code 7: my last words")]
        assert "is gone: it ended with exit code 7" in str(await refused(tool, tmp_path, word="x"))


async def test_a_server_that_went_is_there_again_for_the_next_turn(tmp_path: Path) -> None:
    async with connected(tmp_path, old(), old("dies", "dead")) as mcp:
        for _ in range(2):
            [tool] = mcp.tools().values()
            await refused(tool, tmp_path, word="die")
            with anyio.fail_after(WAIT_S):
                while mcp.tools():
                    await quiet()
            await mcp.connected()
        [tool] = mcp.tools().values()
        assert "x" in await use(tool, tmp_path, word="x")
        assert [name for name, _ in mcp.failures()] == ["dead"], "what never was there is not tried again"


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@needs_linux
async def test_no_process_is_left_when_the_session_ends(tmp_path: Path) -> None:
    tree: list[int] = []
    async with connected(tmp_path, old("stubborn")) as mcp:
        [tool] = mcp.tools().values()
        pid = int((await use(tool, tmp_path, word="x")).split()[0])
        tree += [pid, *children(pid)]
        assert len(tree) == 2
    assert [each for each in tree if is_listed(each)] == []


@needs_linux
async def test_a_session_that_ends_while_it_connects_leaves_no_process(tmp_path: Path) -> None:
    known = children(os.getpid())
    mcp = McpServers([old("mute")], tmp_path)
    with anyio.fail_after(LONG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mcp.run)
            while children(os.getpid()) == known:
                await quiet()
            tasks.cancel_scope.cancel()
    assert children(os.getpid()) == known
