"""`turnwire stdio -- agent`: an editor's agent that remembers, over real pipes."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
from tests.cli.editor import V1, V2, Editor, Json, editor, update
from tests.cli.rig import WAIT_S, environment, is_there, run
from tests.support.editors import editor_daemons, wait_for_exit

from turnwire.session.codec import decode
from turnwire.session.events import TurnFailed

HELLO = {"v1": V1, "v2": V2}


def scripted(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "turnwire_testing.agent", *arguments]


def bring_back(again: Editor, session: str, cwd: Path, version: int) -> None:
    """Load a session with its history, as each version does it."""
    wanted: Json = {"sessionId": session, "cwd": str(cwd), "mcpServers": []}
    if version == 1:
        again.ask("session/load", wanted)
    else:
        again.ask("session/resume", {**wanted, "replayFrom": {"type": "start"}})


def shown_text(heard: list[Json]) -> str:
    """Return the agent's text as an editor shows it, from whole messages and chunks alike."""
    texts: list[str] = []
    for each in map(update, heard):
        if each.get("sessionUpdate") == "agent_message_chunk":
            texts.append(each["content"]["text"])
        elif each.get("sessionUpdate") == "agent_message":
            texts += [block["text"] for block in each["content"]]
    return "".join(texts)


def ends_of(opened: Editor) -> list[Json]:
    """Return the turn ends that a v1 editor received."""
    return opened.updates("turn_complete")


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("profile", ["v1", "v2"])
def test_an_editor_that_is_restarted_has_its_session_back_and_goes_on(
    tmp_path: Path, version: int, profile: str
) -> None:
    agent = ("--", *scripted("--profile", profile))
    with editor(tmp_path, *agent) as first:
        session = first.open(tmp_path, HELLO[f"v{version}"])
        assert first.ended(first.prompt(session, "hello there"), version) == "end_turn"
        assert first.leave() == 0
        assert shown_text(first.heard) == "hello there"

    with editor(tmp_path, *agent) as again:
        again.ask("initialize", HELLO[f"v{version}"])
        listed = again.ask("session/list", {})["sessions"]
        assert [each["sessionId"] for each in listed] == [session]
        bring_back(again, session, tmp_path, version)
        assert shown_text(again.heard) == "hello there"
        assert again.ended(again.prompt(session, "and more"), version) == "end_turn"
        assert again.leave() == 0
        assert shown_text(again.heard) == "hello thereand more"


def test_nothing_but_acp_is_on_stdout_and_bad_lines_are_answered(tmp_path: Path) -> None:
    with editor(tmp_path, "--data", "data", "--log-level", "debug", "--", *scripted()) as opened:
        opened.write("this is no JSON")
        opened.write('[{"jsonrpc":"2.0","id":1,"method":"initialize"}]')
        opened.send(id="early", method="session/new", params={"cwd": str(tmp_path), "mcpServers": []})
        codes = [opened.next() for _ in range(3)]
        assert [(each["id"], each["error"]["code"]) for each in codes] == [
            (None, -32700),
            (None, -32600),
            ("early", -32600),
        ]
        session = opened.open(tmp_path)
        assert opened.ended(opened.prompt(session, "stderr 'a word of the agent'\nsay 1 fine")) == "end_turn"
        assert opened.leave() == 0
        assert "a word of the agent" in (tmp_path / "data" / "daemon.log").read_text()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("profile", ["v1", "v2"])
def test_a_form_that_the_editor_cannot_show_is_cancelled_and_the_turn_goes_on(
    tmp_path: Path, version: int, profile: str
) -> None:
    """Only editors can join here, so an answer would never come."""
    with editor(tmp_path, "--", *scripted("--profile", profile)) as opened:
        session = opened.open(tmp_path, HELLO[f"v{version}"])
        assert opened.ended(opened.prompt(session, "elicit name?\nsay 1 on"), version) == "end_turn"
        assert "elicited cancel {}" in shown_text(opened.heard)
        assert not [each for each in opened.heard if each.get("method") == "elicitation/create"]
        assert opened.leave() == 0


def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_heard(tmp_path: Path) -> None:
    with editor(tmp_path, "--limit", "frame_bytes=65536", "--", *scripted()) as opened:
        opened.write(json.dumps({"jsonrpc": "2.0", "id": 7, "method": "x", "params": {"long": "x" * 70_000}}))
        opened.begin("initialize", V1)
        heard = [opened.next(), opened.next()]
        [refusal] = [each for each in heard if "error" in each]
        assert (refusal["id"], "65536" in refusal["error"]["message"]) == (None, True)
        assert opened.leave() == 0


def test_requests_of_an_editor_that_only_ended_its_input_are_still_answered(tmp_path: Path) -> None:
    lines: list[Json] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": V1},
        {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": str(tmp_path), "mcpServers": []}},
    ]
    shown = run("stdio", home=tmp_path, stdin="".join(f"{json.dumps(each)}\n" for each in lines))

    assert shown.code == 0
    assert {each["id"] for each in shown.lines if "result" in each} == {1, 2}


@pytest.mark.guarantee("G8")
def test_a_turn_goes_on_when_the_editor_quits_and_its_end_is_there_afterwards(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with editor(tmp_path) as first:
        session = first.open(tmp_path)
        first.prompt(session, f"say 1 begun\ngate {gate}\nsay 1 ended")
        first.said("begun")
        assert first.process.stdin is not None
        first.process.stdin.close()
        gate.touch()
        assert first.process.wait(WAIT_S) == 0

    with editor(tmp_path) as again:
        again.ask("initialize", V1)
        bring_back(again, session, tmp_path, 1)
        assert again.text() == "begunended"
        assert [each["stopReason"] for each in ends_of(again)] == ["end_turn"]


@pytest.mark.guarantee("G3", "G14")
def test_daemon_of_an_editor_ends_with_a_silent_turn_and_leaves_no_process(tmp_path: Path) -> None:
    flags = ("--data", "data", *("--limit", "editor_idle_s=0.1"), *("--limit", "editor_turn_s=0.2"))
    with editor(tmp_path, *flags, "--limit", "drain_s=0") as first:
        session = first.open(tmp_path)
        [daemon] = editor_daemons(environment(tmp_path))
        first.prompt(session, "fork held\nnever")
        first.until(lambda each: update(each).get("sessionUpdate") == "agent_message_chunk")
        grandchild = int("".join(each for each in first.text() if each.isdigit()))
        assert is_there(grandchild)
        assert first.leave() == 0
        wait_for_exit(daemon)
        assert not is_there(grandchild)
        assert not editor_daemons(environment(tmp_path))

    with sqlite3.connect(tmp_path / "data" / "turnwire.db") as database:
        events = [decode(row[0]) for row in database.execute("SELECT body FROM events ORDER BY offset")]
    assert [each.code for each in events if isinstance(each, TurnFailed)] == ["daemon_stopped"]
    with editor(tmp_path, "--data", "data") as again:
        again.ask("initialize", V1)
        bring_back(again, session, tmp_path, 1)
        assert len(ends_of(again)) == 1
        assert again.ended(again.prompt(session, "still here")) == "end_turn"


def test_first_signal_ends_the_client_and_its_turn_continues(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with editor(tmp_path) as opened:
        session = opened.open(tmp_path)
        opened.prompt(session, f"say 1 begun\ngate {gate}\nsay 1 ended")
        opened.said("begun")
        opened.process.send_signal(signal.SIGTERM)
        assert opened.process.wait(WAIT_S) == 0
        gate.touch()
        with editor(tmp_path) as again:
            again.ask("initialize", V1)
            bring_back(again, session, tmp_path, 1)
            if "ended" not in again.text():
                again.said("ended")


def test_a_question_is_answered_and_a_cancel_ends_the_turn(tmp_path: Path) -> None:
    with editor(tmp_path) as opened:
        session = opened.open(tmp_path)
        asking = opened.prompt(session, "ask edit allow_once,reject_once")
        question = opened.until(lambda each: each.get("method") == "session/request_permission")
        chosen = question["params"]["options"][0]["optionId"]
        opened.send(id=question["id"], result={"outcome": {"outcome": "selected", "optionId": chosen}})
        assert opened.ended(asking) == "end_turn"
        assert f"selected {chosen}" in opened.text()
        waiting = opened.prompt(session, "say 1 waiting\nnever")
        opened.said("waiting")
        opened.send(method="session/cancel", params={"sessionId": session})
        assert opened.ended(waiting) == "cancelled"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--session", "s"], "--daemon"),
        (["--daemon", "http://127.0.0.1:1", "--", "my-agent"], "either"),
        (["--daemon", "http://127.0.0.1:1", "--durability", "full"], "durability"),
        (["--port", "1"], "--port"),
    ],
)
def test_words_that_do_not_fit_are_refused_as_usage(tmp_path: Path, words: list[str], reason: str) -> None:
    shown = run("stdio", *words, home=tmp_path)

    assert (shown.code, shown.out) == (2, "")
    assert reason in shown.err


@pytest.mark.parametrize(
    ("flag", "name", "gets"),
    [
        ("auto", "an editor of tomorrow", True),
        ("auto", "Zed", False),
        ("always", "Zed", True),
        ("asked", "an editor of tomorrow", False),
        ("off", "an editor of tomorrow", False),
    ],
)
def test_the_operator_says_which_v1_clients_are_sent_the_end_of_a_turn(
    tmp_path: Path, flag: str, name: str, gets: bool
) -> None:
    with editor(tmp_path, "--turn-complete", flag) as opened:
        session = opened.open(tmp_path, {**V1, "clientInfo": {"name": name, "version": "1"}})
        assert opened.ended(opened.prompt(session, "hello")) == "end_turn"
        assert len(ends_of(opened)) == gets


def test_the_operator_may_offer_version_1_only(tmp_path: Path) -> None:
    with editor(tmp_path, "--protocol", "1") as opened:
        assert opened.ask("initialize", V2)["protocolVersion"] == 1
