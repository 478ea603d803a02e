"""The official ACP clients and `acpx`, unchanged, with `turnwire agent` as their agent, over stdio."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import anyio
import pytest
from tests.interop.official_clients import CLIENTS_OF_ACP, OfficialClient
from tests.interop.peers import ROOT, absent
from tests.interop.schema_check import Json, check_frames
from tests.interop.test_acpx import ACPX, NODE, frames_of
from tests.patience import LONG_S

pytestmark = pytest.mark.anyio

PROMPTS = ("/demo permission", "/demo long 120s", "who are you?")


def agent(folder: Path) -> list[str]:
    return [sys.executable, "-m", "turnwire", "agent", "--data", str(folder / "agent")]


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("client", CLIENTS_OF_ACP, ids=lambda each: each.name)
async def test_an_official_client_asks_allows_cancels_and_comes_back(
    client: OfficialClient, tmp_path: Path
) -> None:
    first, second = await client.tour("stdio", tmp_path, PROMPTS, command=agent(tmp_path))

    assert first.answers("initialize")[0]["protocolVersion"] == client.version
    opening, work = first.split(first.place("session/new"))
    assert not opening.updates(), "the answer to session/new comes before everything of that session"
    assert len([each for each in work.received if each.get("method") == "session/request_permission"]) == 1
    assert first.stop_reasons() == ["end_turn", "cancelled"]
    assert "It ran." in first.said()

    assert second.said().startswith(first.said()), "the history is told again"
    assert second.stop_reasons()[-1] == "end_turn"
    assert "built into turnwire" in second.said()
    for each in (first, second):
        assert each.handled == len(each.known_updates()), "the SDK has taken every update"
        assert {"initialize answered", "session/update"} <= check_frames(each.version, each.frames).seen
    assert not (tmp_path / ".turnwire-demo").exists()


async def acpx(folder: Path, prompt: str) -> str:
    """Send one prompt in a separate session; return acpx's output."""
    if not (ACPX / ".installed").exists() or not NODE.exists():
        absent(f"{ACPX.relative_to(ROOT)} is not there; run: make peers")
    words = ["--agent", shlex.join(agent(folder)), "--cwd", str(folder), "--approve-all", "--format", "json"]
    program = [str(NODE), str(ACPX / "node_modules/acpx/dist/cli.js"), *words, "exec", prompt]
    with anyio.fail_after(LONG_S):
        ran = await anyio.run_process(program, check=False, env=os.environ | {"HOME": str(folder)})
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout.decode()


@pytest.mark.guarantee("G11")
async def test_acpx_lets_it_read_and_edit_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("these are notes")
    frames = frames_of(await acpx(tmp_path, "read notes.txt"))
    seen = check_frames(1, frames).seen
    assert {"tool_call", "tool_call_update", "session/prompt answered"} <= seen
    assert frames[-1].message["result"]["stopReason"] == "end_turn"
    assert "these are notes" in str([each.message for each in frames])

    messages = [each.message for each in frames_of(await acpx(tmp_path, "/demo edit"))]
    methods = {each.get("method") for each in messages}
    assert {"session/request_permission", "fs/read_text_file", "fs/write_text_file"} <= methods
    assert "The new line is there." in "".join(map(_words, messages))


def _words(message: Json) -> str:
    update: Json = message.get("params", {}).get("update", {})
    return update["content"]["text"] if update.get("sessionUpdate") == "agent_message_chunk" else ""
