"""The witness of the crash test can fail: each of its complaints is drawn out by a small log that deserves it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.crash.witness import Accepted, Asked, Seen, Witness

Json = dict[str, Any]
CREATED: Json = {"type": "session_created", "sessionId": "s"}


def accepted(prompt_id: str, after: int, key: str | None = None) -> Json:
    return {"type": "prompt_accepted", "promptId": prompt_id, "afterOffset": after} | ({"key": key} if key else {})


def started(prompt_id: str) -> Json:
    return {"type": "turn_started", "promptId": prompt_id}


def said(prompt_id: str) -> Json:
    return {"type": "session_update", "promptId": prompt_id}


def ended(prompt_id: str, kind: str = "turn_complete") -> Json:
    return {"type": kind, "promptId": prompt_id}


TURN = [CREATED, accepted("p", 1, "k"), started("p"), said("p"), ended("p")]


class LogFile:
    """A log file written by hand."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log"
        self.witness = Witness(self.path)
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(
                "CREATE TABLE sessions (id INTEGER PRIMARY KEY, name TEXT, epoch TEXT, first INTEGER, head INTEGER,"
                " unsettled INTEGER)"
            )
            connection.execute("CREATE TABLE events (session INTEGER, offset INTEGER, body BLOB)")

    def write(self, events: list[Json], *, unsettled: int = 0, epoch: str = "e", offsets: list[int] | None = None):
        """The session `s` as it is to be found at the next look."""
        offsets = offsets or list(range(1, len(events) + 1))
        rows = [(offset, json.dumps(event).encode()) for offset, event in zip(offsets, events, strict=True)]
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("DELETE FROM sessions")
            connection.execute("DELETE FROM events")
            head = (1, "s", epoch, 1, offsets[-1] if offsets else 0, unsettled)
            connection.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", head)
            connection.executemany("INSERT INTO events VALUES (1, ?, ?)", rows)

    def look(self, events: list[Json], **how: Any) -> list[str]:
        self.write(events, **how)
        return self.witness.look()


@pytest.fixture
def log(tmp_path: Path) -> LogFile:
    return LogFile(tmp_path)


def test_a_sound_log_has_no_complaints(log: LogFile) -> None:
    assert log.look(TURN[:3], unsettled=1) == []
    assert log.witness.active() == [("s", "p")]
    assert log.look(TURN) == []
    body = json.dumps(TURN[3]).encode()
    claims = [Accepted("s", "p", "k", 1), Seen("s", 4, crc32(body)), Asked("p")]
    assert log.witness.hear(claims) == []
    assert log.witness.recovered([("s", "p")]) == []
    assert log.witness.settled() == []


def test_a_turn_of_the_agents_own_is_sound(log: LogFile) -> None:
    events = [CREATED, {**started("agent-2"), "origin": "agent"}, ended("agent-2")]
    assert log.look(events) == []


def test_a_log_that_was_not_begun_is_sound(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "log")
    assert witness.look() == []
    witness.path.touch()
    assert witness.look() == []


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([*TURN, ended("p", "turn_error")], "G3 'turn_error' at 6 comes after the end of p"),
        ([*TURN, said("p")], "G3 'session_update' at 6 comes after the end of p"),
        ([CREATED, said("p")], "G3 'session_update' at 2 is of p, which was never accepted"),
        ([CREATED, started("p"), ended("p")], "G3 p starts at 2 and was never accepted"),
        ([*TURN, accepted("q", 5, "k"), ended("q")], "G7 key 'k' is p and, at 6, q"),
        ([*TURN[:4], accepted("p", 4), ended("p")], "G7 p is accepted again at 5"),
        ([CREATED, accepted("p", 0), ended("p")], "G7 p at 2 says that it follows 0"),
        ([*TURN, CREATED], "G1 created again at 6"),
        (TURN[:4], "G3 ['p'] are open in a session that is not marked as unsettled"),
        (
            [*TURN[:4], accepted("q", 4), started("q"), ended("q"), ended("p")],
            "G3 q starts at 6 while p is active",
        ),
    ],
)
def test_a_log_that_breaks_a_guarantee_is_found(log: LogFile, events: list[Json], complaint: str) -> None:
    assert log.look(events) == [f"s: {complaint}"]


def test_a_gap_is_found(log: LogFile) -> None:
    [complaint] = log.look(TURN, offsets=[1, 2, 3, 5, 6])
    assert complaint.startswith("s: G1 offsets are not 1..6")


def test_an_event_that_changed_between_two_looks_is_found(log: LogFile) -> None:
    assert log.look(TURN) == []
    assert log.look([*TURN[:3], {**said("p"), "late": True}, *TURN[4:]]) == ["s: G1 event 4 has changed"]


def test_a_log_that_became_shorter_is_found(log: LogFile) -> None:
    assert log.look(TURN) == []
    assert log.look(TURN[:1]) == ["s: G1 the log had 5 events and has 1"]


def test_a_log_that_began_anew_is_found(log: LogFile) -> None:
    assert log.look(TURN) == []
    assert log.look(TURN, epoch="f") == ["s: G1 the epoch was e and is f"]


def test_a_session_that_vanished_is_found(log: LogFile) -> None:
    assert log.look(TURN) == []
    with closing(sqlite3.connect(log.path)) as connection, connection:
        connection.execute("DELETE FROM sessions")
    assert log.witness.look() == ["G1 session s is gone"]


def test_a_file_that_vanished_is_found(log: LogFile) -> None:
    assert log.look(TURN) == []
    log.path.unlink()
    assert log.witness.look() == ["G1 session s is gone"]


@pytest.mark.parametrize(
    ("claim", "complaint"),
    [
        (Seen("s", 4, 1), "s: G2 event 4 was seen and is not in the log"),
        (Seen("s", 6, 1), "s: G2 event 6 was seen and is not in the log"),
        (Seen("t", 1, 1), "t: G2 event 1 was seen and is not in the log"),
        (Accepted("s", "q", None, 5), "s: G7 q was accepted after 5 and is not there"),
        (Accepted("s", "p", "k", 3), "s: G7 p was accepted after 3 and is not there"),
        (Accepted("s", "p", "l", 1), "s: G7 key 'l' was accepted as p"),
        (Asked("q"), "G2 the agent was asked q, and the log does not say that it has it"),
    ],
)
def test_a_claim_that_the_log_does_not_bear_out_is_found(
    log: LogFile, claim: Seen | Accepted | Asked, complaint: str
) -> None:
    assert log.look(TURN) == []
    assert log.witness.hear([claim]) == [complaint]


def test_a_turn_without_an_end_is_found(log: LogFile) -> None:
    assert log.look([*TURN, accepted("q", 5)], unsettled=1) == []
    assert log.witness.settled() == ["s: G3 q has no end"]
    assert log.look([*TURN, accepted("q", 5), started("q")], unsettled=1) == []
    assert log.witness.recovered(log.witness.active()) == ["s: G3 q was interrupted and recovery did not end it"]


def test_a_session_that_is_left_unsettled_is_found(log: LogFile) -> None:
    assert log.look(TURN, unsettled=1) == []
    assert log.witness.settled() == ["s: G3 the session is still marked as unsettled"]
