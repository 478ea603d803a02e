"""The official clients, unchanged, with an agent on turnwire's SDK: asked, cancelled, disconnected and resumed."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.interop.official_clients import CLIENTS_OF_ACP, OFFICIAL_PROMPTS, OfficialClient, check_tour
from tests.interop.peers import AGENTS, PEERS, ROOT, absent
from tests.interop.schema_check import Frame, Json, check_frames
from tests.patience import LONG_S

pytestmark = pytest.mark.anyio

ACPX = PEERS / "acpx"
ASKS = frozenset({"initialize", "session/new", "session/prompt", "session/close"})
"""acpx's requests to its agent; all other methods are requests to acpx."""


@pytest.fixture(params=CLIENTS_OF_ACP, ids=lambda each: each.name)
def client(request: pytest.FixtureRequest) -> OfficialClient:
    """Return one of the official SDKs."""
    return request.param


def sdk_agent(folder: Path) -> list[str]:
    """The agent on turnwire's SDK as a program, with its sessions in this folder."""
    return [sys.executable, str(AGENTS / "turnwire_sdk.py"), str(folder / "sessions")]


async def test_an_official_client_works_with_an_agent_on_our_sdk(client: OfficialClient, tmp_path: Path) -> None:
    check_tour(await client.tour("stdio", tmp_path, OFFICIAL_PROMPTS, command=sdk_agent(tmp_path)))


async def acpx(folder: Path, command: Sequence[str], prompt: str) -> list[Frame]:
    """Send one prompt in a separate session; return the frames that acpx shows, both ways."""
    node = ACPX / "node_modules" / "node" / "bin" / "node"
    if not (ACPX / ".installed").exists() or not node.exists():
        absent(f"{ACPX.relative_to(ROOT)} is not there; run: make peers")
    words = ["--agent", shlex.join(command), "--cwd", str(folder), "--approve-all", "--format", "json"]
    program = [str(node), str(ACPX / "node_modules/acpx/dist/cli.js"), *words, "exec", prompt]
    with anyio.fail_after(LONG_S):
        ran = await anyio.run_process(program, check=False, env=os.environ | {"HOME": str(folder)})
    assert ran.returncode == 0, ran.stderr.decode()
    messages: list[Json] = [msgspec.json.decode(line) for line in ran.stdout.splitlines()]
    # acpx's answers here are only about permissions, files and terminals.
    own = {"outcome", "content", "output", "terminalId", "exitCode"}
    return [
        Frame(each.get("method") not in ASKS and not own & (each.get("result") or {}).keys(), each)
        for each in messages
    ]


async def test_acpx_prompts_an_agent_on_our_sdk_and_grants_its_tool(tmp_path: Path) -> None:
    frames = await acpx(tmp_path, sdk_agent(tmp_path), "edit the file")
    assert {"session/request_permission", "tool_call", "tool_call_update"} <= check_frames(1, frames).seen
    assert frames[-1].message["result"]["stopReason"] == "end_turn"


async def test_acpx_runs_the_command_of_the_example_in_its_own_terminal(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    frames = await acpx(tmp_path, [sys.executable, str(ROOT / "examples" / "tidy.py")], "tidy up")
    assert frames[-1].message["result"]["stopReason"] == "end_turn"
    assert "terminal/create" in [each.message.get("method") for each in frames]
    assert "build" not in os.listdir(tmp_path)
