"""`turnwire check --client` with `{url}`: clients that connect to their agent over WebSocket, as real programs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from turnwire.cli.main import cli

HERE = Path(__file__).parent

RAW = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from check_peers.mutants_client import CLIENT_MUTANTS
from check_peers.raw_client import Left, RawTestClient

name, scene, cwd, url = sys.argv[1:]
with connect(url, proxy=None, max_size=None) as socket:
    mine = CLIENT_MUTANTS.get(name, RawTestClient)(lambda line: socket.send(line.decode().rstrip()), cwd, scene)
    try:
        mine.idle()
        for message in socket:
            mine.feed(message.encode() + b"\\n")
            if not mine.asked or mine.scene.startswith("stop"):
                mine.idle()
    except (Left, ConnectionClosed):
        pass
"""

SDK = """
import sys
import anyio
import turnwire


async def main():
    async with turnwire.connect(sys.argv[1]) as client:
        session = await client.new_session(sys.argv[2])
        await session.prompt("hello")


anyio.run(main)
"""


def check(*words: str) -> Result:
    return CliRunner().invoke(cli, ["check", "--client", *words], obj={"debug": False})


def cases(*names: str) -> list[str]:
    return [word for name in names for word in ("--case", f"client.{name}")]


@pytest.fixture
def raw(tmp_path: Path) -> list[str]:
    program = tmp_path / "raw.py"
    program.write_text(RAW)
    return [sys.executable, str(program)]


def test_a_client_that_connects_and_keeps_the_rules_passes(raw: list[str]) -> None:
    chosen = cases("rpc.unique-ids", "cancel.permissions", "wire.large", "turn.error", "wire.split")
    ran = check(*chosen, "--", *raw, "none", "{scene}", "{cwd}", "{url}")
    assert ran.exit_code == 0, ran.output
    assert "raw-client 1: 4 passed, 0 failed, 1 not scored" in ran.output
    assert "it is about stdio" in ran.output


def test_a_client_that_connects_and_breaks_a_rule_fails_with_the_frames(raw: list[str]) -> None:
    chosen = cases("rpc.unique-ids", "new.cwd")
    ran = check(*chosen, "--", *raw, "client.rpc.unique-ids", "{scene}", "{cwd}", "{url}")
    assert ran.exit_code == 1, ran.output
    assert "FAILED client.rpc.unique-ids (must): No two requests have one id." in ran.output
    assert "1 passed, 1 failed" in ran.output


def test_the_python_sdk_keeps_the_rules_over_a_socket(tmp_path: Path) -> None:
    program = tmp_path / "sdk.py"
    program.write_text(SDK)
    chosen = cases("init.first", "new.cwd", "permission.offered", "update.every-kind", "v2.answer-no-end")
    ran = check(*chosen, "--", sys.executable, str(program), "{url}", "{cwd}")
    assert ran.exit_code == 0, ran.output
    assert "5 passed, 0 failed, 0 not scored" in ran.output


def test_a_client_that_never_connects_is_not_judged() -> None:
    ran = check(*cases("new.cwd"), "--", sys.executable, "-c", "print('no agent for me')", "{url}")
    assert ran.exit_code == 1
    assert "no agent of its told a verdict; it printed: no agent for me" in ran.output
