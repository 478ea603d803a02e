"""The official clients at our endpoint, each with its own habits: a conversation, a cancel, and a second client."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.interop.peers import PEERS, absent
from tests.patience import LONG_S
from tests.support.daemons import Running, running_daemon

pytestmark = [pytest.mark.anyio, pytest.mark.full("needs the official SDKs")]

PROGRAMS = Path(__file__).parent / "official"


async def conversation(command: Sequence[str], cwd: Path, given: bytes = b"", **extra: str) -> dict[str, Any]:
    """Run a client to its end, and return its received updates."""
    with anyio.fail_after(LONG_S):
        ended = await anyio.run_process(list(command), input=given, cwd=cwd, check=False, env=os.environ | extra)
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads(ended.stdout)


def arguments(running: Running, folder: Path) -> list[str]:
    return [f"{running.url}/acp", running.token, str(folder)]


async def test_the_typescript_client_has_its_conversation_over_streamable_http(tmp_path: Path) -> None:
    if not (PEERS / "node" / ".installed").exists():
        absent(".peers/node is not there; run: make peers")
    program = (PROGRAMS / "client.mjs").read_bytes()
    async with running_daemon(tmp_path / "d") as running:
        command = ["node", "--input-type=module", "-", *arguments(running, tmp_path)]
        heard = await conversation(command, PEERS / "node", program)
    assert heard["turn"] == ["end_turn", "hi", "hi", "selected allow_once"]
    assert heard["cancelled"] == ["cancelled", "running"]
    assert heard["loaded"] == ["hi", "hi", "selected allow_once", "running"]
    assert heard["again"] == ["end_turn", "again", "again"]


@pytest.mark.parametrize("sdk", ["py-v1", "py-v2"])
@pytest.mark.parametrize("carrier", ["http", "ws"])
async def test_the_python_clients_have_their_conversation(tmp_path: Path, sdk: str, carrier: str) -> None:
    if not (PEERS / sdk / ".installed").exists():
        absent(f".peers/{sdk} is not there; run: make peers")
    python, packages = PEERS / sdk / "bin" / "python", sysconfig.get_paths()["purelib"]
    async with running_daemon(tmp_path / "d") as running:
        command = [str(python), str(PROGRAMS / "client.py"), *arguments(running, tmp_path), carrier]
        heard = await conversation(command, tmp_path, PYTHONPATH=packages)
    assert heard["turn"] == ["end_turn", "hi", "hi", "selected allow_once"]
    assert heard["cancelled"] == ["cancelled", "running"]
    assert heard["loaded"] == ["hi", "hi", "selected allow_once", "running"]
    assert heard["again"] == ["end_turn", "a", "last"]
