"""An agent with a `url`: a daemon whose agent is at a URL. Here the agent is another daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.rig import run, served

TOKEN = "a-token-of-the-far-daemon-0123456789"


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_an_agent_behind_a_url_is_prompted_like_any_other(tmp_path: Path, scheme: str) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    far.mkdir()
    near.mkdir()
    # Both sides name the same folder for the session.
    with served(far, "--token", TOKEN, "--cwd", str(tmp_path)) as agent:
        url = agent.url.replace("http", scheme) + "/acp"
        file = near / "turnwire.toml"
        file.write_text(f'[agents.far]\nurl = "{url}"\ntoken = "{TOKEN}"\n')
        file.chmod(0o600)
        with served(near, "--config", str(file)) as daemon:
            shown = daemon.run("prompt", "say 2 hello")
            assert (shown.code, shown.out) == (0, "hellohello\n")
            assert TOKEN not in daemon.err.read_text()
            checked = daemon.run("doctor", "--config", str(file))
            assert f"far ({url}): starts" in checked.out
            assert TOKEN not in checked.out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--agent", "far=ftp://example.org/acp"], "ws://"),
        (["--agent", "far=wss://me:secret@example.org/acp"], "no user"),
    ],
)
def test_addresses_that_make_no_sense_refuse_to_start(tmp_path: Path, words: list[str], reason: str) -> None:
    shown = run("serve", "--port", "0", *words, home=tmp_path)

    assert (shown.code, shown.out) == (78, "")
    assert reason in shown.err
