"""The ledger of the daemon's kill test can fail: each complaint is drawn out by a story that deserves it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.crash.daemon_ledger import Json, Ledger, Reading, Receipt

SESSION = "s0"
KEY = "s0-1"
HELD = Receipt("p", 1, "e")


def event(number: int, kind: str, prompt_id: str = "p", stored: str | None = None, **members: Any) -> str:
    meta = {} if stored is None else {"event": stored}
    return json.dumps({"id": number, "type": kind, "promptId": prompt_id, "data": members, "_meta": meta})


ACCEPTED = event(2, "prompt_accepted")
STARTED = event(3, "state_changed", stored="turn_started")
COMPLETE = event(4, "turn_complete", stopReason="end_turn")
INTERRUPTED = event(4, "turn_error", code="daemon_restarted")
TURN = [event(1, "session_created"), ACCEPTED, STARTED, COMPLETE]


def told(events: list[str] = TURN, *, keys: tuple[str, ...] = (KEY,)) -> Ledger:
    """Return a ledger of one client that has read all of one session."""
    ledger = Ledger()
    for number, key in enumerate(keys):
        ledger.sent[key] = f"{key} quick"
        ledger.hold(key, HELD if not number else Receipt(f"p{number}", 1 + number, "e"))
    ledger.readings["tab", SESSION] = Reading()
    for number, envelope in enumerate(events, 1):
        ledger.read("tab", SESSION, number, envelope)
    return ledger


def test_a_turn_that_ran_once_and_ended_once_has_no_complaints() -> None:
    assert told().check({SESSION: TURN}, [(KEY, 1)]) == []
    interrupted = [*TURN[:3], INTERRUPTED]
    assert told(interrupted).check({SESSION: interrupted}, []) == []


def test_a_reader_of_another_epoch_is_found() -> None:
    reading = Reading()
    assert reading.open("e") == reading.open("e") == []
    assert reading.open("f") == ["G1 the epoch was e and is f"]


@pytest.mark.parametrize(("number", "last"), [(2, 2), (4, 2), (1, 2)])
def test_an_event_that_is_repeated_or_left_out_is_found(number: int, last: int) -> None:
    ledger = told(TURN[:2])
    ledger.read("tab", SESSION, number, STARTED)
    assert ledger.complaints == [f"tab of {SESSION}: G9 event {number} came after {last}"]


def test_a_key_that_became_another_prompt_is_found() -> None:
    ledger = told()
    ledger.hold(KEY, HELD)
    assert (ledger.complaints, ledger.repeats) == ([], 1)
    ledger.hold(KEY, Receipt("q", 1, "e"))
    assert "s0-1 was accepted as" in ledger.complaints[0]


@pytest.mark.parametrize(
    ("whole", "complaint"),
    [
        (
            [*TURN[:2], event(3, "state_changed", stored="turn_started", late=True), COMPLETE],
            "G2 event 3 of s0 was",
        ),
        ([*TURN, event(5, "session_update")], "G9 tab has read 4 of the 5 events"),
        ([*TURN, event(5, "turn_complete")], "has 2 ends"),
        (TURN[:3], "has 0 ends"),
        ([*TURN, event(5, "turn_error", prompt_id="q")], "G7 q ended and nobody sent it"),
        ([*TURN[:2], event(3, "state_changed", stored="turn_blocked"), COMPLETE], "was accepted and never ran"),
    ],
)
def test_a_session_that_does_not_bear_out_what_clients_hold_is_found(whole: list[str], complaint: str) -> None:
    assert any(complaint in each for each in told().check({SESSION: whole}, [(KEY, 1)]))


@pytest.mark.parametrize(
    ("tags", "complaint"),
    [
        ([(KEY, 1), (KEY, 2)], "G7 s0-1 was given to agents 2 times"),
        ([(KEY, 1), ("s0-9", 1)], "G2 s0-9 was given to an agent and never accepted"),
        ([], "G3 s0-1 is complete and no agent got it"),
    ],
)
def test_an_agent_that_says_otherwise_is_believed(tags: list[tuple[str, int]], complaint: str) -> None:
    assert told().check({SESSION: TURN}, tags) == [complaint]


def test_a_turn_that_failed_for_another_reason_than_the_kill_is_found() -> None:
    failed = [*TURN[:3], event(4, "turn_error", code="agent_exited")]
    assert told(failed).check({SESSION: failed}, [(KEY, 1)]) == ["G7 s0-1 failed with agent_exited"]


def test_a_prompt_of_which_nobody_knows_what_became_of_it_is_found() -> None:
    ledger = told()
    ledger.sent["s0-2"] = "s0-2 quick"
    assert ledger.check({SESSION: TURN}, [(KEY, 1)]) == ["G7 s0-2 was sent, and nobody knows what became of it"]


def test_a_queue_that_was_worked_off_in_another_order_is_found() -> None:
    ledger = told(keys=(KEY, "s0-2"))
    found = ledger.check({SESSION: TURN}, [("s0-2", 1), (KEY, 1)])
    assert "G7 s0-1 was given to an agent after s0-2" in found
    # The agent of a dead daemon may write its last line late.
    found = ledger.check({SESSION: TURN}, [("s0-2", 2), (KEY, 1)])
    assert not any("after s0-2" in each for each in found)


@pytest.mark.parametrize(
    "answer",
    [
        {"state": "completed", "stopReason": "end_turn", "resultText": "other words"},
        {"state": "cancelled", "stopReason": "cancelled"},
        {"state": "error", "error": {"code": "daemon_restarted"}},
    ],
)
def test_a_turn_whose_route_changes_its_mind_is_found(answer: Json) -> None:
    ledger = told()
    was = {"state": "completed", "stopReason": "end_turn"}
    ledger.told_turn("p", was)
    ledger.told_turn("p", dict(was))
    assert ledger.complaints == []
    ledger.told_turn("p", answer)
    assert "G3 the turn p was" in ledger.complaints[0]


def test_a_turn_whose_route_differs_from_its_event_is_found() -> None:
    ledger = told()
    ledger.told_turn("p", {"state": "error", "error": {"code": "daemon_restarted"}})
    assert "and its route says" in ledger.complaints[0]
