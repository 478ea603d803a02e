"""`turnwire serve --agent-url`: a daemon whose agent is behind a URL. Here the agent is another daemon."""

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
        with served(near, "--agent-url", url, "--agent-token", TOKEN) as daemon:
            shown = daemon.run("prompt", "say 2 hello")
            assert (shown.code, shown.out) == (0, "hellohello\n")
            assert TOKEN not in daemon.err.read_text()
            checked = daemon.run("doctor", TURNWIRE_AGENT_URL=url, TURNWIRE_AGENT_TOKEN=TOKEN)
            assert f"{url}: starts" in checked.out
            assert TOKEN not in checked.out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--agent-url", "ftp://example.org/acp"], "ws://"),
        (["--agent-url", "wss://me:secret@example.org/acp"], "no user"),
        (["--agent-url", "wss://example.org/acp", "--", "my-agent"], "either"),
        (["--agent-token", "some-token"], "agent_url"),
    ],
)
def test_addresses_that_make_no_sense_refuse_to_start(tmp_path: Path, words: list[str], reason: str) -> None:
    shown = run("serve", "--port", "0", *words, home=tmp_path)

    assert (shown.code, shown.out) == (78, "")
    assert reason in shown.err
