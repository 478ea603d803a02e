"""The end of a turn in each dialect, as the daemon and an agent of the SDK both send it."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.projections.encoder.frame_words import answer, error, told, words

from turnwire.ids import PromptId
from turnwire.projections.encoder import Dialect, EndedTurn, Outgoing, encoder_for
from turnwire.wire.jsonrpc import REQUEST_CANCELLED, ErrorObject

ENDED = EndedTurn(prompt_id=PromptId("p1"), request_id=7, stop_reason="end_turn", usage={"totalTokens": 3})
FAILED = EndedTurn(prompt_id=PromptId("p1"), request_id=7, error=ErrorObject(-32603, "no"))
MARKED = Dialect(version=1, turn_complete=True)


def end(
    dialect: Dialect,
    ended: EndedTurn = ENDED,
    *,
    own: bool = True,
    is_inserted: bool = True,
    is_foreground: bool = True,
) -> list[Outgoing]:
    encoder = encoder_for(dialect)
    return encoder.end(ended, own=own, is_inserted=is_inserted, is_foreground=is_foreground)


@pytest.mark.parametrize(("dialect", "marks"), [(Dialect(version=1), []), (MARKED, ["turn_complete"])])
def test_the_mark_comes_before_the_answer_and_for_those_who_get_it_alone(
    dialect: Dialect, marks: list[str]
) -> None:
    assert words(end(dialect)) == [*marks, "answer p1"]
    assert words(end(dialect, FAILED)) == [*marks, "fail p1"]
    assert words(end(dialect, own=False)) == marks


def test_on_v2_the_idle_state_says_it() -> None:
    assert words(end(Dialect(version=2, turn_complete=True))) == ["state_update idle"]


@pytest.mark.parametrize("dialect", [MARKED, Dialect(version=2)])
def test_a_turn_that_the_agent_began_is_marked_by_nothing(dialect: Dialect) -> None:
    own_turn = EndedTurn(prompt_id=PromptId("p1"), by_agent=True, stop_reason="end_turn")
    assert words(end(dialect, own_turn)) == ([] if dialect.version == 1 else ["state_update idle"])


def test_everybody_is_told_the_request_and_whose_it_is() -> None:
    for own in (True, False):
        [mark] = told(end(MARKED, own=own), "turn_complete")
        assert (mark["promptRequestId"], mark["stopReason"]) == (7, "end_turn")
        assert mark["_meta"] == {"turnwire": {"promptId": "p1", "own": own}}


def test_a_prompt_that_had_joined_a_turn_ends_for_its_sender_alone() -> None:
    assert words(end(MARKED, is_foreground=False)) == ["turn_complete", "answer p1"]
    assert words(end(MARKED, own=False, is_foreground=False)) == []


def test_the_answer_names_the_prompt_in_every_way() -> None:
    named = answer(end(Dialect(version=1)))["_meta"]["turnwire"]["turnComplete"]
    assert named == {"promptId": "p1", "promptRequestId": 7, "stopReason": "end_turn"}


@pytest.mark.parametrize("usage_in_mark", [True, False])
def test_the_usage_is_in_the_mark_where_that_was_agreed(usage_in_mark: bool) -> None:
    [mark] = told(end(Dialect(version=1, turn_complete=True, usage_in_mark=usage_in_mark)), "turn_complete")
    assert mark.get("usage") == ({"totalTokens": 3} if usage_in_mark else None)


def test_a_prompt_that_never_entered_the_conversation_is_refused_on_v2_and_cancelled_on_v1() -> None:
    taken_back = msgspec.structs.replace(ENDED, stop_reason="cancelled")
    refused = end(Dialect(version=2), taken_back, is_inserted=False, is_foreground=False)
    assert words(refused) == ["fail p1"]
    assert error(refused)["code"] == REQUEST_CANCELLED
    assert error(end(Dialect(version=2), FAILED, is_inserted=False)) == {"code": -32603, "message": "no"}
    assert words(end(Dialect(version=2), FAILED, is_inserted=False)) == ["fail p1", "state_update idle"]
    assert end(Dialect(version=2), taken_back, own=False, is_inserted=False, is_foreground=False) == []
    assert words(end(Dialect(version=1), taken_back, is_inserted=False))[-1] == "answer p1"
