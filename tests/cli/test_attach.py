"""`attach`, `tail`, `sessions` and `export`: looking at sessions."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.cli.rig import Served, finish, lines_of


def test_attach_shows_what_happened_and_then_what_happens(daemon: Served) -> None:
    session = daemon.session()
    daemon.run("prompt", "-s", session, "say 1 first")
    with daemon.begun("attach", session, "--prompt", "tool t1 read Look\nsay 1 second") as process:
        lines: list[str] = []
        for line in lines_of(process):
            lines.append(line.rstrip("\n"))
            if lines.count("turn ended: end_turn") == 2:
                break
        process.send_signal(signal.SIGINT)
        assert finish(process).code == 130

    assert lines[0] == "cli> say 1 first"
    assert lines.index("first") < lines.index("✓ Look") < lines.index("second")


def test_attach_shows_what_is_asked_how_to_answer_and_who_did(daemon: Served) -> None:
    session = daemon.session()
    with daemon.begun("attach", session, "--prompt", "ask t1 allow_once,reject_once") as process:
        lines = lines_of(process)
        assert any("the agent asks: t1" in line for line in lines)
        command = next(lines)
        request = daemon.ask("GET", f"/session/{session}/permissions")["permissions"][0]["requestId"]
        assert command == f"  next: turnwire answer {session} {request} allow_once|reject_once\n"
        assert daemon.run("answer", session, request, "allow_once").code == 0
        assert next(lines) == f"permission request {request}: cli answered allow_once\n"


def test_attach_can_leave_the_past_out(daemon: Served) -> None:
    session = daemon.session()
    daemon.run("prompt", "-s", session, "say 1 first")
    with daemon.begun("attach", session, "--live", "--prompt", "say 1 second") as process:
        lines: list[str] = []
        for line in lines_of(process):
            lines.append(line.rstrip("\n"))
            if line.startswith("turn ended"):
                break
    assert lines == ["cli> say 1 second", "second", "turn ended: end_turn"]


def test_a_closed_session_ends_attach_and_tail_by_itself(daemon: Served) -> None:
    session = daemon.session()
    daemon.ask("DELETE", f"/session/{session}")

    assert daemon.run("attach", session).code == 0
    shown = daemon.run("tail", session, "--json")
    assert shown.code == 0
    assert shown.lines[-1]["type"] == "session_closed"


def test_tail_prints_every_event_once_from_where_it_is_told(daemon: Served) -> None:
    session = daemon.session()
    daemon.run("prompt", "-s", session, "say 3 hi")
    whole = daemon.run("tail", session, "--until-now", "--json").lines
    assert [each["id"] for each in whole] == list(range(1, len(whole) + 1))
    assert whole[-1]["type"] == "turn_complete"

    rest = daemon.run("tail", session, "--until-now", "--after", "3").out.splitlines()
    assert [line.split("\t")[:2] for line in rest] == [[str(each["id"]), each["type"]] for each in whole[3:]]
    assert json.loads(rest[-1].split("\t")[2]) == whole[-1]["data"]
    assert daemon.run("tail", session, "--until-now", "--after", str(len(whole))).out == ""


def test_a_reader_that_leaves_is_no_error(daemon: Served) -> None:
    session = daemon.session()
    with daemon.begun("tail", session) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        daemon.run("prompt", "-s", session, "flood 3000 100")
        assert process.wait(60) == 141


def test_sessions_are_listed_as_a_table_and_as_json(daemon: Served) -> None:
    session, closed = daemon.session(), daemon.session()
    daemon.ask("DELETE", f"/session/{closed}")

    rows = [line.split("\t") for line in daemon.run("sessions").out.splitlines()]
    assert [session, "idle", str(daemon.home)] in [[row[0], row[1], row[4]] for row in rows]
    assert closed in {row[0] for row in rows}
    found = {each["sessionId"] for each in daemon.run("sessions", "--open", "--json", "--cwd", ".").lines}
    assert session in found
    assert closed not in found


def test_export_writes_the_whole_log_or_leaves_the_old_file(daemon: Served, tmp_path: Path) -> None:
    session = daemon.session()
    daemon.run("prompt", "-s", session, "say 2 hi")
    file = tmp_path / "out.ndjson"
    assert daemon.run("export", session, "-o", str(file)).code == 0
    kept = file.read_text()
    events = [json.loads(line) for line in kept.splitlines()][1:-1]
    shown = daemon.run("tail", session, "--until-now", "--json").lines
    assert [each["at"] for each in events] == [each["_meta"]["serverTimestamp"] for each in shown]
    assert daemon.run("export", session).out == kept

    assert daemon.run("export", "nowhere", "-o", str(file)).code == 66
    assert file.read_text() == kept
    assert [each.name for each in tmp_path.iterdir()] == ["out.ndjson"]
    assert daemon.run("export", session, "-o", str(tmp_path / "no" / "x")).code == 74
