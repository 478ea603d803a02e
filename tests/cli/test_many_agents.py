"""Several agents at one daemon: each session stays with its agent, and agents do not disturb each other."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.editor import editor
from tests.cli.rig import SCRIPTED, Served, run, served

HEARD_AGENT = (sys.executable, str(Path(__file__).with_name("heard_agent.py")))
ENV_AGENT = (sys.executable, str(Path(__file__).with_name("env_agent.py")))
KEY = "sk-a-key-of-the-first-agent-alone"
CONFIG = 78
"""The exit code of settings that cannot be used."""


def named(name: str, *command: str) -> tuple[str, str]:
    return "--agent", f"{name}={shlex.join(command)}"


def heard(name: str, folder: Path, *more: str) -> tuple[str, str]:
    """An agent that records its prompts in a file of its name."""
    return named(name, *HEARD_AGENT, str(folder / name), name, *more)


def prompts(folder: Path, name: str) -> list[list[dict[str, Any]]]:
    """Return the prompts of an agent."""
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def kinds(daemon: Served, session: str, ends: int) -> list[str]:
    """Return the types of a session's events, up to this number of turn ends."""
    found: list[str] = []
    with closing(daemon.types(session)) as types:
        for each in types:
            found.append(each)
            ends -= each in {"turn_complete", "turn_error"}
            if not ends:
                break
    return found


# -- choosing ------------------------------------------------------------------------------------------------


def test_a_session_is_made_for_the_agent_that_is_named_and_else_for_the_first(tmp_path: Path) -> None:
    with served(tmp_path, *heard("one", tmp_path), *heard("two", tmp_path)) as daemon:
        first, second = daemon.session(), daemon.session(agent="two")
        assert daemon.said(first, "hello") == "I am one."
        assert daemon.said(second, "hello") == "I am two."
        listed = {each["sessionId"]: each["agent"] for each in daemon.ask("GET", "/session")["sessions"]}
        assert listed == {first: "one", second: "two"}
        measured = httpx.get(f"{daemon.url}/metrics", headers=daemon.headers).text
        assert 'turnwire_agent_sessions{agent="two"} 1.0' in measured
        assert 'turnwire_agent_processes{agent="one"} 1.0' in measured
        of_two = daemon.ask("GET", "/session?agent=two")["sessions"]
        assert [each["sessionId"] for each in of_two] == [second]


def test_an_agent_that_there_is_not_is_refused_with_the_names_of_those_there_are(tmp_path: Path) -> None:
    with served(tmp_path, *heard("one", tmp_path), *heard("two", tmp_path)) as daemon:
        status, why = daemon.refused("POST", "/session", {"agent": "three"})
        assert (status, why["code"]) == (400, "unknown_agent")
        assert "one, two" in why["detail"]
        assert daemon.ask("GET", "/session")["sessions"] == []
        assert daemon.refused("GET", "/agents/three")[0] == 404
        assert daemon.refused("POST", "/acp/three", {"jsonrpc": "2.0", "id": 1, "method": "initialize"})[0] == 404


def test_the_agents_of_a_daemon_are_listed_with_where_each_stands(tmp_path: Path) -> None:
    file = tmp_path / "turnwire.toml"
    file.write_text(
        "default_agent = 'two'\n"
        f"[agents.one]\ncommand = {json.dumps([*HEARD_AGENT, str(tmp_path / 'one'), 'one'])}\n"
        f"[agents.two]\ncommand = {json.dumps([*HEARD_AGENT, str(tmp_path / 'two'), 'two'])}\n"
        "label = 'The Second'\nicon = 'https://agents.example/two.png'\nprocess = 'session'\n"
        "[agents.gone]\ncommand = ['no-such-program-at-all']\n"
    )
    with served(tmp_path, "--config", str(file), builtin=True) as daemon:
        two, one, gone = daemon.ask("GET", "/agents")["agents"]
        assert [two["name"], one["name"], gone["name"]] == ["two", "one", "gone"]
        assert (two["default"], two["label"], two["icon"]) == (True, "The Second", "https://agents.example/two.png")
        assert (one["default"], one["label"], one["state"]) == (False, "one", "not_started")
        assert gone["state"] == "unavailable"
        assert "was not found on PATH" in gone["why"]
        assert "'no-such-program-at-all'" in daemon.err.read_text()
        shown = daemon.ask("GET", "/agents/one")
        assert (shown["state"], shown["agentName"], shown["version"]) == ("running", "one", "1.2.3")
        assert shown["capabilities"] == {"promptCapabilities": {"embeddedContext": False}}
        status, why = daemon.refused("POST", "/session", {"agent": "gone"})
        assert status >= 500
        assert "no-such-program-at-all" in why["detail"]
        assert daemon.said(daemon.session(), "hello") == "I am two."


def test_a_default_agent_that_cannot_be_started_is_refused_at_once(tmp_path: Path) -> None:
    refused = run("serve", "--agent", "one=no-such-program-at-all", *heard("two", tmp_path), home=tmp_path)
    assert refused.code == CONFIG
    assert "install it, or give its full path" in refused.err


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("no/name=agent", "is no name for an agent"),
        ("default=agent", "give this one another name"),
        ("one=", "has no command"),
        ('one="a', "a quote without its end"),
    ],
)
def test_a_flag_that_names_no_agent_is_refused_with_what_to_do(tmp_path: Path, flag: str, words: str) -> None:
    refused = run("serve", "--agent", flag, home=tmp_path)
    assert refused.code == CONFIG
    assert words in refused.err


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[agents.one]\ncomand = ['x']", "did you mean command?"),
        ("[agents.one]\ncommand = 'x'", "as a list"),
        ("[agents.one]\ncommand = ['x']\nurl = 'https://a.example/acp'", "give one of them"),
        ("[agents.one]\ncommand = ['x']\ntoken = 't'", "give url, or leave token out"),
        ("[agents]\none = 'x'", "write [agents.one]"),
        ("default_agent = 'three'\n[agents.one]\ncommand = ['x']", "there is no such agent; name one of one"),
    ],
)
def test_a_table_that_makes_no_agent_is_refused_with_what_to_do(tmp_path: Path, table: str, words: str) -> None:
    file = tmp_path / "turnwire.toml"
    file.write_text(table + "\n")
    file.chmod(0o600)
    refused = run("serve", "--config", str(file), home=tmp_path)
    assert refused.code == CONFIG
    assert words in refused.err


# -- beside each other ---------------------------------------------------------------------------------------


def test_an_agent_that_dies_again_and_again_does_not_disturb_another(tmp_path: Path) -> None:
    flags = ("--limit", "breaker_failures=100")
    with served(tmp_path, *named("steady", *SCRIPTED), *heard("mortal", tmp_path), *flags) as daemon:
        steady, mortal = daemon.session(), daemon.session(agent="mortal")
        for turn in range(6):
            running = daemon.prompt(steady, f"echo {turn}")
            end = daemon.ended(mortal, daemon.prompt(mortal, "die"))
            assert end["code"] == "agent_exited"
            assert daemon.ended(steady, running)["stopReason"] == "end_turn"
        last = daemon.ended(mortal, daemon.prompt(mortal, "hello"))
        assert last["stopReason"] == "end_turn"
        assert kinds(daemon, steady, ends=6).count("agent_started") == 1
        assert kinds(daemon, mortal, ends=7).count("agent_started") == 7


@pytest.mark.guarantee("G13")
def test_a_key_reaches_its_agent_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "turnwire.toml"
    file.write_text(
        f"[agents.first]\ncommand = {json.dumps(ENV_AGENT)}\nenv = ['FIRST_KEY']\n"
        "env-set = { SET = 'a-set-secret' }\n"
        f"[agents.second]\ncommand = {json.dumps(ENV_AGENT)}\n"
    )
    world_readable = run("serve", "--config", str(file), home=tmp_path)
    assert world_readable.code == CONFIG
    assert "chmod 600" in world_readable.err
    file.chmod(0o600)
    with served(tmp_path, "--config", str(file), "--log-level", "debug", builtin=True, FIRST_KEY=KEY) as daemon:
        first, second = daemon.session(agent="first"), daemon.session(agent="second")
        assert daemon.said(first, "FIRST_KEY SET") == f"FIRST_KEY={KEY}\nSET=a-set-secret"
        assert daemon.said(second, "FIRST_KEY SET") == "FIRST_KEY=(none)\nSET=(none)"
        daemon.ended(first, daemon.prompt(first, "die FIRST_KEY SET"))
        shown = json.dumps([daemon.ask("GET", f"/session/{each}/explain") for each in (first, second)])
        shown += json.dumps(daemon.ask("GET", "/agents")) + daemon.run("config", "--config", str(file)).out
        shown += daemon.err.read_text()
        shown += "".join(each.read_text(errors="replace") for each in Path("/proc").glob("[0-9]*/cmdline"))
        assert KEY not in shown
        assert "a-set-secret" not in shown


# -- for life ------------------------------------------------------------------------------------------------


def test_a_session_stays_with_its_agent_when_another_becomes_the_default(tmp_path: Path) -> None:
    both = (*heard("one", tmp_path), *heard("two", tmp_path))
    with served(tmp_path, *both) as daemon:
        session = daemon.session()
        daemon.said(session, "hello")
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
    with served(tmp_path, *both, "--default-agent", "two") as daemon:
        assert daemon.said(session, "again") == "I am one."
        assert daemon.said(daemon.session(), "hello") == "I am two."
        assert daemon.stop() == 0
    with served(tmp_path, *heard("two", tmp_path)) as daemon:
        end = daemon.ended(session, daemon.prompt(session, "and now"))
        assert "[agents.one]" in end["message"]
        assert "I am one." in json.dumps(daemon.ask("GET", f"/session/{session}/transcript"))


def test_sessions_of_a_daemon_with_one_agent_are_the_default_ones(tmp_path: Path) -> None:
    with served(tmp_path, "--", *HEARD_AGENT, str(tmp_path / "old"), "old") as daemon:
        session = daemon.session()
        assert daemon.said(session, "hello") == "I am old."
        assert daemon.ask("GET", f"/session/{session}")["agent"] == "default"
        assert daemon.stop() == 0
    with served(tmp_path, *heard("one", tmp_path)) as daemon:
        assert daemon.said(session, "again") == "I am one."


# -- handed over ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("takes", ["resources", "text"])
def test_a_session_is_handed_to_another_agent_with_its_conversation(tmp_path: Path, takes: str) -> None:
    with served(tmp_path, *heard("one", tmp_path), *heard("two", tmp_path, takes)) as daemon:
        session = daemon.session()
        daemon.said(session, "the word is sesame")
        fork = daemon.ask("POST", f"/session/{session}/fork", {"agent": "two", "title": "Handed over"})
        assert fork["agent"] == "two"
        other = fork["sessionId"]
        assert daemon.said(other, "go on") == "I am two."
        daemon.said(other, "and on")
        (context, asked), (later,) = prompts(tmp_path, "two")
        text = context["resource"]["text"] if takes == "resources" else context["text"]
        assert "the word is sesame" in text
        assert "I am one." in text
        assert [asked["text"], later["text"]] == ["go on", "and on"]
        shown = daemon.ask("GET", f"/session/{other}")
        assert (shown["forkOf"], shown["title"]) == (session, "Handed over")
        transcript = json.dumps(daemon.ask("GET", f"/session/{other}/transcript"))
        assert "go on" in transcript
        assert "sesame" not in transcript, "what was said to the other agent is in the other session"
        assert daemon.said(session, "still here") == "I am one."
        # An agent that has lost its session receives everything again.
        daemon.ended(other, daemon.prompt(other, "die"))
        daemon.said(other, "once more")
        told_again, last = prompts(tmp_path, "two")[-1]
        assert "sesame" in json.dumps(told_again)
        assert last["text"] == "once more"


# -- for ACP clients -----------------------------------------------------------------------------------------


def test_an_editor_names_the_agent_by_address_flag_or_meta(tmp_path: Path) -> None:
    with served(tmp_path, *heard("one", tmp_path), *heard("two", tmp_path), "--no-auth") as daemon:
        for words in (["--daemon", daemon.url, "--agent", "two"], ["--daemon", f"{daemon.url}/acp/two"]):
            with editor(tmp_path, *words) as started:
                session = started.open(tmp_path)
                started.ended(started.prompt(session, "hello"))
                assert started.text() == "I am two."
                (listed,) = [
                    each for each in started.ask("session/list", {})["sessions"] if each["sessionId"] == session
                ]
                assert listed["_meta"] == {"turnwire": {"agent": "two"}}
        with editor(tmp_path, "--daemon", daemon.url) as started:
            first = started.open(tmp_path)
            wanted = {"turnwire": {"agent": "two"}}
            second = started.ask("session/new", {"cwd": str(tmp_path), "mcpServers": [], "_meta": wanted})[
                "sessionId"
            ]
            for session in (first, second):
                started.ended(started.prompt(session, "hello"))
            assert len(started.ask("session/list", {})["sessions"]) == 4
            refused = started.answer(
                started.begin(
                    "session/new", {"cwd": str(tmp_path), "mcpServers": [], "_meta": {"turnwire": {"agent": "x"}}}
                )
            )
            assert refused["error"]["code"] == -32602
            assert "one, two" in refused["error"]["message"]
        assert [len(prompts(tmp_path, each)) for each in ("one", "two")] == [1, 3]


def test_an_address_of_one_agent_offers_what_that_agent_offers(tmp_path: Path) -> None:
    hello: dict[str, Any] = {"protocolVersion": 1, "clientCapabilities": {}}
    with served(tmp_path, *heard("one", tmp_path), *heard("two", tmp_path, "resources"), "--no-auth") as daemon:
        offered: dict[str, bool] = {}
        for path in ("/acp", "/acp/one", "/acp/two"):
            answer = httpx.post(
                daemon.url + path, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
            )
            offered[path] = answer.json()["result"]["agentCapabilities"]["promptCapabilities"].get(
                "embeddedContext", False
            )
        assert offered == {"/acp": False, "/acp/one": False, "/acp/two": True}


def test_an_editor_that_hosts_its_agent_picks_it_by_name(tmp_path: Path) -> None:
    file = tmp_path / "turnwire.toml"
    file.write_text(
        "\n".join(
            f"[agents.{each}]\ncommand = {json.dumps([*HEARD_AGENT, str(tmp_path / each), each])}"
            for each in ("one", "two")
        )
    )
    with editor(tmp_path, "--config", str(file), "--agent", "two") as started:
        started.ended(started.prompt(started.open(tmp_path), "hello"))
        assert started.text() == "I am two."


# -- known by name -------------------------------------------------------------------------------------------


def on_path(folder: Path, name: str, *command: str) -> str:
    """Return a PATH on which a program of this name is first."""
    program = folder / "programs" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def test_a_known_agent_is_started_by_its_name_and_gets_its_key(tmp_path: Path) -> None:
    path = on_path(tmp_path, "claude-agent-acp", *ENV_AGENT)
    with served(
        tmp_path, "--agent", "claude", *named("other", *ENV_AGENT), PATH=path, ANTHROPIC_API_KEY=KEY
    ) as daemon:
        assert daemon.said(daemon.session(), "ANTHROPIC_API_KEY") == f"ANTHROPIC_API_KEY={KEY}"
        assert daemon.said(daemon.session(agent="other"), "ANTHROPIC_API_KEY") == "ANTHROPIC_API_KEY=(none)"
        shown = run("agents", "--json", home=tmp_path, PATH=path, ANTHROPIC_API_KEY=KEY)
        claude = next(each for each in shown.lines if each["name"] == "claude")
        assert (claude["can_start"], claude["how"]) == (True, "its own program")
        assert claude["keysSet"] == ["ANTHROPIC_API_KEY"]
        assert KEY not in shown.out
    tried = run("doctor", "--agent", "claude", "--port", "0", home=tmp_path, PATH=path)
    assert "claude (Claude Agent): starts, and speaks ACP version 1" in tried.out


def test_a_name_that_nobody_knows_and_an_agent_that_is_not_there_say_what_to_do(tmp_path: Path) -> None:
    unknown = run("serve", "--agent", "clod", home=tmp_path)
    assert unknown.code == CONFIG
    assert "--agent clod=COMMAND, or one of builtin, claude," in unknown.err
    programs = tmp_path / "nothing"
    programs.mkdir()
    absent = run("serve", "--agent", "claude", home=tmp_path, PATH=str(programs))
    assert absent.code == CONFIG
    assert "put `claude-agent-acp` on PATH" in absent.err
    shown = run("agents", home=tmp_path, PATH=str(programs))
    assert "put `claude-agent-acp` on PATH" in shown.out


def test_the_built_in_agent_can_be_one_of_several(tmp_path: Path) -> None:
    with served(tmp_path, *heard("one", tmp_path), "--agent", "builtin") as daemon:
        session = daemon.session(agent="builtin")
        assert daemon.ended(session, daemon.prompt(session, "hello"))["stopReason"] == "end_turn"
        assert prompts(tmp_path, "one") == []
        asked = daemon.run("prompt", "--agent", "one", "hello")
        assert asked.out == "I am one.\n"
        assert "no agent of this name" in daemon.run("prompt", "--agent", "nobody", "hello").err


def test_a_user_logs_in_at_an_agent_of_the_daemon_by_its_name(tmp_path: Path) -> None:
    with served(tmp_path, *heard("one", tmp_path), *named("shy", *SCRIPTED, "--auth-required")) as daemon:
        status, why = daemon.refused("POST", "/session", {"agent": "shy"})
        assert (status, why["code"]) == (424, "auth_required")
        assert "offers no way to log in" in daemon.run("agents", "login", "one").out
        assert daemon.run("agents", "login", "nobody").code != 0
        wrong = daemon.run("agents", "login", "shy", "magic")
        assert "no such way to log in" in wrong.err
        assert daemon.run("agents", "login", "shy").out == "logged in at shy\n"
        assert daemon.said(daemon.session(agent="shy"), "echo hello") == "hello"
