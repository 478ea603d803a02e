"""Editors that start `turnwire stdio` on one folder share its daemon."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.cli.editor import FORMS, V1, V2, Editor, editor, program
from tests.cli.rig import WAIT_S, environment, served
from tests.support.editors import editor_daemons

DATA = ("--data", "data")


def held(opened: Editor, home: Path, name: str) -> tuple[str, int, Path]:
    """Return a session with a turn that continues until its gate exists."""
    session, gate = opened.open(home), home / name
    prompt = opened.prompt(session, f"say 1 begun\ngate {gate}\nsay 1 ended")
    opened.said("begun")
    return session, prompt, gate


@pytest.mark.parametrize("hello", [V1, V2], ids=["v1", "v2"])
def test_two_editors_on_one_folder_both_work_and_see_each_others_sessions(
    tmp_path: Path, hello: dict[str, object]
) -> None:
    version = 1 if hello is V1 else 2
    with editor(tmp_path, *DATA) as first, editor(tmp_path, *DATA) as second:
        sessions = [each.open(tmp_path, hello) for each in (first, second)]
        for opened, session in zip((first, second), sessions, strict=True):
            assert opened.ended(opened.prompt(session, "say 1 hello"), version) == "end_turn"
        for opened in (first, second):
            listed = opened.ask("session/list", {})["sessions"]
            assert {each["sessionId"] for each in listed} == {*sessions}
        assert second.leave() == 0
        assert first.ended(first.prompt(sessions[0], "say 1 more"), version) == "end_turn"
        assert first.leave() == 0


def test_a_form_waits_as_long_as_another_editor_of_the_folder_can_show_it(tmp_path: Path) -> None:
    with editor(tmp_path, *DATA) as first, editor(tmp_path, *DATA) as second:
        session = first.open(tmp_path)
        second.ask("initialize", FORMS)
        running = first.prompt(session, "say 1 go\nelicit name?")
        first.said("go")
        second.ask("session/load", {"sessionId": session, "cwd": str(tmp_path), "mcpServers": []})
        heard = [each for each in second.heard if each.get("method") == "elicitation/create"]
        asked = heard[0] if heard else second.until(lambda each: each.get("method") == "elicitation/create")
        second.send(id=asked["id"], result={"action": "accept", "content": {"answer": "Ada"}})
        assert first.ended(running) == "end_turn"
        assert 'elicited accept {"answer":"Ada"}' in first.text()
        assert (second.leave(), first.leave()) == (0, 0)


@pytest.mark.parametrize("how", ["leaves", "SIGTERM", "SIGINT"])
def test_an_editor_that_ends_first_does_not_end_the_turn_of_the_other(tmp_path: Path, how: str) -> None:
    with editor(tmp_path, *DATA, "--limit", "drain_s=0") as first, editor(tmp_path, *DATA) as second:
        session, prompt, gate = held(second, tmp_path, "gate")
        if how == "leaves":
            assert first.process.stdin is not None
            first.process.stdin.close()
        else:
            first.process.send_signal(signal.Signals[how])
        gate.touch()
        assert second.ended(prompt) == "end_turn"
        assert second.ended(second.prompt(session, "say 1 more")) == "end_turn"
        assert second.leave() == 0
        assert first.process.wait(WAIT_S) == 0


@pytest.mark.guarantee("G3")
def test_editors_of_a_killed_daemon_start_another_and_continue(tmp_path: Path) -> None:
    with editor(tmp_path, *DATA) as first, editor(tmp_path, *DATA) as second:
        session, prompt, _ = held(first, tmp_path, "gate")
        second.ask("initialize", V1)
        [daemon] = editor_daemons(environment(tmp_path))
        os.kill(daemon.pid, signal.SIGKILL)
        assert "error" in first.answer(prompt), "the turn went with its agent, and has its one end"
        assert first.ended(first.prompt(session, "say 1 again")) == "end_turn"
        assert session in [each["sessionId"] for each in second.ask("session/list", {})["sessions"]]
        assert len(editor_daemons(environment(tmp_path))) == 1


def test_editors_that_start_at_the_same_moment_share_the_folder(tmp_path: Path) -> None:
    with editor(tmp_path) as first, editor(tmp_path) as second, editor(tmp_path) as third:
        everybody = (first, second, third)
        asked = [each.begin("initialize", V1) for each in everybody]
        for each, request in zip(everybody, asked, strict=True):
            assert each.answer(request)["result"]["protocolVersion"] == 1
        for each in everybody:
            session = each.ask("session/new", {"cwd": str(tmp_path), "mcpServers": []})["sessionId"]
            assert each.ended(each.prompt(session, "say 1 hello")) == "end_turn"


def test_two_agents_of_one_editor_have_folders_of_their_own_whatever_their_flags(tmp_path: Path) -> None:
    agent = (sys.executable, "-m", "turnwire_testing.agent")
    builtin = (sys.executable, "-m", "turnwire", "agent")
    with editor(tmp_path, "--", *agent) as first, editor(tmp_path, "--", *builtin) as second:
        sessions = [each.open(tmp_path) for each in (first, second)]
        assert first.ended(first.prompt(sessions[0], "say 1 hello")) == "end_turn"
        assert second.ended(second.prompt(sessions[1], "hello")) == "end_turn"
        assert first.leave() == second.leave() == 0
    with editor(tmp_path, "--", *agent, "--profile", "v1") as again:
        again.ask("initialize", V1)
        assert [each["sessionId"] for each in again.ask("session/list", {})["sessions"]] == [sessions[0]]


def test_an_editor_with_another_agent_is_told_at_once_why_and_what_to_do(tmp_path: Path) -> None:
    other = ("--", sys.executable, "-m", "turnwire_testing.agent", "--profile", "v1")
    with editor(tmp_path, *DATA) as first:
        first.open(tmp_path)
        with editor(tmp_path, *DATA, *other) as second:
            refused = second.answer(second.begin("initialize", V1))["error"]
            assert second.process.wait(WAIT_S) == 75

    assert "another agent" in refused["message"]
    assert "--data DIR" in refused["message"]


def test_daemon_of_the_folder_is_used_unless_another_agent_is_named(tmp_path: Path) -> None:
    with served(tmp_path, "--data", str(tmp_path / "data"), "--cwd", str(tmp_path)) as daemon:
        with program(tmp_path, "stdio", *DATA) as opened:
            session = opened.open(tmp_path)
            assert daemon.ask("GET", f"/session/{session}")["sessionId"] == session
            assert opened.leave() == 0
        with editor(tmp_path, *DATA) as opened:
            refused = opened.answer(opened.begin("initialize", V1))["error"]
            assert opened.process.wait(WAIT_S) == 75

    assert f"turnwire stdio --daemon {daemon.url}" in refused["message"]


def test_daemon_that_cannot_start_is_reported_to_the_editor_and_on_stderr(tmp_path: Path) -> None:
    with editor(tmp_path, "--", "no-such-agent") as opened:
        refused = opened.answer(opened.begin("initialize", V1))["error"]
        assert opened.process.wait(WAIT_S) == 78

    assert "was not found on PATH" in refused["message"]
    assert refused["message"] in opened.errors
