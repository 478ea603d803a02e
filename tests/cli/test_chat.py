"""`turnwire chat` as a user operates it: keys go in, and the terminal's screen is checked."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from tests.cli.rig import SCRIPTED, WAIT_S, Served, run, served
from tests.cli.shown import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    DOWN,
    ENTER,
    ESCAPE,
    TAB,
    UP,
    Terminal,
    on_screen,
)

HINT = ":help for keys and commands"
HISTORY = Path(".local/state/turnwire/chat-history")


def reads_keys(terminal: Terminal) -> None:
    """Wait until the session is open and the editor reads keys.

    The editor draws its input line after it put the terminal into raw mode. Keys that arrive earlier belong to the
    terminal's own line editing, which ends a line at Alt-Enter and consumes Ctrl-D.
    """
    terminal.until(HINT)
    terminal.until(lambda shown: any(line.startswith(">") for line in shown.lines), "the input line")


@contextmanager
def chatting(daemon: Served, *words: str, rows: int = 40, columns: int = 100) -> Generator[Terminal]:
    """Run a chat whose session is open and whose editor reads keys."""
    with on_screen(daemon.home, "chat", *words, rows=rows, columns=columns, env=daemon.env) as terminal:
        reads_keys(terminal)
        yield terminal


@pytest.fixture(scope="module")
def builtin(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """Run a daemon with the built-in agent, without a model."""
    with served(tmp_path_factory.mktemp("home"), builtin=True) as running:
        yield running


def last_prompt(daemon: Served, session: str) -> list[dict[str, Any]]:
    """The blocks of the newest prompt, as the log has them."""
    events = daemon.run("tail", session, "--until-now", "--json").lines
    prompt = [each["promptId"] for each in events if each["type"] == "turn_complete"][-1]
    said = [each["data"] for each in events if each.get("promptId") == prompt and each["type"] == "session_update"]
    updates = [each["update"] for each in said if not each.get("echo")]
    content: Any = next(each["content"] for each in updates if each["sessionUpdate"].startswith("user_message"))
    return cast("list[dict[str, Any]]", content if isinstance(content, list) else [content])


# -- a turn ------------------------------------------------------------------------------------------------------


def test_what_is_typed_is_a_prompt_and_its_turn_is_shown(daemon: Served) -> None:
    with chatting(daemon, "--new") as terminal:
        terminal.type("echo 'one two'", ENTER)
        terminal.until("> echo 'one two'")
        terminal.until(lambda shown: "one two" in shown.lines, "the answer")
        terminal.type("echo three", ENTER)
        terminal.until(lambda shown: "three" in shown.lines, "the next answer")
        terminal.type(CTRL_D)
        assert terminal.finish() == 0


@pytest.mark.parametrize("newline", [ALT_ENTER])
def test_a_prompt_has_as_many_lines_as_were_typed(newline: str, daemon: Served) -> None:
    session = daemon.session()
    with chatting(daemon, "-s", session) as terminal:
        terminal.type("first line", newline, "second line")
        terminal.until("  second line")
        terminal.type(ENTER)
        daemon.until(session, "turn_complete")
    assert last_prompt(daemon, session)[0]["text"] == "first line\nsecond line"


def test_what_is_pasted_with_ends_of_lines_stays_one_prompt(daemon: Served) -> None:
    session = daemon.session()
    with chatting(daemon, "-s", session) as terminal:
        terminal.type("\x1b[200~pasted one\rpasted two\r\x1b[201~")
        terminal.until("  pasted two")
        assert daemon.ask("GET", f"/session/{session}")["lastEventId"] < 5
        terminal.type("end", ENTER)
        daemon.until(session, "turn_complete")
    assert last_prompt(daemon, session)[0]["text"] == "pasted one\npasted two\nend"


def test_what_another_client_says_is_shown_as_well(daemon: Served) -> None:
    session = daemon.session()
    with chatting(daemon, "-s", session) as terminal:
        daemon.prompt(session, "echo 'from elsewhere'")
        terminal.until(lambda shown: "from elsewhere" in shown.lines, "the answer to somebody else")
        assert "echo 'from elsewhere'" in terminal.shown.text


def test_a_turn_that_fails_says_why_and_the_chat_goes_on(daemon: Served) -> None:
    with chatting(daemon, "--new") as terminal:
        terminal.type("exit 3", ENTER)
        terminal.until("failed")
        terminal.type("echo again", ENTER)
        terminal.until(lambda shown: "again" in shown.lines, "the next turn")


# -- the queue ---------------------------------------------------------------------------------------------------


def test_a_prompt_waits_while_another_runs_and_is_seen_waiting(daemon: Served, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    with chatting(daemon, "--new") as terminal:
        terminal.type(f"gate {gate}", ENTER)
        terminal.until("Ctrl-C cancels")
        terminal.type("echo later", ENTER)
        terminal.until("waits: echo later")
        gate.touch()
        terminal.until(lambda shown: "later" in shown.lines, "the turn that waited")
        terminal.gone("waits:")


def test_a_prompt_that_waits_can_be_taken_back_and_changed(daemon: Served, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    with chatting(daemon, "--new") as terminal:
        terminal.type(f"gate {gate}", ENTER)
        terminal.until("Ctrl-C cancels")
        terminal.type("echo lat", ENTER)
        terminal.until("waits: echo lat")
        terminal.type(":queue", ENTER)
        terminal.until("change which one?")
        terminal.type("1")
        terminal.until("take it back")
        terminal.type("1")
        terminal.until("> echo lat")
        terminal.type("est", ENTER)
        terminal.until("waits: echo latest")
        gate.touch()
        terminal.until(lambda shown: "latest" in shown.lines, "what it was changed to")


# -- Ctrl-C and leaving ------------------------------------------------------------------------------------------


def test_ctrl_c_empties_the_line_then_cancels_the_turn_then_leaves(daemon: Served) -> None:
    session = daemon.session()
    with chatting(daemon, "-s", session) as terminal:
        terminal.type("never", ENTER)
        terminal.until("Ctrl-C cancels")
        terminal.type("half a thought")
        terminal.until("> half a thought")
        terminal.type(CTRL_C)
        terminal.gone("half a thought")
        terminal.type(CTRL_C)
        terminal.until("cancelled")
        terminal.until("Ctrl-C again leaves")
        terminal.type(CTRL_C)
        assert terminal.finish() == 0
        assert f"turnwire chat -s {session}" in terminal.shown.text


def test_two_quick_ctrl_c_cancel_before_they_leave(daemon: Served) -> None:
    session = daemon.session()
    with chatting(daemon, "-s", session) as terminal:
        terminal.type("never", ENTER)
        terminal.until("Ctrl-C cancels")
        terminal.type(CTRL_C + CTRL_C)
        assert terminal.finish() == 0
    daemon.until(session, "turn_complete")


def test_ctrl_c_with_nothing_to_stop_hints_and_then_leaves(daemon: Served) -> None:
    with chatting(daemon, "--new") as terminal:
        terminal.type(CTRL_C)
        terminal.until("Ctrl-C again leaves")
        terminal.type("x")
        terminal.gone("again leaves")
        terminal.type(CTRL_C, CTRL_C)
        terminal.until("Ctrl-C again leaves")
        terminal.type(CTRL_C)
        assert terminal.finish() == 0


@pytest.mark.parametrize("way", [CTRL_D, f":quit{ENTER}"])
def test_leaving_is_no_cancel(way: str, daemon: Served, tmp_path: Path) -> None:
    gate, session = tmp_path / "open", daemon.session()
    with chatting(daemon, "-s", session) as terminal:
        terminal.type(f"gate {gate}", ENTER)
        terminal.until("Ctrl-C cancels")
        terminal.type(way)
        assert terminal.finish() == 0
        assert "its turn goes on" in terminal.shown.text
    gate.touch()
    daemon.until(session, "turn_complete")


def test_a_terminated_chat_leaves_the_terminal_as_it_was(daemon: Served) -> None:
    with chatting(daemon, "--new") as terminal:
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.finish() == 128 + signal.SIGTERM
        assert terminal.raw.rindex("\x1b[?2004l") > terminal.raw.rindex("\x1b[?2004h"), (
            "no paste is marked any more"
        )


# -- history and completion --------------------------------------------------------------------------------------


def test_what_was_typed_comes_back_with_up_also_in_the_next_chat(daemon: Served) -> None:
    with chatting(daemon, "--new") as terminal:
        terminal.type("echo remembered", ENTER)
        terminal.until(lambda shown: "remembered" in shown.lines, "the answer")
        terminal.type(CTRL_D)
        terminal.finish()
    with chatting(daemon, "--new") as terminal:
        terminal.type(UP)
        terminal.until("> echo remembered")
    assert stat.S_IMODE((daemon.home / HISTORY).stat().st_mode) == 0o600


def test_the_agents_commands_are_completed_with_what_they_do(builtin: Served) -> None:
    with chatting(builtin, "--new") as terminal:
        terminal.type("/mod")
        terminal.until("Show the modes")
        terminal.type("e", TAB)
        terminal.until("> /mode")


def test_the_chats_own_commands_are_completed_behind_a_colon(daemon: Served) -> None:
    with chatting(daemon, "--new") as terminal:
        terminal.type(":expl")
        terminal.until("why does nothing happen?")
        terminal.type(TAB)
        terminal.until("> :explain")
        terminal.type(ENTER)
        terminal.until("nothing is stuck")


def test_a_slash_is_the_agents_if_it_offers_that_and_else_the_chats(builtin: Served) -> None:
    with chatting(builtin, "--new") as terminal:
        terminal.type("/mode")
        terminal.until("Show the modes")
        terminal.type(ENTER)
        terminal.until("accept_edits")
        terminal.type(":mode", ENTER)
        terminal.until("which one?")
        terminal.type(ESCAPE)
        terminal.gone("which one?")
        terminal.type("/quit", ENTER)
        assert terminal.finish() == 0


def test_a_command_that_is_none_says_so(daemon: Served) -> None:
    with chatting(daemon, "--new") as terminal:
        terminal.type(":nonsense", ENTER)
        terminal.until("there is no command :nonsense")


def test_the_built_in_agent_is_given_what_is_in_a_file(builtin: Served) -> None:
    (builtin.home / "note.md").write_text("remember\n")
    session = builtin.session(cwd=str(builtin.home))
    with chatting(builtin, "-s", session) as terminal:
        terminal.type("hello @note.md", ENTER)
        builtin.until(session, "turn_complete")
        terminal.type(CTRL_D)
        assert terminal.finish() == 0
    assert last_prompt(builtin, session)[1]["resource"]["text"] == "remember\n"


def test_a_file_is_completed_behind_an_at_and_goes_to_the_agent(daemon: Served) -> None:
    (daemon.home / "chat files").mkdir(exist_ok=True)
    (daemon.home / "chat files" / "poem.txt").write_text("one end\n")
    (daemon.home / "chat-large.bin").write_bytes(b"\xff" * 10)
    session = daemon.session(cwd=str(daemon.home))
    with chatting(daemon, "-s", session) as terminal:
        terminal.type("look @chat")
        terminal.until("chat files/")
        terminal.type(" ", "\x7f")
        terminal.type("\x7f" * 5, '@"chat files/po')
        terminal.until("poem.txt")
        terminal.type(TAB)
        terminal.until('@"chat files/poem.txt"')
        terminal.type(" and @chat-large.bin.", ENTER)
        daemon.until(session, "turn_complete")
    words, poem, large = last_prompt(daemon, session)
    assert words["text"] == 'look @"chat files/poem.txt" and @chat-large.bin.'
    assert poem["resource"]["text"] == "one end\n"
    assert poem["resource"]["uri"] == (daemon.home / "chat files" / "poem.txt").as_uri()
    assert large["type"] == "resource_link", "what is no text is linked"
    assert large["uri"] == (daemon.home / "chat-large.bin").as_uri()


# -- menus -------------------------------------------------------------------------------------------------------


def test_the_mode_is_picked_by_arrows_or_by_number(builtin: Served) -> None:
    session = builtin.session()
    with chatting(builtin, "-s", session) as terminal:
        terminal.type(":mode", ENTER)
        terminal.until("> 1. Ask")
        terminal.type(DOWN)
        terminal.until("> 2. Accept edits")
        terminal.type(ENTER)
        terminal.until("mode accept_edits")
        terminal.type(":mode", ENTER)
        terminal.until("which one?")
        terminal.type("3")
        terminal.until("mode plan")
    assert "plan" in json.dumps(builtin.ask("GET", f"/session/{session}"))


def test_a_mode_and_a_session_are_wanted_by_flags(builtin: Served) -> None:
    with chatting(builtin, "--new", "--mode", "plan") as terminal:
        terminal.until("mode plan")


def test_another_session_is_picked_from_the_list_and_shows_its_last_turns(daemon: Served) -> None:
    older = daemon.session()
    for each in ("one", "two", "three", "four"):
        daemon.said(older, f"echo 'it was {each}'")
    with chatting(daemon, "--new") as terminal:
        terminal.type(":sessions", ENTER)
        terminal.until("Which session?")
        terminal.type("2")
        terminal.until(lambda shown: "it was four" in shown.lines, "its last turn")
        assert "1 earlier prompts are not shown" in terminal.shown.text
        assert "it was one" not in terminal.shown.text


def test_the_session_that_was_used_last_is_resumed(daemon: Served) -> None:
    session = daemon.session()
    daemon.said(session, "echo 'the newest'")
    with chatting(daemon, "--last") as terminal:
        terminal.until("the newest")
    with on_screen(daemon.home, "chat", "--resume", env=daemon.env) as terminal:
        terminal.until("Which session?")
        terminal.type("1")
        terminal.until(HINT)


def test_a_new_session_begins_where_one_is_asked_for(daemon: Served) -> None:
    session = daemon.session()
    with chatting(daemon, "-s", session) as terminal:
        terminal.type(":new", ENTER)
        terminal.until(lambda shown: shown.text.count(HINT) == 2, "another session")
        terminal.type(":resume s_0000", ENTER)
        terminal.until("no session has the id 's_0000'")
        terminal.type("echo 'still here'", ENTER)
        terminal.until(lambda shown: "still here" in shown.lines, "the chat goes on")


def test_an_agent_is_picked_from_those_of_the_daemon(tmp_path: Path) -> None:
    second = " ".join(SCRIPTED)
    with (
        served(tmp_path, "--agent", f"first={second}", "--agent", f"second={second}") as two,
        chatting(two, "--new") as terminal,
    ):
        terminal.type(":agent", ENTER)
        terminal.until("with which agent?")
        terminal.type("2")
        terminal.until(lambda shown: shown.text.count(HINT) == 2, "another session")
        terminal.until(
            lambda shown: any("second" in line for line in shown.lines[-4:]) or "second" in shown.text, "it"
        )


# -- what the agent asks -----------------------------------------------------------------------------------------


def test_a_permission_is_asked_in_place_and_a_stray_enter_allows_nothing(daemon: Served) -> None:
    with chatting(daemon, "--new") as terminal:
        terminal.type("ask t1 allow_once,reject_once", ENTER)
        terminal.until("2. reject once")
        assert "the agent asks: t1" in terminal.shown.text
        terminal.type(ENTER, "2")
        terminal.until("selected reject_once")
        terminal.gone("2. reject once")


def test_a_menu_swallows_nothing_of_what_is_being_typed(daemon: Served) -> None:
    session = daemon.session()
    with chatting(daemon, "-s", session) as terminal:
        terminal.type("I have ")
        terminal.until("> I have")
        daemon.prompt(session, "ask t1 allow_once,reject_once")
        terminal.until("send or empty the line to choose")
        terminal.type("1 wish")
        terminal.until("> I have 1 wish")
        terminal.type(CTRL_C)
        terminal.until("a number, or arrows")
        terminal.type("1")
        terminal.until("selected allow_once")


def test_a_question_that_is_answered_elsewhere_is_closed(daemon: Served) -> None:
    session = daemon.session()
    with chatting(daemon, "-s", session) as terminal:
        terminal.type("ask t1 allow_once,reject_once", ENTER)
        terminal.until("2. reject once")
        request = daemon.ask("GET", f"/session/{session}/permissions")["permissions"][0]["requestId"]
        body = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
        daemon.ask("POST", f"/session/{session}/permissions/{request}", body)
        terminal.until("selected allow_once")
        terminal.gone("2. reject once")


def test_a_question_can_be_left_and_asked_again(daemon: Served) -> None:
    with chatting(daemon, "--new") as terminal:
        terminal.type("ask t1 allow_once,reject_once", ENTER)
        terminal.until("2. reject once")
        terminal.type(ESCAPE)
        terminal.until("stays open")
        terminal.gone("2. reject once")
        terminal.type(":answer", ENTER)
        terminal.until(lambda shown: "  2. reject once" in shown.lines, "the menu")
        terminal.type("1")
        terminal.until("selected allow_once")


def test_ctrl_c_at_a_question_cancels_the_turn(daemon: Served) -> None:
    with chatting(daemon, "--new") as terminal:
        terminal.type("ask t1 allow_once,reject_once", ENTER)
        terminal.until("2. reject once")
        terminal.type(CTRL_C)
        terminal.gone("2. reject once")
        terminal.until("Ctrl-C again leaves")


def test_a_form_is_filled_in_field_by_field(builtin: Served) -> None:
    with chatting(builtin, "--new") as terminal:
        terminal.type("/demo elicit", ENTER)
        terminal.until("1. fill in the form")
        terminal.type("1")
        terminal.until("name:")
        terminal.type("Ada", ENTER)
        terminal.until(lambda shown: "colour:" in shown.lines, "the next field")
        terminal.type("purple", ENTER)
        terminal.until("one of red, green, blue")
        terminal.type("green", ENTER)
        terminal.until(lambda shown: "green" in shown.text.rsplit("colour: green", 1)[-1], "what came of it")


# -- the way to the daemon ---------------------------------------------------------------------------------------


def test_a_daemon_that_is_killed_and_started_again_is_found_again(tmp_path: Path) -> None:
    with served(tmp_path) as first:
        port = first.url.rsplit(":", 1)[1]
        with chatting(first, "--new") as terminal:
            terminal.type("echo before", ENTER)
            terminal.until(lambda shown: "before" in shown.lines, "the first turn")
            first.stop(signal.SIGKILL)
            terminal.until("the daemon is away")
            with served(tmp_path, "--port", port):
                terminal.gone("the daemon is away")
                terminal.type("echo after", ENTER)
                terminal.until(lambda shown: "after" in shown.lines, "a turn of the second one")
                assert terminal.shown.lines.count("before") == 1, "nothing is told twice"


def test_without_a_daemon_an_agent_is_started_and_ends_with_the_chat(tmp_path: Path) -> None:
    with on_screen(tmp_path, "chat", "--", *SCRIPTED) as terminal:
        reads_keys(terminal)
        terminal.type("echo 'all alone'", ENTER)
        terminal.until(lambda shown: "all alone" in shown.lines, "the answer")
        terminal.type(":mode", ENTER)
        terminal.until("which one?")
        terminal.type("1")
        terminal.until("without a daemon")
        terminal.type(CTRL_D)
        assert terminal.finish() == 0
        assert "the agent ends with the chat" in terminal.shown.text


def test_no_daemon_is_told_as_for_other_commands(tmp_path: Path) -> None:
    with on_screen(tmp_path, "chat", env={"TURNWIRE_URL": "http://127.0.0.1:9"}) as terminal:
        assert terminal.finish() == 69
        assert "http://127.0.0.1:9" in terminal.shown.text


def test_prompt_without_words_opens_a_chat(daemon: Served) -> None:
    session = daemon.session()
    with on_screen(daemon.home, "prompt", "-s", session, env=daemon.env) as terminal:
        reads_keys(terminal)
        terminal.type(CTRL_D)
        assert terminal.finish() == 0


def test_without_a_terminal_a_chat_is_refused_with_what_to_use(daemon: Served) -> None:
    refused = daemon.run("chat")

    assert refused.code == 2
    assert "turnwire prompt" in refused.err


def test_sessions_cannot_be_named_twice(tmp_path: Path) -> None:
    refused = run("chat", "--new", "--last", home=tmp_path)

    assert refused.code == 2
    assert "give one of them" in refused.err


def test_a_narrow_terminal_shows_all_of_it(daemon: Served) -> None:
    with chatting(daemon, "--new", rows=20, columns=40) as terminal:
        terminal.type("echo 'a line that is longer than the forty columns of this terminal'", ENTER)
        terminal.until(lambda shown: "of this terminal" in shown.text.replace("\n", " "), "the answer")
        terminal.type(":help", ENTER)
        terminal.until(":quit")
        assert all(len(line) <= 40 for line in terminal.shown.lines)


def test_a_menu_that_is_higher_than_the_terminal_shows_the_line_that_is_looked_at(daemon: Served) -> None:
    for _ in range(12):
        daemon.session()
    with chatting(daemon, "--new", rows=10, columns=60) as terminal:
        terminal.type(":sessions", ENTER)
        terminal.until(lambda shown: any(line.startswith("> 1. ") for line in shown.lines), "the first line")
        terminal.type(UP, UP)
        terminal.until(
            lambda shown: bool(re.search(r"^> 1\d\. ", "\n".join(shown.lines), re.M)), "the last but one"
        )


def test_a_session_that_is_closed_says_so_and_the_chat_goes_elsewhere(daemon: Served) -> None:
    session = daemon.session()
    with chatting(daemon, "-s", session) as terminal:
        daemon.ask("DELETE", f"/session/{session}")
        terminal.until("the session is closed")
        terminal.type("echo lost", ENTER)
        terminal.until("> echo lost")
        terminal.type(CTRL_C, ":new", ENTER)
        terminal.until(lambda shown: shown.text.count(HINT) == 2, "another session")


def test_only_a_chat_pays_for_the_line_editor() -> None:
    look = "import sys, turnwire.cli.main, turnwire.cli.prompt; print('prompt_toolkit' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert shown.stdout == "False\n"


def test_what_is_typed_before_the_chat_has_begun_is_not_lost(daemon: Served) -> None:
    with on_screen(daemon.home, "chat", "--new", env=daemon.env) as terminal:
        terminal.type("echo 'too early'", ENTER)
        terminal.until(lambda shown: "too early" in shown.lines, "the answer")


def test_one_ctrl_c_ends_the_wait_for_an_agent_that_does_not_begin(tmp_path: Path) -> None:
    with on_screen(tmp_path, "chat", "--", "sleep", "100") as terminal:
        terminal.until("has not answered")
        terminal.type(CTRL_C)
        assert terminal.finish() == 0
