"""`turnwire agent` with a model, and a daemon whose agent has one."""

from __future__ import annotations

from pathlib import Path

import anyio
import click
import pytest
from anyio import to_thread
from tests.cli.rig import run, served

from turnwire.cli.agent import agent
from turnwire.cli.agent_source import PROVIDERS
from turnwire.errors import ConfigError
from turnwire.server.settings.sources import BUILT_IN
from turnwire_agent.model import VARIABLES
from turnwire_testing.models import CallTool, FakeOpenAI, Reply, Say


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["--model", "gpt"], {}, "names no model"),
        ([], {"TURNWIRE_AGENT_MODEL": "ollama:x gpt"}, "'gpt' names no model"),
        (["--model", "openai:x"], {}, "set OPENAI_API_KEY"),
        ([], {"TURNWIRE_AGENT_MODEL": "anthropic:x"}, "set ANTHROPIC_API_KEY"),
        (["--model", "ollama:x", "--model-url", "nowhere"], {}, "http://HOST:PORT/v1"),
        (["--mode", "turbo"], {}, "ask"),
        (["--max-requests", "0"], {}, "1<=x<=10000"),
        (["--system", "nowhere.md"], {}, "cannot be read"),
        ([], {"TURNWIRE_AGENT_SYSTEM": "empty.md"}, "is empty"),
        (["surplus"], {}, "surplus"),
    ],
)
def test_what_it_cannot_start_with_is_told(
    words: list[str], env: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.md").write_text("")
    monkeypatch.chdir(tmp_path)
    for name in PROVIDERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **env}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((ConfigError, click.UsageError)) as refused:
        agent.main(words, standalone_mode=False, obj={})
    told = refused.value.format_message() if isinstance(refused.value, click.UsageError) else str(refused.value)
    assert said in told


@pytest.mark.full("starts a daemon")
def test_a_daemon_whose_agent_could_not_ask_its_model_does_not_start(tmp_path: Path) -> None:
    shown = run("serve", "--port", "0", home=tmp_path, TURNWIRE_AGENT_MODEL="ollama:a openai:b")
    assert shown.code != 0
    assert "openai:b needs a key; set OPENAI_API_KEY" in shown.err
    checked = run("doctor", "--port", "0", home=tmp_path, TURNWIRE_AGENT_MODEL="openai:b")
    assert "set OPENAI_API_KEY" in checked.out


@pytest.mark.anyio
async def test_the_daemons_agent_gets_its_model_its_key_and_no_other_secret(tmp_path: Path) -> None:
    seen = "env | cut -d= -f1 | sort | tr '\\n' ' '"
    replies: list[Reply] = [[CallTool("run", {"command": seen})], [Say("I have looked.")]]
    async with FakeOpenAI(replies) as server:
        env = {
            "TURNWIRE_AGENT_MODEL": "openai:fake",
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "sk-of-the-user",
            "TURNWIRE_TOKEN": "tw_a_token_of_the_owner_0123456789",
            "ANOTHER_SECRET": "hidden",
        }
        with anyio.fail_after(60):
            shown = await to_thread.run_sync(_prompted, tmp_path, env)
    assert "I have looked." in shown
    assert server.exchanges[0].headers["authorization"] == "Bearer sk-of-the-user"
    variables = str(server.requests[1]["messages"][-1]["content"])
    assert "PATH" in variables
    for name in ("OPENAI_API_KEY", "TURNWIRE_TOKEN", "ANOTHER_SECRET", "TURNWIRE_AGENT_MODEL"):
        assert name not in variables, "a command of the model gets no key"


def _prompted(home: Path, env: dict[str, str]) -> str:
    with served(home, builtin=True, **env) as daemon:
        session = daemon.session()
        prompt = daemon.prompt(session, "look around")
        daemon.until(session, "permission_request")
        request, _, _ = daemon.run("answer", session).out.strip().split("\t")
        assert daemon.run("answer", session, request, "allow_once").code == 0
        daemon.until(session, "turn_complete")
        return str(daemon.turn(session, prompt)["resultText"])


def test_every_variable_that_reaches_a_model_is_let_through() -> None:
    assert set(VARIABLES) == set(PROVIDERS) | {each for each in VARIABLES if each in BUILT_IN}
