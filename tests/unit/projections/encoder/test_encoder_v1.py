"""A session as ACP v1 clients see it: plain, with `turn_complete`, or with the lifecycle draft."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.projections.encoder.frame_words import (
    LIFECYCLE,
    MARKED,
    PLAIN,
    answer,
    error,
    one_turn,
    seen,
    told,
    words,
)
from tests.unit.session import driving as d

from turnwire.ids import PromptId, SessionId
from turnwire.projections.encoder import SessionEncoder
from turnwire.projections.encoder.encoder import Dialect
from turnwire.session import events as ev


def test_the_lifecycle_draft_tells_the_message_and_the_states() -> None:
    outgoing = seen(LIFECYCLE, one_turn())
    assert words(outgoing) == [
        *("user_message", "answer p1", "state_change running", "agent_message_chunk", "state_change idle"),
    ]
    assert answer(outgoing) == {}
    assert told(outgoing, "state_change")[-1]["stop_reason"] == "end_turn"


def test_the_lifecycle_draft_tells_a_cancel_and_a_failure_by_the_idle_and_answers_once() -> None:
    cancelled = seen(LIFECYCLE, one_turn(ev.TurnEnd.RESPONSE, d.cancel("p1"), d.answered("p1", "cancelled")))
    failed = seen(LIFECYCLE, one_turn(ev.TurnEnd.RESPONSE, d.refused("p1")))
    assert told(cancelled, "state_change")[-1]["stop_reason"] == "cancelled"
    idle = told(failed, "state_change")[-1]
    assert (idle["state"], idle["stop_reason"]) == ("idle", "error")
    assert idle["error"] == msgspec.json.decode(d.ERROR)
    for outgoing in (cancelled, failed):
        assert [each for each in words(outgoing) if each.endswith(" p1")] == ["answer p1"]


def test_the_mark_names_the_request_and_the_reason_of_the_answer() -> None:
    outgoing = seen(MARKED, one_turn())
    [mark] = told(outgoing, "turn_complete")
    assert mark == {
        "sessionUpdate": "turn_complete",
        "promptRequestId": 2,
        "stopReason": "end_turn",
        "_meta": {"turnwire": {"promptId": "p1", "own": True}},
    }
    result = answer(outgoing)
    assert result["stopReason"] == mark["stopReason"]
    assert result["_meta"]["turnwire"]["turnComplete"]["promptRequestId"] == 2


def test_a_prompt_that_was_no_request_is_named_by_our_id_of_it() -> None:
    session = d.Session(ev.TurnEnd.RESPONSE)
    session.take(d.prompt("p1"), d.answered("p1"))
    [mark] = told(seen(MARKED, session.log, own=()), "turn_complete")
    assert (mark["promptRequestId"], mark["_meta"]["turnwire"]["promptId"]) == ("p1", "p1")


@pytest.mark.parametrize("own", [True, False])
def test_a_prompt_that_never_ran_is_ended_for_its_sender_alone(own: bool) -> None:
    session = d.Session(ev.TurnEnd.RESPONSE)
    session.take(d.prompt("p1", request_id=2), d.prompt("p2", request_id=3), d.cancel("p2"))
    marks = told(seen(MARKED, session.log, own=("p2",) if own else ()), "turn_complete")
    assert [(each["promptRequestId"], each["stopReason"]) for each in marks] == ([(3, "cancelled")] if own else [])


@pytest.mark.parametrize("dialect", [PLAIN, MARKED])
def test_a_cancelled_v1_turn_is_a_result(dialect: Dialect) -> None:
    outgoing = seen(dialect, one_turn(ev.TurnEnd.RESPONSE, d.cancel("p1"), d.answered("p1", "cancelled")))
    assert answer(outgoing)["stopReason"] == "cancelled"
    assert [each.get("stopReason") for each in told(outgoing, "turn_complete")] in ([], ["cancelled"])


@pytest.mark.parametrize("dialect", [PLAIN, MARKED])
def test_a_failed_v1_turn_is_marked_with_its_error_and_then_refused(dialect: Dialect) -> None:
    outgoing = seen(dialect, one_turn(ev.TurnEnd.RESPONSE, d.refused("p1")))
    assert words(outgoing)[-1] == "fail p1"
    assert error(outgoing) == msgspec.json.decode(d.ERROR)
    marks = [(each["stopReason"], each["error"]) for each in told(outgoing, "turn_complete")]
    assert marks == [("refusal", msgspec.json.decode(d.ERROR))] * dialect.turn_complete


def test_an_agent_that_died_is_told_with_how() -> None:
    outgoing = seen(PLAIN, one_turn(ev.TurnEnd.RESPONSE, d.gone()))
    known = {"code": "agent_exited", "exitCode": 9, "signal": "KILL", "stderrTail": "oops"}
    assert error(outgoing) == {"code": -32603, "message": "it is gone", "data": known}


@pytest.mark.parametrize("dialect", [PLAIN, MARKED])
def test_a_v1_client_is_shown_the_prompts_of_others_and_not_its_own(dialect: Dialect) -> None:
    shown = told(seen(dialect, one_turn(), own=()), "user_message_chunk")
    assert [each["content"]["text"] for each in shown] == ["p1"]
    assert told(seen(dialect, one_turn()), "user_message_chunk") == []


@pytest.mark.parametrize(
    ("reason", "word", "given"),
    [("max_tokens", "answer p1", "max_tokens"), ("later", "answer p1", "end_turn"), ("_own", "fail p1", "refusal")],
)
def test_row_9_a_v1_client_hears_of_five_stop_reasons(reason: str, word: str, given: str) -> None:
    encoder = SessionEncoder(MARKED, SessionId("s1"))
    end = ev.TurnCompleted(at=1, prompt_id=PromptId("p1"), stop_reason=reason, ending=ev.Ending.IDLE)
    outgoing = encoder.take(end, own=True)
    assert words(outgoing)[-1] == word
    assert told(outgoing, "turn_complete")[0].get("stopReason") == given
    assert encoder.losses["stop_reason"] == (reason != "max_tokens")


def test_work_that_the_agent_began_is_marked_by_no_turn_complete() -> None:
    session = d.Session(ev.TurnEnd.IDLE)
    session.take(d.said("state_update", state="running"), d.said("state_update", state="idle"))
    assert words(seen(MARKED, session.log)) == []
    assert words(seen(LIFECYCLE, session.log)) == ["state_change running", "state_change idle"]
