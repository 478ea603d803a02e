"""`acpx`, a published ACP client for the command line, with `turnwire stdio` and `turnwire agent` as its agent."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.interop.official_clients import stdio_command
from tests.interop.peers import PEERS, ROOT, absent, scripted
from tests.interop.schema_check import Frame, Json, check_frames
from tests.patience import LONG_S

pytestmark = pytest.mark.anyio

ACPX = PEERS / "acpx"
NODE = ACPX / "node_modules" / "node" / "bin" / "node"
ASKS = frozenset({"initialize", "session/new", "session/prompt", "session/close"})
"""acpx's requests to its agent; all other methods are requests to acpx."""


async def acpx(folder: Path, profile: str, form: str, prompt: str) -> str:
    """Send one prompt to the scripted agent of `turnwire stdio`; return acpx's output."""
    return await acpx_with(stdio_command(folder / "data", scripted("--profile", profile)), folder, form, prompt)


async def acpx_with(command: list[str], folder: Path, form: str, prompt: str) -> str:
    """Send one prompt in a separate session."""
    if not (ACPX / ".installed").exists() or not NODE.exists():
        absent(f"{ACPX.relative_to(ROOT)} is not there; run: make peers")
    words = [
        "--agent",
        shlex.join(command),
        "--cwd",
        str(folder),
        "--approve-all",
        "--format",
        form,
        "exec",
        prompt,
    ]
    program = [str(NODE), str(ACPX / "node_modules/acpx/dist/cli.js"), *words]
    with anyio.fail_after(LONG_S):
        ran = await anyio.run_process(program, check=False, env=os.environ | {"HOME": str(folder)})
    assert ran.returncode == 0, ran.stderr.decode()
    # It is known to print an error for an update that it does not know, and so is not sent one.
    assert "error" not in ran.stderr.decode().lower(), ran.stderr.decode()
    return ran.stdout.decode()


def frames_of(output: str) -> list[Frame]:
    """Return the frames that acpx shows, both ways. Its answers here are only about permissions and files."""
    messages: list[Json] = [msgspec.json.decode(line) for line in output.splitlines()]
    return [
        Frame(each.get("method") not in ASKS and not {"outcome", "content"} & each.get("result", {}).keys(), each)
        for each in messages
    ]


@pytest.mark.guarantee("G6", "G11")
@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_one_prompt_with_a_tool_and_a_permission(tmp_path: Path, profile: str) -> None:
    prompt = "tool look read\nask edit allow_once,reject_once\nsay 1 done"
    frames = frames_of(await acpx(tmp_path, profile, "json", prompt))
    seen = check_frames(1, frames).seen
    assert {"session/request_permission", "tool_call", "tool_call_update", "session/prompt answered"} <= seen
    assert frames[-1].message["result"]["stopReason"] == "end_turn"
    assert {"outcome": {"outcome": "selected", "optionId": "allow_once"}} in [
        each.message.get("result") for each in frames if not each.is_received
    ]


async def test_the_agent_reads_a_file_through_acpx(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("these are notes")
    frames = frames_of(await acpx(tmp_path, "v1", "json", f"read {tmp_path / 'notes.txt'}"))
    assert "fs/read_text_file" in check_frames(1, frames).seen
    chunks = [each.message["params"]["update"] for each in frames if each.message.get("method") == "session/update"]
    assert "these are notes" in [each.get("content", {}).get("text") for each in chunks]


async def test_a_command_of_the_built_in_agent_runs_in_a_terminal_of_acpx(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "turnwire", "agent", "--data", str(tmp_path / "data")]
    frames = frames_of(await acpx_with(command, tmp_path, "json", "/demo command"))
    messages = [each.message for each in frames]
    [created] = [each["params"] for each in messages if each.get("method") == "terminal/create"]
    assert created["args"][0] == "-c"
    [output] = [each["result"] for each in messages if "output" in each.get("result", {})]
    assert output["output"] == "one\ntwo\nthree\nto stderr\n"
    assert {"exitCode": 3, "signal": None} in [each.get("result") for each in messages]
