"""The end of a turn in each dialect, as the daemon and an agent of the SDK both tell it."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.core.encoder.frame_words import MARK, error, told, words

from turnwire.core.encoder import Dialect, Emission, EndedTurn, Outgoing, encoder_for
from turnwire.ids import PromptId, SessionId
from turnwire.wire.jsonrpc import REQUEST_CANCELLED, ErrorObject

ENDED = EndedTurn(prompt_id=PromptId("p1"), request_id=7, stop_reason="end_turn", usage={"totalTokens": 3})
FAILED = EndedTurn(prompt_id=PromptId("p1"), request_id=7, error=ErrorObject(-32603, "no"))
V2_STRICT = Dialect(version=2, turn_complete=True, strict=True)


def end(
    dialect: Dialect,
    ended: EndedTurn = ENDED,
    *,
    own: bool = True,
    is_inserted: bool = True,
    is_foreground: bool = True,
) -> list[Outgoing]:
    encoder = encoder_for(dialect, SessionId("s1"))
    return encoder.end(ended, own=own, is_inserted=is_inserted, is_foreground=is_foreground)


@pytest.mark.parametrize(
    ("dialect", "marks"),
    [
        (Dialect(version=1), ["session_info_update", MARK]),
        (Dialect(version=1, turn_complete=True), ["turn_complete", MARK]),
        (Dialect(version=1, emission=Emission.ALWAYS), ["session_info_update", "turn_complete", MARK]),
        (Dialect(version=1, turn_complete=True, strict=True), ["session_info_update", MARK]),
        (Dialect(version=1, emission=Emission.ALWAYS, strict=True), ["session_info_update", MARK]),
        (Dialect(version=1, turn_complete=True, emission=Emission.OFF), []),
    ],
)
def test_v1_marks_come_before_the_answer_in_the_forms_that_the_client_can_take(
    dialect: Dialect, marks: list[str]
) -> None:
    assert words(end(dialect)) == [*marks, "answer p1"]
    assert words(end(dialect, FAILED)) == [*marks, "fail p1"]
    assert words(end(dialect, own=False)) == marks


def test_a_strict_v2_client_that_asked_is_sent_the_mark_under_a_name_of_ours() -> None:
    assert words(end(V2_STRICT)) == ["_turn_complete", "state_update idle"]
    assert words(end(Dialect(version=2, turn_complete=True))) == ["state_update idle"]
    assert words(end(Dialect(version=2, strict=True))) == ["state_update idle"]


@pytest.mark.parametrize("dialect", [Dialect(version=1, turn_complete=True), V2_STRICT])
def test_a_turn_that_the_agent_began_is_marked_by_nothing(dialect: Dialect) -> None:
    own_turn = EndedTurn(prompt_id=PromptId("p1"), by_agent=True, stop_reason="end_turn")
    assert words(end(dialect, own_turn)) == ([] if dialect.version == 1 else ["state_update idle"])


def test_the_request_is_named_to_the_client_that_sent_it_alone() -> None:
    dialect = Dialect(version=1, turn_complete=True)
    [own] = told(end(dialect), "turn_complete")
    [other] = told(end(dialect, own=False), "turn_complete")
    assert (own["promptRequestId"], own["stopReason"], own["_meta"]) == (7, "end_turn", {"promptId": "p1"})
    assert "promptRequestId" not in other


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
