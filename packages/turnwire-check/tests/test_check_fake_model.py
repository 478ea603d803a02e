"""`turnwire check --fake-model`: an agent with a language model is judged without a key, in a temporary home."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from click.testing import CliRunner, Result

from turnwire.cli.known_agents import known
from turnwire.cli.main import cli
from turnwire_testing.models import CallTool, Say
from turnwire_testing.models.home import home_of
from turnwire_testing.models.recipes import APIS, KEY, RECIPES
from turnwire_testing.models.told_model import prompts, told_model
from turnwire_testing.patience import WAIT_S

AGENT = [sys.executable, "-I", "-S", str(Path(__file__).with_name("check_peers") / "model_agent.py")]
TURNS = ["--case", "v1.turn.once", "--case", "v1.turn.ends", "--case", "v1.cancel.reason"]
ASKING = ["--case", "v1.permission.allowed", "--case", "v1.permission.rejected"]


def check(*words: str, agent: list[str] | None = AGENT) -> Result:
    behind = [] if agent is None else ["--", *agent]
    return CliRunner().invoke(cli, ["check", *words, *behind], obj={"debug": False})


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that has temporary folders only."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the user, whose keys and settings are no agent's business here."""
    home = tmp_path / "own"
    home.mkdir()
    for name in ("OPENAI_BASE_URL", "OPENCODE_CONFIG", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "the user's own")
    monkeypatch.setenv("HOME", str(home))
    return home


def test_a_known_agent_finds_the_model_by_its_recipe_and_asks_for_its_tool(temporary: Path, own_home: Path) -> None:
    files = {each: temporary.parent / each for each in ("json", "html", "write-baseline")}
    reports = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    ran = check("--fake-model", "opencode", *TURNS, *ASKING, *reports)
    assert ran.exit_code == 0, ran.output
    assert "model-agent 1: 5 passed, 0 failed, 0 not scored" in ran.output
    assert json.loads(files["json"].read_text())["counts"]["passed"] == 5
    assert all(file.read_text() for file in files.values())
    assert list(temporary.iterdir()) == []
    assert list(own_home.iterdir()) == []


@pytest.mark.usefixtures("own_home")
def test_any_agent_is_told_of_the_model_by_the_variables_of_its_api(temporary: Path) -> None:
    ran = check("--fake-model", "openai", *TURNS, *ASKING)
    assert "model-agent 1: 3 passed, 0 failed, 2 not scored" in ran.output
    call = 'ask=[[call bash {"command": "touch made-{n}"}]]'
    told = check("--fake-model", "openai", "--provoke", call, *TURNS, *ASKING)
    assert "model-agent 1: 5 passed, 0 failed, 0 not scored" in told.output
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("temporary", "own_home")
def test_the_agent_of_a_registry_entry_keeps_its_variables_but_not_against_the_recipe(tmp_path: Path) -> None:
    program, seen = tmp_path / "agent", tmp_path / "seen"
    text = f"#!{sys.executable}\nimport os, runpy\nopen({str(seen)!r}, 'w').write(repr(dict(os.environ)))\n"
    program.write_text(f"{text}runpy.run_path({AGENT[-1]!r}, run_name='__main__')\n")
    program.chmod(0o755)
    entry = tmp_path / "entry.json"
    env = {"MODE": "acp", "OPENAI_API_KEY": "real"}
    machine = {f"linux-{each}": {"cmd": "./agent", "env": env} for each in ("x86_64", "aarch64")}
    machine |= {each.replace("linux", "darwin"): way for each, way in machine.items()}
    entry.write_text(json.dumps({"distribution": {"binary": machine}}))
    ran = check("--fake-model", "openai", "--registry", str(entry), *TURNS, agent=None)
    assert "3 passed, 0 failed" in ran.output
    assert "'MODE': 'acp'" in seen.read_text()
    assert "real" not in seen.read_text()
    assert "the user's own" not in seen.read_text()


@pytest.mark.usefixtures("temporary")
def test_a_name_alone_starts_the_known_agent_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "opencode"
    program.write_text(f'#!/bin/sh\nexec {" ".join(AGENT)} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    ran = check("--fake-model", "opencode", *TURNS, agent=None)
    assert "model-agent 1: 3 passed, 0 failed, 0 not scored" in ran.output


@pytest.mark.usefixtures("temporary")
def test_a_dry_run_knows_the_scenes_of_the_model() -> None:
    ran = check("--fake-model", "opencode", "--dry-run", *TURNS, *ASKING)
    assert ran.output.count("can be judged") == 5


@pytest.mark.usefixtures("temporary")
def test_an_agent_that_does_not_ask_the_model_is_told_of() -> None:
    deaf = [sys.executable, "-I", "-S", str(Path(__file__).with_name("check_peers") / "raw_agent.py")]
    ran = check("--fake-model", "openai", *TURNS, agent=deaf)
    assert "the agent has asked the fake model nothing" in ran.output
    assert "fake model" not in check("--fake-model", "openai", "--case", "v1.init", agent=deaf).output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--fake-model", "nobody", "--", "cat"], "no recipe for 'nobody'; there are recipes for claude, codex,"),
        (
            ["--fake-model", "copilot", "--", "cat"],
            "name the API of its model: openai, openai-responses, anthropic",
        ),
        (["--fake-model", "openai"], "is an API; put the agent's command behind `--`"),
        (["--fake-model", "vibe"], "`vibe-acp` is not on PATH; install mistral-vibe (PyPI), or put the command"),
        (["--fake-model", "openai", "--url", "ws://x"], "is for an agent that is started here"),
        (["--fake-model", "openai", "--client", "--", "cat"], "is for an agent that is started here"),
    ],
)
def test_what_does_not_fit_is_told_before_anybody_is_started(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = check(*words, agent=None)
    assert ran.exit_code == 2
    assert told in ran.output


# -- recipes ---------------------------------------------------------------------------------------------------

FILES = {
    "codex": {".codex/config.toml"},
    "gemini": {".gemini/settings.json"},
    "opencode": {".config/opencode/opencode.json"},
    "qwen": {".qwen/settings.json"},
    "vibe": {".vibe/config.toml", ".vibe/.env"},
    "kilo": {".config/kilo/kilo.json"},
    "hermes": {".hermes/config.yaml"},
}
"""Settings files of each agent; the others read variables."""


def texts(home: Path) -> dict[str, str]:
    return {path.relative_to(home).as_posix(): path.read_text() for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [*RECIPES, *APIS])
@pytest.mark.anyio
async def test_a_recipe_is_written_where_its_agent_looks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the user's own")
    recipe = {**RECIPES, **APIS}[name]
    async with home_of(recipe, tmp_path, "/bin") as found:
        home = Path(found.environment["HOME"])
        written = texts(home)
        assert found.model.url.startswith("http://127.0.0.1:")
        assert any(found.model.url in each for each in (*written.values(), *found.environment.values()))
    assert home == tmp_path / "home"
    assert found.environment["TMPDIR"] == str(tmp_path / "tmp")
    assert set(written) == FILES.get(name, set())
    for path, text in written.items():
        if path.endswith(".json"):
            json.loads(text)
        if path.endswith(".toml"):
            tomllib.loads(text)
    assert any(KEY in each for each in (*written.values(), *found.environment.values()))
    assert found.environment["PATH"] == "/bin"
    assert "the user's own" not in found.environment.values()


def test_every_recipe_is_of_a_known_agent_and_no_api_is_called_like_one() -> None:
    assert [name for name in RECIPES if known(name) is None] == []
    assert [name for name in APIS if known(name) is not None] == []


@pytest.mark.parametrize("name", RECIPES)
def test_the_model_calls_the_tool_of_the_agent_once_and_then_ends(name: str) -> None:
    recipe = RECIPES[name]
    script = told_model(recipe)
    assert callable(script)
    asked = {"role": "user", "content": prompts(recipe)["ask"].replace("{n}", "7")}
    tools = [{"name": recipe.tool}]
    [_, call] = script({"messages": [asked], "tools": tools})
    assert isinstance(call, CallTool)
    assert call.name == recipe.tool
    assert "touch made-7" in str(call.arguments)
    result = {"role": "tool", "content": "done"}
    assert script({"messages": [asked, result], "tools": tools}) == [Say("said made-7")]
    assert script({"messages": [asked]}) == [Say("Nothing to do.")]


# -- the end ---------------------------------------------------------------------------------------------------


def until(condition: Callable[[], object], what: str) -> None:
    last = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < last, what
        Event().wait(0.02)


@pytest.mark.full("starts commands and kills them")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_takes_the_home_away(number: signal.Signals, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "turnwire", "check", "--fake-model", "openai", "--patience", "600"]
    # The model says something and hangs, and the case waits for an end that never comes.
    words += ["--provoke", "plain=[[hang here]]", "--case", "v1.turn.ends", "--", *AGENT]
    run = subprocess.Popen(words, env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        until(lambda: list(tmp_path.glob("turnwire-home-*/home/notes")), "the agent was not started")
        run.send_signal(number)
        assert run.wait(WAIT_S) == 128 + number
        assert list(tmp_path.iterdir()) == []
    finally:
        run.kill()
        run.wait(WAIT_S)
