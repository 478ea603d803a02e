"""Two editors that start `turnwire stdio` on one folder: both work, and neither takes the other's turn with it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.editor import FORMS, V1, V2, Editor, editor
from tests.cli.rig import WAIT_S, served

DATA = ("--data", "data")


def held(opened: Editor, home: Path, name: str) -> tuple[str, int, Path]:
    """A session with a turn that goes on until its gate is there."""
    session, gate = opened.open(home), home / name
    prompt = opened.prompt(session, f"say 1 begun\ngate {gate}\nsay 1 ended")
    opened.said("begun")
    return session, prompt, gate


@contextmanager
def after(first: Editor, home: Path) -> Generator[Editor]:
    """Another editor on the folder, once the first has it."""
    while not (home / "data" / "stdio.sock").exists():
        assert first.process.poll() is None, first.errors
    with editor(home, *DATA) as second:
        yield second


@pytest.mark.parametrize("hello", [V1, V2], ids=["v1", "v2"])
def test_two_editors_on_one_folder_both_work_and_see_each_others_sessions(
    tmp_path: Path, hello: dict[str, object]
) -> None:
    version = 1 if hello is V1 else 2
    with editor(tmp_path, *DATA) as first, after(first, tmp_path) as second:
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
    with editor(tmp_path, *DATA) as first, after(first, tmp_path) as second:
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
    with editor(tmp_path, *DATA, "--limit", "drain_s=0") as first, after(first, tmp_path) as second:
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


@pytest.mark.requirement("G3")
def test_when_the_one_with_the_log_is_killed_the_other_goes_on_with_it(tmp_path: Path) -> None:
    with editor(tmp_path, *DATA) as first, after(first, tmp_path) as second, after(first, tmp_path) as third:
        session, prompt, _ = held(second, tmp_path, "gate")
        third.ask("initialize", V1)
        first.process.kill()
        ended = second.answer(prompt)
        assert "error" in ended, "the turn went with its agent, and has its one end"
        assert second.ended(second.prompt(session, "say 1 again")) == "end_turn"
        assert session in [each["sessionId"] for each in third.ask("session/list", {})["sessions"]]
        # Whichever of them has the log now stays for the other.
        assert second.process.stdin is not None
        second.process.stdin.close()
        other = third.ask("session/new", {"cwd": str(tmp_path), "mcpServers": []})["sessionId"]
        assert third.ended(third.prompt(other, "say 1 last")) == "end_turn"
        assert third.leave() == 0
        assert second.process.wait(WAIT_S) == 0


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
    agent = (sys.executable, "-m", "turnwire.testing.agent")
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
    other = ("--", sys.executable, "-m", "turnwire.testing.agent", "--profile", "v1")
    with editor(tmp_path, *DATA) as first:
        first.open(tmp_path)
        with editor(tmp_path, *DATA, *other) as second:
            refused = second.answer(second.begin("initialize", V1))["error"]
            assert second.process.wait(WAIT_S) == 75

    assert "another agent" in refused["message"]
    assert "--data DIR" in refused["message"]


def test_a_folder_of_a_running_daemon_is_refused_at_once_with_the_way_into_it(tmp_path: Path) -> None:
    with served(tmp_path, "--data", str(tmp_path / "data")) as daemon, editor(tmp_path, *DATA) as opened:
        refused = opened.answer(opened.begin("initialize", V1))["error"]
        assert opened.process.wait(WAIT_S) == 75

    assert f"turnwire stdio --daemon {daemon.url}" in refused["message"]
