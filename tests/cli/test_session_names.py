"""Session names on the command line: the id, a prefix of it, or the last one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.rig import Served, run, served


def unique_beginning(daemon: Served, session: str) -> str:
    """The shortest beginning that no other session of the daemon has."""
    others = {each["sessionId"] for each in daemon.run("sessions", "--json").lines} - {session}
    return next(
        session[:length] for length in range(3, 23) if not any(each.startswith(session[:length]) for each in others)
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("explain", "SESSION"), "session {}: idle"),
        (("export", "SESSION"), '"sessionId":"{}"'),
        (("tail", "SESSION", "--until-now", "--json"), "turn_complete"),
        (("prompt", "-s", "SESSION", "say 1 again"), "again"),
        (("answer", "SESSION"), "nothing is asked"),
        (("cancel", "SESSION"), "no turn runs"),
        (("queue", "SESSION"), "no prompt is queued"),
        (("token", "create", "one", "--session", "SESSION", "--role", "observer"), "tw_"),
    ],
    ids=["explain", "export", "tail", "prompt", "answer", "cancel", "queue", "token"],
)
def test_the_beginning_of_an_id_names_the_session_in_every_command(
    words: tuple[str, ...], shown: str, daemon: Served
) -> None:
    session = daemon.session()
    daemon.said(session, "say 1 hello")
    begin = unique_beginning(daemon, session)

    ran = daemon.run(*(begin if each == "SESSION" else each for each in words))

    assert ran.code == 0, ran.err
    assert shown.format(session) in ran.out + ran.err


def test_a_beginning_that_several_have_lists_them(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        sessions = {daemon.session(), daemon.session()}
        ran = daemon.run("explain", "s_")

    assert ran.code == 66
    assert "2 sessions begin with 's_'" in ran.err
    assert {each.split()[0] for each in ran.err.splitlines()[1:]} == sessions


def test_what_no_session_is_called_says_where_they_are_listed(daemon: Served) -> None:
    ran = daemon.run("attach", "nobody")

    assert ran.code == 66
    assert "no session has the id 'nobody'" in ran.err
    assert "turnwire sessions" in ran.err


def test_the_last_session_is_the_one_in_which_something_happened_most_recently(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        ran = daemon.run("explain", "last")
        assert (ran.code, "there is no session yet" in ran.err) == (66, True)
        first, second = daemon.session(), daemon.session()
        assert f"session {second}:" in daemon.run("explain", "last").out
        assert daemon.run("prompt", "-s", first, "say 1 hello").code == 0
        assert f"session {first}:" in daemon.run("explain", "last").out
        assert [each["sessionId"] for each in daemon.run("sessions", "--json").lines] == [first, second]
        daemon.ask("DELETE", f"/session/{first}")
        assert f"session {second}:" in daemon.run("explain", "last").out, "a closed one is only the last if all are"


def test_an_archived_session_is_not_the_last_and_is_found_by_its_id(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        first, second = daemon.session(title="Old Parser"), daemon.session(title="New parser")
        assert daemon.run("archive", second[:-2]).code == 0
        assert f"session {first}:" in daemon.run("explain", "last").out
        assert f"session {second}:" in daemon.run("explain", second[:-2]).out
        assert [each["sessionId"] for each in daemon.run("sessions", "--json").lines] == [first]
        assert [each["sessionId"] for each in daemon.run("sessions", "--archived", "--json").lines] == [second]
        assert daemon.run("archive", second, "--undo").code == 0
        assert daemon.run("sessions", "--archived").err.count("no such sessions") == 1
        found = daemon.run("sessions", "--search", "parser old", "--json").lines
        assert [each["sessionId"] for each in found] == [first]


def test_a_session_whose_client_chose_its_id_is_found_by_it(daemon: Served) -> None:
    daemon.session(sessionId="mine")
    daemon.session(sessionId="mine-too")

    assert "session mine:" in daemon.run("explain", "mine").out
    assert "session mine-too:" in daemon.run("explain", "mine-").out


def test_a_whole_id_is_not_looked_up(daemon: Served) -> None:
    ran = daemon.run("explain", f"s_{'0' * 20}")

    assert ran.code == 66
    assert "no session has the id" not in ran.err, "the daemon itself says that there is none"


def test_without_a_daemon_that_is_what_is_said(tmp_path: Path) -> None:
    ran = run("explain", "last", home=tmp_path, TURNWIRE_URL="http://127.0.0.1:9")

    assert ran.code == 69
    assert "no daemon answers" in ran.err
