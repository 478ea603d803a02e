"""`turnwire prompt`: the agent's text on stdout, everything else on stderr, and an exit code for the outcome."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from tests.cli.rig import Served, finish, lines_of, run

AGENT = (sys.executable, "-m", "turnwire_testing.agent")


def test_the_words_of_the_agent_are_all_of_stdout(daemon: Served) -> None:
    shown = daemon.run("prompt", "--new", "plan look; write\ntool t1 read Read the file\nsay 2 hi")

    assert (shown.code, shown.out) == (0, "hihi\n")
    session, *notes = shown.err.splitlines()
    assert session.startswith("turnwire: session s_")
    assert notes == ["plan 0/2: look", "✓ Read the file", "  t1 is done"]


def test_words_that_are_not_quoted_are_one_prompt_and_stdin_is_read_for_a_dash(daemon: Served) -> None:
    assert daemon.run("prompt", "--new", "hello", "there", "you").out == "hello there you\n"
    assert daemon.run("prompt", "--new", "-", stdin="from\na pipe").out == "from\na pipe\n"
    shown = daemon.run("prompt", "-", stdin=" \n")
    assert shown.code == 2


def test_a_folder_is_continued_unless_a_new_session_is_wanted(daemon: Served) -> None:
    def session(*flags: str) -> str:
        return daemon.run("prompt", *flags, "--json", "hi").lines[-1]["sessionId"]

    first = session("--new")
    assert session() == first
    assert session("--new") != first
    assert session("-s", first) == first


def test_as_json_every_event_is_a_line_and_the_result_is_the_last(daemon: Served) -> None:
    shown = daemon.run("prompt", "--new", "--json", "say 2 hi")

    *events, result = shown.lines
    ids = [each["id"] for each in events]
    assert ids == sorted(set(ids))
    assert events[-1]["type"] == "turn_complete"
    assert {each["promptId"] for each in events} == {result["promptId"]}
    assert (result["type"], result["stopReason"], result["text"]) == ("result", "end_turn", "hihi")


@pytest.mark.parametrize(("reason", "code"), [("max_tokens", 10), ("max_turn_requests", 11), ("refusal", 12)])
def test_the_exit_code_is_the_stop_reason(reason: str, code: int, daemon: Served) -> None:
    shown = daemon.run("prompt", "--new", f"stop {reason}")

    assert shown.code == code
    assert reason in shown.err


def test_a_turn_that_fails_says_why_in_words_and_as_json(daemon: Served) -> None:
    shown = daemon.run("prompt", "--new", "error -32001 it is broken")
    assert shown.code == 76
    assert "it is broken" in shown.err

    shown = daemon.run("prompt", "--new", "--json", "exit 3")
    assert shown.code == 76
    assert shown.lines[-1]["error"]["code"] == "agent_exited"


def test_the_first_interrupt_cancels_the_turn(daemon: Served) -> None:
    with daemon.begun("prompt", "--new", "tool t1 read Begun\nnever") as process:
        assert any("Begun" in line for line in lines_of(process))
        process.send_signal(signal.SIGINT)
        shown = finish(process)

    assert shown.code == 130
    assert "cancelling" in shown.out
    assert "the turn ended: cancelled" in shown.out


@pytest.mark.guarantee("G8")
def test_the_second_interrupt_leaves_the_turn_running(daemon: Served) -> None:
    session = daemon.session()
    with daemon.begun("prompt", "-s", session, "ignore-cancel\ntool t1 read Begun\nnever") as process:
        for line in lines_of(process):
            if "Begun" in line or "cancelling" in line:
                process.send_signal(signal.SIGINT)
            if "goes on without us" in line:
                break
        assert finish(process).code == 130
    turn = daemon.ask("GET", f"/session/{session}/turns/current")
    assert turn["state"] == "running"
    daemon.ask("POST", f"/session/{session}/settle", {"promptId": turn["promptId"]})


def test_a_question_without_a_terminal_stays_open_and_says_how_to_answer(daemon: Served) -> None:
    session = daemon.session()
    with daemon.begun("prompt", "-s", session, "ask t1 allow_once,reject_once") as process:
        command = next(line for line in lines_of(process) if "next: turnwire answer" in line)
        words = command.split("next: turnwire ")[1].split()
        assert words[-1] == "allow_once|reject_once"
        assert daemon.run(*words[:-1], "allow_once").code == 0
        shown = finish(process)

    assert (shown.code, shown.out.splitlines()[-1]) == (0, "selected allow_once")


def test_a_busy_session_refuses_at_once_if_it_is_asked_to(daemon: Served) -> None:
    session = daemon.session()
    prompt = daemon.prompt(session, "never")
    shown = daemon.run("prompt", "-s", session, "--when-busy", "reject", "now")
    assert shown.code == 75
    daemon.ask("POST", f"/session/{session}/cancel", {"promptId": prompt})


def test_the_same_key_is_the_same_prompt(daemon: Served) -> None:
    session = daemon.session()
    one, two = (daemon.run("prompt", "-s", session, "--json", "--key", "k1", "hi").lines[-1] for _ in "ab")

    assert one == two


def test_a_mode_that_is_not_offered_is_refused(daemon: Served) -> None:
    shown = daemon.run("prompt", "--new", "--mode", "nope", "hi")

    assert shown.code == 65


def test_an_agent_behind_the_dashes_needs_no_daemon(tmp_path: Path) -> None:
    shown = run("prompt", "hello", "there", "--", *AGENT, home=tmp_path)
    assert (shown.code, shown.out, shown.err) == (0, "hello there\n", "")

    shown = run("prompt", "plan a; b\ntool t1 read Read\nsay 2 hi", "--", *AGENT, "--profile", "v2", home=tmp_path)
    assert (shown.code, shown.out, shown.err) == (0, "hihi\n", "plan 0/2: a\n✓ Read\n  t1 is done\n")

    shown = run("prompt", "ask t1 allow_once,reject_once", "--", *AGENT, home=tmp_path)
    assert (shown.code, shown.out) == (0, "selected reject_once\n")
    assert "nobody can answer here" in shown.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["hi", "--", "./no-such-agent"], 78, "'./no-such-agent' does not exist"),
        (["hi", "--", "no-such-agent"], 78, "'no-such-agent' was not found on PATH"),
        (["hi", "--", "."], 78, "'.' is a folder"),
        (["hi", "--", "sh -c true"], 78, "write it without the quotes: -- sh -c true"),
        (["hi", "--", "false"], 69, "exit code 1"),
        (["hi", "-s", "s1", "--", "agent"], 2, "no daemon"),
        (["--", "agent"], 2, "no prompt"),
    ],
)
def test_what_cannot_be_asked_says_what_to_do(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    shown = run("prompt", *words, home=tmp_path)

    assert shown.code == code
    assert said in shown.err


def test_an_agent_that_is_not_executable_is_reported_with_chmod(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("")
    shown = run("prompt", "hi", "--", "./agent.py", home=tmp_path)

    assert shown.code == 78
    assert "is not executable; run `chmod +x ./agent.py`, or start it with `python3 ./agent.py`" in shown.err


FAILING = """
from turnwire.agent import Agent, Turn

agent = Agent("failing")


@agent.prompt
async def answer(turn: Turn) -> None:
    for line in range(40):
        print("line", line)
    if turn.text == "fail":
        raise RuntimeError("the exception itself")


agent.run()
"""


@pytest.mark.parametrize(("text", "code"), [("work", 0), ("fail", 76)])
def test_everything_that_a_private_agent_writes_to_stderr_is_shown(text: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(FAILING)
    shown = run("prompt", text, "--", sys.executable, "agent.py", home=tmp_path)

    assert shown.code == code
    lines = shown.err.splitlines()
    assert [each for each in lines if "line " in each and "File" not in each] == [
        f"stderr: line {number}" for number in range(40)
    ]
    assert ("stderr: RuntimeError: the exception itself" in lines) is (text == "fail")


def test_a_session_that_is_not_there_is_told_with_the_next_step(daemon: Served) -> None:
    shown = daemon.run("prompt", "-s", "nowhere", "hi")

    assert shown.code == 66
    assert "turnwire sessions" in shown.err
